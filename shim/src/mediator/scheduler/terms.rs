//! What the timetable says of a container on a card beside when it runs.

use std::sync::Arc;

use nvidia_glue::schedule::{Neighbour, Pass, Timetable};
use runtime_config::request::Priority;

/// Where nobody has said how long a period is.
const PERIOD_US: u64 = 100_000;

/// What holds now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Terms {
    /// Weight among those who share the card by time slices; `None`: it is not shared so.
    pub(super) weight: Option<u32>,
    pub(super) period_us: u64,
    /// Millionths of the card's time.
    pub(super) share_ppm: u32,
    pub(super) priority: Priority,
    pub(super) neighbours: Vec<Neighbour>,
    /// When other terms hold; `None`: when there is another timetable.
    pub(super) until_us: Option<u64>,
}

impl Default for Terms {
    fn default() -> Self {
        let priority = Priority::High;
        Self { weight: None, period_us: PERIOD_US, share_ppm: 0, priority, neighbours: Vec::new(), until_us: None }
    }
}

impl Terms {
    pub(super) fn at(table: Option<&Arc<Timetable>>, grant_id: &str, uuid: &str, now_us: u64) -> Self {
        let Some(table) = table else { return Self::default() };
        let (epoch, until_us) = table.at(now_us);
        let turn = epoch.and_then(|epoch| epoch.turn(grant_id));
        let Some((turn, card)) = turn.and_then(|turn| Some((turn, turn.card(uuid)?))) else {
            return Self { until_us, ..Self::default() };
        };
        Self {
            weight: match card.pass {
                Pass::Weight(weight) => Some(weight),
                Pass::Free | Pass::Windows(_) => None,
            },
            period_us: turn.period_us,
            share_ppm: card.share_ppm,
            priority: turn.priority,
            neighbours: card.neighbours.clone(),
            until_us,
        }
    }

    /// Others go before it.
    pub(super) fn gives_way(&self) -> bool {
        self.priority == Priority::Low && self.neighbours.iter().any(|other| other.priority == Priority::High)
    }
}
