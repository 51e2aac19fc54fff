//! Containers with several cards.

use std::time::Duration;

use integration::{Container, Node, eventually};

use super::{SPIN, around, end, now_us, samples, share};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::egpu("compute::a_container_runs_on_all_its_cards_at_once", together)]
}

/// A container of two cards, which works on both.
fn on_two<'node>(node: &'node Node, id: &str, percent: &str) -> Container<'node> {
    let spin = [SPIN, &["--cards", "2", "--every", "7ms"]].concat();
    let builder = node.container(id).env("EGPU_DEVICES", "0,1").env("EGPU_MEMORY", "1024MiB");
    builder.env("EGPU_COMPUTE", percent).args(&spin).start().unwrap()
}

/// Samples of two to three seconds.
const SOME: usize = 300;

/// Its kernels wait for each other: a window on one card and none on the other would be worth
/// nothing.
fn together(node: &Node) {
    let (one, two) = (on_two(node, "one", "40%"), on_two(node, "two", "30%"));
    let from_us = now_us();
    eventually("both have their shares of both cards", || {
        let right = |container: &Container<'_>, card, percent: f64| {
            let share = share(&container.stdio, card, from_us, Duration::from_secs(3));
            share.is_some_and(|share| around(percent).contains(&share))
        };
        let all = [(&one, 40.0), (&two, 30.0)]
            .iter()
            .all(|(container, percent)| right(container, 0, *percent) && right(container, 1, *percent));
        all.then_some(())
    });
    for container in [&one, &two] {
        // While the machine is busy, the one card's edge may be later than the other's; not for
        // ever.
        eventually("it runs on both cards at once", || {
            let mut recent = samples(&container.stdio);
            let recent = recent.split_off(recent.len().saturating_sub(SOME));
            let gains = recent.windows(2).map(|pair| {
                let gain = |card: usize| pair[1].executed_us[card] - pair[0].executed_us[card];
                (gain(0), gain(1))
            });
            let (both, either) =
                gains.fold((0, 0), |(both, either), (one, other)| (both + one.min(other), either + one.max(other)));
            // Of windows that know nothing of each other, it would be a quarter at the most.
            (recent.len() == SOME && both * 2 >= either).then_some(())
        });
    }
    end([one, two]);
}
