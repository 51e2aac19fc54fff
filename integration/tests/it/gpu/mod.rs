//! Requests, grants, refusals, the decision log. Four simulated V100 of 32 GiB unless a test says
//! otherwise.

mod dialects;
mod live;
mod refusals;
mod running;
mod sharing;
mod spec;
pub(crate) mod user_namespaces;
mod vendor;

use integration::{ContainerBuilder, Node};

use crate::case::Case;

/// All of them.
pub(crate) fn cases() -> Vec<Case> {
    [
        dialects::cases(),
        live::cases(),
        refusals::cases(),
        running::cases(),
        sharing::cases(),
        spec::cases(),
        user_namespaces::cases(),
        vendor::cases(),
    ]
    .into_iter()
    .flatten()
    .map(|case| case.only_simulated("it counts on four V100 of 32 GiB"))
    .collect()
}

/// Tries to create it: the refusal's text. The container must not come to be.
#[track_caller]
pub(crate) fn refused(builder: ContainerBuilder<'_>) -> String {
    match builder.create() {
        Ok(container) => panic!("{} was created", container.id()),
        Err(status) => status.message().to_owned(),
    }
}

/// Events of the decision log about a container, with the card where there is one: `reserve 0`.
pub(crate) fn steps(node: &Node, id: &str) -> Vec<String> {
    let decisions = node.decisions(id);
    decisions
        .iter()
        .map(|decision| match decision.card {
            Some(card) => format!("{} {card}", decision.event),
            None => decision.event.clone(),
        })
        .collect()
}
