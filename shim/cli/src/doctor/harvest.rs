//! Check that containers of low priority have the breaks of others, where that is set.

use ledger::{ContainerName, Record};
use runtime_config::{Config, config::PriorityMode};
use schedule::Status;

use super::{Check, state};
use crate::schedules::Schedules;

const LOW_PRIORITY: &str = "low priority";

/// Checks it; `None`: nobody has less than what is set.
pub(super) fn check(config: &Config) -> Option<Check> {
    let records = state::records(&config.state_dir);
    let (schedules, _) = Schedules::read(&config.state_dir, &records);
    let reported = |record| Some((record, schedules.status(record)?));
    assess(config.priority, records.iter().filter_map(reported))
}

fn assess<'a>(set: PriorityMode, all: impl Iterator<Item = (&'a Record, &'a Status)>) -> Option<Check> {
    let strict = |(record, status): (&Record, &Status)| {
        let is_strict = |uuid: &str| {
            status.cards.iter().any(|card| card.uuid == uuid && card.gives_way == Some(PriorityMode::Strict))
        };
        let grants = record.cards.iter().filter(|grant| is_strict(&grant.uuid));
        let cards: Vec<String> = grants.map(|grant| grant.index.to_string()).collect();
        (!cards.is_empty()).then(|| format!("{} (card {})", ContainerName::from(record), cards.join(", ")))
    };
    let names: Vec<String> = all.filter_map(strict).collect();
    if set != PriorityMode::Harvest || names.is_empty() {
        return None;
    }
    let detail = format!(
        "priority = \"harvest\" is set, but strict for {}: the card does not tell who has it, or does not take such time \
         slices, or they were created under \"strict\"",
        names.join(", ")
    );
    let remedy = "create anew those that are older than the setting; where the card is the reason, weights (policy soft) \
                  give them more of it than low priority does";
    Some(Check::warning(LOW_PRIORITY, detail, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{doctor::Level, test_support};

    #[test]
    fn who_is_strict_against_the_setting_is_named_with_its_card() {
        let node = test_support::node();
        let record = &node.records[0];
        let of = |set, gives_way| {
            let mut status = node.schedules.status(record).unwrap().clone();
            status.cards[0].gives_way = gives_way;
            assess(set, [(record, &status)].into_iter())
        };
        let strict = of(PriorityMode::Harvest, Some(PriorityMode::Strict)).unwrap();
        assert_eq!(strict.level, Level::Warning);
        assert!(strict.detail.contains("strict for default/training (card 0): "), "{strict:?}");
        assert!(strict.remedy.unwrap().starts_with("create anew"));
        assert_eq!(of(PriorityMode::Strict, Some(PriorityMode::Strict)), None, "as is set");
        assert_eq!(of(PriorityMode::Harvest, Some(PriorityMode::Harvest)), None);
        assert_eq!(of(PriorityMode::Harvest, None), None);
    }
}
