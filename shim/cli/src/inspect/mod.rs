//! `egpu inspect`: one container's whole record.

mod sections;

use std::slice;

use base::usage::Usage;
use ledger::{ContainerName, Record};
use schedule::{Status, Turn};
use serde::Serialize;

use super::{
    container_name, error::CliError, events, exit::Exit, listing::View, node, schedules::Schedules, screen::Screen,
    usage, without_gpu,
};

/// Arguments of `egpu inspect`.
#[derive(Debug, clap::Args)]
pub(super) struct InspectArguments {
    /// The container: its id or enough of its beginning, NAMESPACE/ID, POD, NAMESPACE/POD or
    /// NAMESPACE/POD/CONTAINER
    id: String,
    /// containerd's namespace or the pod's, where several have a container of that name
    #[arg(long, short)]
    namespace: Option<String>,
    #[command(flatten)]
    view: View,
}

/// The number of events that are shown.
const EVENTS: usize = 10;

pub(super) fn run(arguments: &InspectArguments) -> Result<Exit, CliError> {
    arguments.view.print(|screen| inspect(arguments, screen))?;
    Ok(Exit::Success)
}

fn inspect(arguments: &InspectArguments, screen: Screen) -> Result<String, CliError> {
    let config = crate::config::load()?;
    let (granted, without_gpu) = (node::records(&config)?, without_gpu::list(&config.state_dir));
    let record = match find(&granted, &without_gpu, &arguments.id, arguments.namespace.as_deref())? {
        InspectedContainer::Granted(record) => record,
        InspectedContainer::WithoutGpu(reported) => {
            return arguments.view.text(reported, |_| without_gpu::text(reported));
        }
    };
    let usage = usage::mediated(&config.state_dir, record).unwrap_or_else(|error| {
        crate::output::say(&format!("egpu: {}", base::error_chain(&error)));
        None
    });
    let (schedules, warnings) = Schedules::read(&config.state_dir, slice::from_ref(record));
    for warning in warnings {
        crate::output::say(&format!("egpu: {warning}"));
    }
    let inspected = Inspected::new(record, usage, &schedules);
    arguments.view.text(&inspected, |_| {
        // Without the events, the rest is shown.
        let events = events::latest(&config.state_dir, &record.container, EVENTS).unwrap_or_else(|error| {
            crate::output::say(&format!("egpu: cannot read the events: {error}"));
            Vec::new()
        });
        sections::text(&sections::sections(&inspected, &events), screen)
    })
}

/// A container that can be inspected.
#[derive(Debug, Clone, Copy)]
enum InspectedContainer<'a> {
    Granted(&'a Record),
    WithoutGpu(&'a without_gpu::ContainerWithoutGpu),
}

impl<'a> From<&'a InspectedContainer<'_>> for ContainerName<'a> {
    fn from(container: &'a InspectedContainer<'_>) -> Self {
        match *container {
            InspectedContainer::Granted(record) => record.into(),
            InspectedContainer::WithoutGpu(reported) => reported.into(),
        }
    }
}

/// Looks a name up among both together: one that fits a container of each is refused.
fn find<'a>(
    granted: &'a [Record],
    without_gpu: &'a [without_gpu::ContainerWithoutGpu],
    wanted: &str,
    namespace: Option<&str>,
) -> Result<InspectedContainer<'a>, CliError> {
    let without_gpu = without_gpu.iter().map(InspectedContainer::WithoutGpu);
    let all: Vec<InspectedContainer<'a>> = granted.iter().map(InspectedContainer::Granted).chain(without_gpu).collect();
    container_name::find(&all, wanted, namespace).copied()
}

/// A container's record, and the reports of its mediator.
#[derive(Debug, Serialize)]
struct Inspected<'a> {
    #[serde(flatten)]
    record: &'a Record,
    /// Null where it has no mediator.
    usage: Option<Usage>,
    /// Its turn; null where it shares no card.
    turn: Option<&'a Turn>,
    /// Its next turn; null where nothing changes.
    next_turn: Option<NextTurn<'a>>,
    /// The schedule that its mediator reports; null where it has none.
    schedule: Option<&'a Status>,
}

/// A turn that is not in force yet.
#[derive(Debug, Serialize)]
struct NextTurn<'a> {
    in_us: u64,
    #[serde(flatten)]
    turn: &'a Turn,
}

impl<'a> Inspected<'a> {
    fn new(record: &'a Record, usage: Option<Usage>, schedules: &'a Schedules) -> Self {
        let next_turn = schedules.next_turn(record).map(|(in_us, turn)| NextTurn { in_us, turn });
        Self { record, usage, turn: schedules.turn(record), next_turn, schedule: schedules.status(record) }
    }
}

#[cfg(test)]
mod tests {
    use ledger::ContainerKey;
    use runtime_config::request::PodContainer;

    use super::*;
    use crate::test_support;

    #[test]
    fn a_name_is_looked_up_among_all_containers() {
        let mut granted = test_support::node().records.remove(0);
        granted.container.id = "aab1".to_owned();
        granted.request.pod = Some(test_support::pod());
        let without_gpu = ["aa", "bb"].map(|id| without_gpu::ContainerWithoutGpu {
            container: ContainerKey { id: id.to_owned(), ..granted.container.clone() },
            pod: Some(PodContainer { container: id.to_owned(), ..test_support::pod() }),
            asked: Vec::new(),
            without_gpu: String::new(),
        });
        let find = |wanted: &str| find(slice::from_ref(&granted), &without_gpu, wanted, None);
        assert!(matches!(find("aa"), Ok(InspectedContainer::WithoutGpu(_))), "a whole id goes before a beginning");
        assert!(matches!(find("aab"), Ok(InspectedContainer::Granted(_))));
        assert!(matches!(find("bb"), Ok(InspectedContainer::WithoutGpu(_))));
        assert!(matches!(find("train-0"), Err(CliError::Ambiguous { .. })), "one has a GPU and two have none");
    }

    #[test]
    fn keys_of_the_schedule_are_there_for_programs() {
        let node = test_support::node();
        let value = |record| serde_json::to_value(Inspected::new(record, None, &node.schedules)).unwrap();
        let scheduled = value(&node.records[0]);
        assert_eq!(scheduled["turn"]["cards"][0]["pass"]["windows"][0]["end_us"], 10_000);
        assert_eq!(scheduled["next_turn"]["in_us"], 150_000);
        assert_eq!(scheduled["next_turn"]["cards"][0]["pass"]["windows"][0]["start_us"], 20_000);
        assert_eq!(scheduled["schedule"]["cards"][0]["throttled_us"], 9_000_000);
        let whole = value(&node.records[1]);
        for key in ["turn", "next_turn", "schedule"] {
            assert_eq!(whole[key], serde_json::Value::Null);
        }
    }
}
