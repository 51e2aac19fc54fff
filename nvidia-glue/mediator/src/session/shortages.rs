//! Calls that were refused for want of something that is no card memory of the container's: bounds
//! of what it may have, room of the mediator's, memory of the driver's own.
//!
//! The first of a kind is told at once, the others each ten seconds in one sum: a program that asks
//! in a loop fills no log, and none is refused without a word.

use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{Session, Shortage, locks::lock};

/// Time between two reports of a kind.
const EVERY: Duration = Duration::from_secs(10);
/// So many kinds are told each by itself.
const MOST: usize = 32;
const OTHERS: &str = "more kinds of calls than are told one by one were refused for want of something";

/// Those of one container.
#[derive(Debug, Default)]
pub(crate) struct Shortages {
    kinds: Mutex<HashMap<String, Untold>>,
    bounds: AtomicU64,
    driver: AtomicU64,
}

/// Refusals of a kind since it was told.
#[derive(Debug)]
struct Untold {
    count: u64,
    next: Duration,
}

impl Shortages {
    /// Counts one; returns what is to be told now.
    pub(crate) fn add(&self, mut text: String, of_the_driver: bool, now: Duration) -> Option<Shortage> {
        let counter = if of_the_driver { &self.driver } else { &self.bounds };
        counter.fetch_add(1, Ordering::Relaxed);
        let mut kinds = lock(&self.kinds);
        if kinds.len() >= MOST && !kinds.contains_key(&text) {
            OTHERS.clone_into(&mut text);
        }
        match kinds.get_mut(&text) {
            Some(untold) => {
                untold.count = untold.count.saturating_add(1);
                None
            }
            None => {
                kinds.insert(text.clone(), Untold { count: 0, next: now.saturating_add(EVERY) });
                Some(Shortage { text, count: 1 })
            }
        }
    }

    /// Returns the sums that are due; a kind of which nothing came is the first again.
    fn due(&self, now: Duration) -> Vec<Shortage> {
        let mut due = Vec::new();
        lock(&self.kinds).retain(|text, untold| {
            if now < untold.next {
                return true;
            }
            let count = std::mem::take(&mut untold.count);
            untold.next = now.saturating_add(EVERY);
            if count > 0 {
                due.push(Shortage { text: text.clone(), count });
            }
            count > 0
        });
        due
    }

    /// Returns how many there were of bounds, and of the driver's own.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.bounds.load(Ordering::Relaxed), self.driver.load(Ordering::Relaxed))
    }
}

impl Session {
    /// Tells the observer of refusals whose time has come; at the end, of all.
    pub(crate) fn tell_shortages(&self, now: Duration) {
        self.shortages.due(now).iter().for_each(|shortage| self.observer.shortage(shortage));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_at_once_and_the_others_each_ten_seconds() {
        let shortages = Shortages::default();
        let mut told = Vec::new();
        for tenth in 0..250 {
            let now = Duration::from_millis(tenth * 100);
            told.extend((0..100).filter_map(|_| shortages.add("channels".to_owned(), false, now)));
            told.extend(shortages.due(now));
        }
        told.extend(shortages.due(Duration::MAX));
        assert_eq!(told.iter().map(|told| told.count).collect::<Vec<_>>(), [1, 10_099, 10_000, 4900]);
        assert_eq!(shortages.counts(), (25_000, 0));
        assert_eq!(shortages.due(Duration::MAX), [], "nothing came since");
        assert!(shortages.add("channels".to_owned(), true, Duration::ZERO).is_some(), "the first again");
        assert_eq!(shortages.counts(), (25_000, 1));
    }

    #[test]
    fn however_many_kinds_there_are_so_many_are_told() {
        let shortages = Shortages::default();
        let add = |kind: usize| shortages.add(kind.to_string(), true, Duration::ZERO);
        let told: Vec<Shortage> = (0..1000).filter_map(add).collect();
        assert_eq!(told.len(), MOST + 1);
        assert_eq!(told.last().map(|told| told.text.as_str()), Some(OTHERS));
    }
}
