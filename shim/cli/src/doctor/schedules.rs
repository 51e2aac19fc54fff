//! Check that containers that share cards are scheduled as granted.

use std::{collections::BTreeMap, time::Duration};

use ledger::{CardGrant, ContainerName, Record};
use runtime_config::{Config, request::CardPolicy};
use schedule::{
    CardStatus, Running, Status, now_us,
    policy::{is_hard_cap, rules},
};

use super::{Check, plural, state};
use crate::schedules::Schedules;

const SCHEDULES: &str = "schedules";
/// Late edges that are tolerated, of a thousand.
const LATE_PER_MILLE: u64 = 10;
/// Lost turns that are tolerated, of a thousand of the time on the card, and slow edges, of a
/// thousand: short turns lose more than that where no call waits.
const LOST_PER_MILLE: u64 = 10;
const SLOW_PER_MILLE: u64 = 10;
/// All of a card, but for what cannot be divided.
const ALL_PERCENT: f64 = 99.0;
/// Part of a card's time that may be lost in switches between its containers.
const SWITCHES_PERCENT: f64 = 10.0;
/// Delay of a status that even a busy host does not explain.
const LATE_STATUS: Duration = Duration::from_secs(1);

/// Checks the schedules; none: no container shares a card.
pub(super) fn checks(config: &Config) -> impl Iterator<Item = Check> {
    let records = state::records(&config.state_dir);
    let (schedules, _) = Schedules::read(&config.state_dir, &records);
    let kept = kept(&records, &schedules).into_iter();
    kept.chain(idle_time(&records, &schedules)).chain(switches(&records, &schedules))
}

/// Tells on which cards a policy holds each container to a part, and nobody has the rest.
fn idle_time(records: &[Record], schedules: &Schedules) -> Option<Check> {
    let mut cards: BTreeMap<u32, (&str, usize, f64)> = BTreeMap::new();
    for record in records {
        // Where there are caps, who asked for them knows of them.
        let held = |grant: &&CardGrant| grant.is_shared() && !rules(grant.policy).takes_caps && is_hard_cap(grant);
        for grant in record.cards.iter().filter(held) {
            let (_, containers, percent) = cards.entry(grant.index).or_insert((grant.policy.name(), 0, 0.0));
            *containers += 1;
            *percent += schedules.time(record, &grant.uuid).granted_percent.unwrap_or(0.0);
        }
    }
    let tell = |(index, (policy, containers, percent)): (u32, (&str, usize, f64))| {
        let containers = plural(containers, "container");
        let rest = format!("the rest lies idle; under `egpu policy {index} preemptive` they would share it");
        (percent < ALL_PERCENT)
            .then(|| format!("{policy} holds the {containers} of card {index} to {percent:.1}% together: {rest}"))
    };
    let told: Vec<String> = cards.into_iter().filter_map(tell).collect();
    (!told.is_empty()).then(|| Check::ok("idle time", told.join("; ")))
}

/// Tells which cards lose much of their time in switches between their containers.
fn switches(records: &[Record], schedules: &Schedules) -> Option<Check> {
    let cards: BTreeMap<&str, &CardGrant> =
        records.iter().flat_map(|record| &record.cards).map(|grant| (grant.uuid.as_str(), grant)).collect();
    let tell = |(uuid, grant): (&str, &CardGrant)| {
        let percent = schedules.switching_percent(records, uuid).filter(|percent| *percent > SWITCHES_PERCENT)?;
        let has_caps =
            || records.iter().flat_map(|record| &record.cards).any(|one| one.uuid == uuid && is_hard_cap(one));
        let help = if rules(grant.policy).promises_time() || has_caps() {
            format!("`egpu policy {} --period` with a longer period makes turns longer", grant.index)
        } else if matches!(grant.policy, CardPolicy::Adaptive | CardPolicy::Fixed) {
            "turns would waste more, or one of its containers has several cards; another card for one of them helps"
                .to_owned()
        } else {
            format!("under `egpu policy {} adaptive` its containers would take turns", grant.index)
        };
        Some((format!("card {} loses {percent:.1}% of its time in switches between its containers", grant.index), help))
    };
    let (told, helps): (Vec<String>, Vec<String>) = cards.into_iter().filter_map(tell).unzip();
    (!told.is_empty()).then(|| Check::warning("switches", told.join("; "), helps.join("; ")))
}

fn kept(records: &[Record], schedules: &Schedules) -> Option<Check> {
    let now = now_us();
    let reported = |record: &Record| Some((ContainerName::from(record).to_string(), schedules.status(record)?.clone()));
    let all: Vec<(String, Status)> = records.iter().filter_map(reported).collect();
    if all.is_empty() { None } else { Some(assess(&all, now)) }
}

