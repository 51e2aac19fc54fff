//! Arithmetic of consumable capacity, as Kubernetes' scheduler does it: what a request takes of a
//! card, and what the card has left.

use std::collections::BTreeMap;

/// Amounts by the names of capacities.
pub(crate) type Amounts = BTreeMap<String, u64>;

/// One capacity of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// All of it.
    pub(crate) value: u64,
    /// The amount that a request takes which does not name it; `None`: all.
    pub(crate) default: Option<u64>,
    pub(crate) steps: Steps,
}

/// The amounts that may be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Steps {
    Any,
    Range { min: u64, max: Option<u64>, step: Option<u64> },
    Values(Vec<u64>),
}

impl Capacity {
    /// The amount that a request takes: what it asks for, rounded up to what may be taken.
    pub(crate) fn taken(&self, asked: Option<u64>) -> u64 {
        let Some(asked) = asked else {
            return self.default.unwrap_or(self.value);
        };
        match &self.steps {
            Steps::Any => asked,
            Steps::Range { min, .. } if asked < *min => *min,
            Steps::Range { min, step: Some(step), .. } if *step > 0 => {
                min.saturating_add((asked - min).div_ceil(*step).saturating_mul(*step))
            }
            Steps::Range { .. } => asked,
            Steps::Values(values) => values.iter().copied().find(|value| *value >= asked).unwrap_or(asked),
        }
    }

    /// Returns whether that amount, rounded, may be taken.
    fn allows(&self, taken: u64) -> bool {
        if self.default == Some(taken) {
            return true;
        }
        match &self.steps {
            Steps::Any => true,
            Steps::Range { max, .. } => max.is_none_or(|max| taken <= max),
            Steps::Values(values) => values.contains(&taken),
        }
    }
}

/// The reason why a card has no room for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The card has no capacity of that name.
    Missing { name: String },
    /// An amount that may not be taken.
    NotAllowed { name: String, asked: u64 },
    /// Too little is left.
    TooLittle { name: String, needed: u64, free: u64 },
}

/// Returns what a request takes of a card with these capacities: an amount of each.
pub(crate) fn taken(capacities: &BTreeMap<String, Capacity>, asked: &Amounts) -> Amounts {
    capacities.iter().map(|(name, capacity)| (name.clone(), capacity.taken(asked.get(name).copied()))).collect()
}

/// Returns what is left of one capacity.
pub(crate) fn free(capacity: &Capacity, held: &Amounts, name: &str) -> u64 {
    capacity.value.saturating_sub(held.get(name).copied().unwrap_or(0))
}

/// Returns why a card with these capacities, of which others hold `held`, has no room; nothing: it
/// has.
pub(crate) fn shortages(capacities: &BTreeMap<String, Capacity>, held: &Amounts, asked: &Amounts) -> Vec<Shortage> {
    let missing = asked.keys().filter(|name| !capacities.contains_key(*name));
    let mut found: Vec<_> = missing.map(|name| Shortage::Missing { name: name.clone() }).collect();
    for (name, capacity) in capacities {
        let asked = asked.get(name).copied();
        let needed = capacity.taken(asked);
        let free = free(capacity, held, name);
        if let Some(asked) = asked.filter(|_| !capacity.allows(needed)) {
            found.push(Shortage::NotAllowed { name: name.clone(), asked });
        } else if needed > free {
            found.push(Shortage::TooLittle { name: name.clone(), needed, free });
        }
    }
    found
}

