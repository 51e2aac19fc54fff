//! Use and limits of the container's cards.

use std::sync::atomic::Ordering;

use account::Card;
use base::{
    Bytes,
    usage::{CardUsage, ProcessUsage, Usage},
};

use crate::{locks::lock, session::Session};

/// A card that a change of limits names is none of the container's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the container has no card {0}")]
pub struct NotGranted(pub String);

impl Session {
    /// Returns the container's present usage.
    pub fn usage(&self) -> Usage {
        let (cards, users, pinned_memory) = {
            let mut accounts = lock(&self.objects.accounts);
            let cards = accounts.cards().map(|(card, usage)| (card, usage, accounts.channels(card)));
            let (cards, users): (Vec<_>, Vec<_>) = (cards.collect(), accounts.users().collect());
            let kept = accounts.kept_by_pins();
            let host = accounts.card(Card::HOST).map(|host| (Bytes(host.used.0.saturating_add(kept.0)), host.limit));
            (cards, users, host.unwrap_or_default())
        };
        let (refused_by_bounds, refused_by_driver) = self.shortages.counts();
        let denials = cards.iter().fold(0_u64, |sum, (_, usage, _)| sum.saturating_add(usage.denials));
        let of_card = |(card, usage, channels): (Card, account::CardUsage, (u32, u32))| CardUsage {
            uuid: self.grant.uuid(card).to_owned(),
            used: usage.used,
            limit: usage.limit,
            peak: usage.high_water,
            channels_used: channels.0,
            channels_limit: channels.1,
        };
        let process_table = lock(&self.process_table);
        let mut processes: Vec<ProcessUsage> = process_table
            .pids()
            .into_iter()
            .map(|pid| ProcessUsage {
                pid: pid.0,
                pid_in_container: process_table.pid_in_container(pid).unwrap_or(0),
                cards: users
                    .iter()
                    .filter(|(user, ..)| *user == pid)
                    .map(|(_, card, used)| (self.grant.uuid(*card).to_owned(), *used))
                    .collect(),
            })
            .collect();
        drop(process_table);
        processes.sort_by_key(|process| process.pid);
        Usage {
            cards: cards.into_iter().map(of_card).collect(),
            processes,
            denials,
            refused_by_bounds,
            refused_by_driver,
            pinned_memory_used_bytes: pinned_memory.0,
            pinned_memory_limit_bytes: pinned_memory.1,
            kills: self.counters.kills.load(Ordering::Relaxed),
            unknown_passed: self.counters.unknown_passed.load(Ordering::Relaxed),
            unknown_refused: self.counters.unknown_refused.load(Ordering::Relaxed),
            calls: self.counters.calls.load(Ordering::Relaxed),
            // Its process knows.
            mediator: None,
        }
    }

    /// New limits, by card UUID; cards that are not named keep theirs. A limit below what is used
    /// refuses what is asked from then on; nothing is taken away.
    ///
    /// # Errors
    /// When a card is none of the container's; then no limit has changed.
    pub fn set_limits(&self, limits: &[(String, Bytes)]) -> Result<(), NotGranted> {
        let named = |(uuid, limit): &(String, Bytes)| {
            self.grant.by_uuid(uuid).map(|card| (card, *limit)).ok_or_else(|| NotGranted(uuid.clone()))
        };
        let limits = limits.iter().map(named).collect::<Result<Vec<_>, _>>()?;
        let mut accounts = lock(&self.objects.accounts);
        for (card, limit) in limits {
            // Every card of the grant has an account.
            let _ = accounts.set_limit(card, limit);
        }
        Ok(())
    }
}
