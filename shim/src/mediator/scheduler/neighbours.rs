//! What is known of the others on a card: shares among them, and whether they want it.

use std::path::Path;

use nvidia_glue::{
    inject::status_file,
    schedule::{CardStatus, Neighbour, StatusFile},
};
use runtime_config::request::Priority;

/// A time slice, on average over all who share the card: what CUDA sets for itself.
const SLICE_US: u64 = 2_048;
/// Shorter ones cost more in changes from one to another than they are worth.
const LEAST_SLICE_US: u64 = 200;
const MOST_SLICE_US: u64 = 30_000;

/// The time slice of each of a container's channel groups: its weight's part of what all have together, divided among its own
/// groups, each of which gets a slice of its own.
pub(super) fn slice_us(weight: u32, neighbours: &[Neighbour], groups: usize) -> u64 {
    let own = u64::from(weight.max(1));
    let all = neighbours.iter().fold(own, |sum, other| sum.saturating_add(u64::from(other.weight)));
    let count = 1 + neighbours.len() as u64;
    let slice = SLICE_US.saturating_mul(count).saturating_mul(own) / all / (groups.max(1) as u64);
    slice.clamp(LEAST_SLICE_US, MOST_SLICE_US)
}

/// Whether anybody who goes before the container has work for the card, as far as they tell.
pub(super) fn is_wanted(state_dir: &Path, neighbours: &[Neighbour], uuid: &str) -> bool {
    neighbours
        .iter()
        .filter(|other| other.priority == Priority::High)
        .filter_map(|other| card_status(state_dir, &other.grant_id, uuid))
        .any(|card| card.channels > 0 && card.busy == Some(true))
}

/// What a neighbour tells of a card. One that has just come or gone tells nothing.
fn card_status(state_dir: &Path, grant_id: &str, uuid: &str) -> Option<CardStatus> {
    let status = StatusFile::read(&status_file(state_dir, grant_id).ok()?).ok()?;
    status.cards.into_iter().find(|card| card.uuid == uuid)
}

#[cfg(test)]
mod tests {
    use nvidia_glue::schedule::Status;

    use super::*;

    fn other(grant_id: &str, priority: Priority, weight: u32) -> Neighbour {
        Neighbour { grant_id: grant_id.into(), priority, weight }
    }

    #[test]
    fn slices_are_as_weights_whatever_the_number_of_groups() {
        let one = slice_us(1, &[other("b", Priority::High, 2)], 1);
        let two = slice_us(2, &[other("a", Priority::High, 1)], 1);
        assert_eq!((one, two), (1365, 2730));
        assert_eq!(slice_us(2, &[other("a", Priority::High, 1)], 10), 273);
        assert_eq!(slice_us(1, &[], 0), 2048);
        assert_eq!(slice_us(0, &[other("a", Priority::High, u32::MAX)], 1), LEAST_SLICE_US);
    }

    #[test]
    fn only_work_of_higher_priority_counts() {
        let directory = tempfile::tempdir().unwrap();
        let tell = |grant: &str, busy, channels| {
            let path = status_file(directory.path(), grant).unwrap();
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let card = CardStatus { uuid: "GPU-a".into(), busy, channels, ..CardStatus::default() };
            let status = Status { cards: vec![card], ..Status::default() };
            StatusFile::create(&path).unwrap().write(&status).unwrap();
        };
        let wanted = |priority| is_wanted(directory.path(), &[other("b", priority, 1)], "GPU-a");
        assert!(!wanted(Priority::High), "it tells nothing");
        for (busy, channels, expected) in
            [(Some(true), 1, true), (Some(true), 0, false), (Some(false), 1, false), (None, 1, false)]
        {
            tell("b", busy, channels);
            assert_eq!(wanted(Priority::High), expected, "{busy:?} {channels}");
        }
        tell("b", Some(true), 1);
        assert!(!wanted(Priority::Low));
    }
}