fn assess(all: &[(String, Status)], now_us: u64) -> Check {
    let named = |is_so: &dyn Fn(&Status) -> bool| {
        let names: Vec<&str> = all.iter().filter(|(_, status)| is_so(status)).map(|(name, _)| name.as_str()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let any = |is_so: fn(&CardStatus) -> bool| named(&|status| status.cards.iter().any(is_so));
    let is_late = |status: &Status| status.late_by(now_us).is_some_and(|(late, _)| late > LATE_STATUS);
    if let Some(names) = named(&is_late) {
        return Check::warning(
            SCHEDULES,
            format!("the mediators of {names} have not reported in time"),
            "their shims end them if they have stalled; if they keep running, this node has no free processor",
        );
    }
    if let Some(names) = any(|card| card.running == Running::Degraded) {
        return Check::warning(
            SCHEDULES,
            format!("{names} cannot be taken off their cards: their shares are weights only"),
            "the log names the driver call that failed; restart them once that is fixed",
        );
    }
    if let Some(names) = any(|card| card.late_edges * 1000 > card.edges * LATE_PER_MILLE) {
        return Check::warning(
            SCHEDULES,
            format!("turns of {names} begin or end late by more than a millisecond, more often than one in a hundred"),
            "leave this node a free processor; `egpu inspect` shows the delay",
        );
    }
    let is_losing = |card: &CardStatus| {
        card.lost_us * 1000 > card.open_us * LOST_PER_MILLE && card.slow_edges * 1000 > card.edges * SLOW_PER_MILLE
    };
    if let Some(names) = any(is_losing) {
        return Check::warning(
            SCHEDULES,
            format!("{names} lose more than one per cent of their turns, since calls to the driver wait for its locks"),
            "programs that start or end outside egpu hold them, on any card: turn persistence mode on, and look for CUDA \
             programs that restart and for nvidia-smi in loops; `egpu inspect` shows what is lost",
        );
    }
    Check::ok(SCHEDULES, format!("{} scheduled as granted", plural(all.len(), "container")))
}

#[cfg(test)]
mod tests {
    use runtime_config::request::ComputeShare;

    use super::*;
    use crate::{doctor::Level, test_support};

    #[test]
    fn what_a_policy_leaves_idle_is_told() {
        let mut node = test_support::node();
        let told = |node: &crate::node::Node| idle_time(&node.records, &node.schedules).map(|check| check.detail);
        assert_eq!(told(&node), None, "who asked for a cap knows");
        let grant = &mut node.records[0].cards[0];
        (grant.policy, grant.compute) = (CardPolicy::Fair, ComputeShare::Unlimited);
        assert_eq!(
            told(&node).unwrap(),
            "fair holds the 1 container of card 0 to 10.0% together: the rest lies idle; under `egpu policy 0 \
             preemptive` they would share it"
        );
        node.records[0].cards[0].policy = CardPolicy::Preemptive;
        assert_eq!(told(&node), None);
    }

    #[test]
    fn a_card_that_loses_its_time_in_switches_is_told_with_what_helps() {
        let mut node = test_support::node();
        node.records[0].cards[0].policy = CardPolicy::Soft;
        let told = |node: &crate::node::Node| switches(&node.records, &node.schedules);
        assert!(told(&node).is_none(), "0.2 percent");
        node.schedules.status.values_mut().next().unwrap().cards[0].switching_1s_us = Some(123_000);
        let check = told(&node).unwrap();
        assert_eq!(check.detail, "card 0 loses 12.3% of its time in switches between its containers");
        assert!(check.remedy.unwrap().contains("egpu policy 0 adaptive"));
    }

    #[test]
    fn what_keeps_a_container_from_its_turns_is_named() {
        let reported = |card: CardStatus, next_by_us| {
            let status = Status { next_by_us, cards: vec![card], ..Status::default() };
            assess(&[("default/a".to_owned(), status)], 5_000_000)
        };
        let good = CardStatus { edges: 1000, late_edges: 10, ..CardStatus::default() };
        assert_eq!(reported(good.clone(), Some(4_900_000)).detail, "1 container scheduled as granted");
        assert_eq!(reported(good.clone(), None).level, Level::Ok);
        assert!(reported(good.clone(), Some(3_000_000)).detail.contains("default/a have not reported in time"));
        let degraded = CardStatus { running: Running::Degraded, ..good.clone() };
        assert!(reported(degraded, None).detail.contains("weights only"));
        let slow = CardStatus { slow_edges: 40, open_us: 1_000_000, lost_us: 9_000, ..good.clone() };
        assert_eq!(reported(slow.clone(), None).level, Level::Ok, "what was lost was made up");
        assert!(reported(CardStatus { lost_us: 11_000, ..slow }, None).detail.contains("lose more than one per cent"));
        let late = CardStatus { late_edges: 11, ..good };
        assert!(reported(late, None).detail.contains("late by more than a millisecond"));
    }
}