/// Adds what is taken to what is held.
pub(crate) fn add(held: &mut Amounts, taken: &Amounts) {
    for (name, amount) in taken {
        let held = held.entry(name.clone()).or_default();
        *held = held.saturating_add(*amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A card of egpu's: memory to the byte, compute to the percent.
    fn card() -> BTreeMap<String, Capacity> {
        let range = |min| Steps::Range { min, max: None, step: None };
        BTreeMap::from([
            ("memory".to_owned(), Capacity { value: 80 * GIB, default: Some(80 * GIB), steps: range(1) }),
            ("compute".to_owned(), Capacity { value: 100, default: Some(5), steps: range(1) }),
            ("containers".to_owned(), Capacity { value: 20, default: Some(1), steps: Steps::Values(vec![1]) }),
        ])
    }

    fn amounts(all: &[(&str, u64)]) -> Amounts {
        all.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
    }

    /// Asks in turn; what fits is held.
    fn ask(held: &mut Amounts, asked: &[(&str, u64)]) -> Vec<Shortage> {
        let asked = amounts(asked);
        let found = shortages(&card(), held, &asked);
        if found.is_empty() {
            add(held, &taken(&card(), &asked));
        }
        found
    }

    #[test]
    fn memory_is_counted_to_the_byte() {
        let mut held = Amounts::new();
        assert_eq!(ask(&mut held, &[("memory", 50 * GIB)]), []);
        assert_eq!(ask(&mut held, &[("memory", 30 * GIB - 1)]), []);
        let short = Shortage::TooLittle { name: "memory".to_owned(), needed: 2, free: 1 };
        assert_eq!(ask(&mut held, &[("memory", 2)]), [short]);
        assert_eq!(ask(&mut held, &[("memory", 1)]), []);
        assert_eq!(held, amounts(&[("memory", 80 * GIB), ("compute", 15), ("containers", 3)]));
    }

    #[test]
    fn compute_is_counted_to_the_percent() {
        let mut held = Amounts::new();
        assert_eq!(ask(&mut held, &[("memory", GIB), ("compute", 60)]), []);
        let short = |needed, free| [Shortage::TooLittle { name: "compute".to_owned(), needed, free }];
        assert_eq!(ask(&mut held, &[("memory", GIB), ("compute", 41)]), short(41, 40));
        assert_eq!(ask(&mut held, &[("memory", GIB), ("compute", 36)]), []);
        // What names none takes five, of four that are left.
        assert_eq!(ask(&mut held, &[("memory", GIB)]), short(5, 4));
        assert_eq!(ask(&mut held, &[("memory", GIB), ("compute", 0)]), [], "the smallest amount");
        assert_eq!(held["compute"], 97);
    }

    #[test]
    fn a_request_without_amounts_takes_the_whole_card() {
        let mut held = Amounts::new();
        assert_eq!(ask(&mut held, &[]), []);
        assert_eq!(held["memory"], 80 * GIB);
        let short = Shortage::TooLittle { name: "memory".to_owned(), needed: 1, free: 0 };
        assert_eq!(ask(&mut held, &[("memory", 1)]), [short]);
        // Somebody holds a byte: there is no whole card.
        let mut held = amounts(&[("memory", 1)]);
        let short = Shortage::TooLittle { name: "memory".to_owned(), needed: 80 * GIB, free: 80 * GIB - 1 };
        assert_eq!(ask(&mut held, &[]), [short]);
    }

    #[test]
    fn amounts_are_rounded_up_to_what_may_be_taken() {
        let capacity = |steps| Capacity { value: 1000, default: Some(10), steps };
        let steps = capacity(Steps::Range { min: 10, max: Some(40), step: Some(10) });
        for (asked, taken) in [(0, 10), (10, 10), (11, 20), (31, 40), (41, 50)] {
            assert_eq!(steps.taken(Some(asked)), taken, "{asked}");
        }
        assert!(steps.allows(40) && !steps.allows(50));
        let values = capacity(Steps::Values(vec![10, 30]));
        for (asked, taken, allowed) in [(1, 10, true), (11, 30, true), (31, 31, false)] {
            assert_eq!((values.taken(Some(asked)), values.allows(taken)), (taken, allowed), "{asked}");
        }
        assert_eq!(capacity(Steps::Any).taken(Some(7)), 7);
        assert_eq!(Capacity { value: 5, default: None, steps: Steps::Any }.taken(None), 5);
        let large = capacity(Steps::Range { min: 1, max: None, step: Some(u64::MAX) });
        assert_eq!(large.taken(Some(3)), u64::MAX);
    }

    #[test]
    fn what_a_card_has_not_cannot_be_asked_for() {
        let missing = Shortage::Missing { name: "cores".to_owned() };
        assert_eq!(ask(&mut Amounts::new(), &[("memory", 1), ("cores", 1)]), [missing]);
        let refused = Shortage::NotAllowed { name: "containers".to_owned(), asked: 2 };
        assert_eq!(ask(&mut Amounts::new(), &[("memory", 1), ("containers", 2)]), [refused]);
    }

    /// Grants outside Kubernetes are taken off the value: a whole card is then none, if
    /// the default stays that of the whole card.
    #[test]
    fn a_default_may_exceed_what_is_offered() {
        let capacity = Capacity { value: 70, default: Some(80), steps: Steps::Range { min: 1, max: None, step: None } };
        let capacities = BTreeMap::from([("memory".to_owned(), capacity)]);
        let short = Shortage::TooLittle { name: "memory".to_owned(), needed: 80, free: 70 };
        assert_eq!(shortages(&capacities, &Amounts::new(), &Amounts::new()), [short]);
        assert_eq!(shortages(&capacities, &Amounts::new(), &amounts(&[("memory", 70)])), []);
    }
}
