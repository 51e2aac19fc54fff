//! What is told of how the container stands on the card.

use nvidia_glue::schedule::{CardStatus, Running, meter::Measured};

use super::CardScheduler;
use crate::mediator::scheduler::{clock::Clock, tally::Source, terms::Sharing};

/// How often something is told at least while there are channels.
const TELLING_US: u64 = 250_000;

impl<C: Clock> CardScheduler<C> {
    /// Tells how it stands, if it is time. When to tell again.
    pub(super) fn tell(&mut self) -> u64 {
        let now_us = self.clock.now_us();
        if now_us >= self.tell_us {
            self.tell_us = now_us + TELLING_US;
            self.tally.add_up(now_us);
            if self.has_company() {
                self.sight.take();
            }
            // A window is counted when it is over: only then is known whether anything ran.
            if self.has_company() || self.terms.sharing != Sharing::Windows {
                self.count();
            }
            let achieved = match self.used_us() {
                Some(used_us) => self.tally.achieved_ppm(now_us, used_us),
                None => [None; 2],
            };
            let mut status = self.status(now_us, achieved);
            status.utilization_ppm = self.board.measured(&status, self.measured(now_us));
            self.board.tell(self.place.index, status, Some(self.tell_us));
        }
        self.tell_us
    }

    /// Others may be on the card at the same time.
    fn has_company(&self) -> bool {
        !self.terms.others.is_empty()
    }

    /// Counts what it used of the card.
    pub(super) fn count(&mut self) {
        let log_us = self.sight.used_us(self.clock.now_us());
        let source = match self.terms.sharing {
            _ if self.has_company() => Source::Log,
            Sharing::Windows if self.ran == Some(false) => Source::Nothing,
            Sharing::Free | Sharing::Windows | Sharing::Weights => Source::OnCard,
        };
        self.tally.count(source, log_us);
    }

    /// What it used of the card; `None`: others use it at the same time, and nobody can tell.
    fn used_us(&self) -> Option<u64> {
        (!self.has_company() || self.sight.has_log()).then_some(self.tally.used_us)
    }

    /// What it used of the card, whoever else uses it.
    pub(super) fn measured(&self, now_us: u64) -> Measured {
        // Where only its own windows are, the time in them is the most that it can have been; where there is no log, and others are on the
        // card at the same time, nobody can tell.
        let is_alone = self.terms.sharing == Sharing::Windows && !self.has_company();
        let used_us = self.sight.used_us(now_us).or_else(|| is_alone.then_some(self.tally.open_us));
        Measured { at_us: now_us, used_us, share_ppm: self.terms.share_ppm, rests: !self.is_awake }
    }

    pub(super) fn status(&self, now_us: u64, [achieved_1s_ppm, achieved_60s_ppm]: [Option<u32>; 2]) -> CardStatus {
        let busy = match self.terms.sharing {
            _ if !self.is_awake => Some(false),
            Sharing::Windows => self.ran,
            Sharing::Free | Sharing::Weights => self.sight.is_busy(now_us),
        };
        CardStatus {
            uuid: self.gate.uuid().to_owned(),
            running: self.running(now_us),
            channels: self.gate.channels(),
            groups: self.gate.groups(),
            busy,
            open_us: self.tally.open_us,
            throttled_us: self.tally.throttled_us,
            used_us: self.used_us(),
            share_ppm: self.terms.share_ppm,
            utilization_ppm: None,
            achieved_1s_ppm,
            achieved_60s_ppm,
            window_loss_us: self.pacer.window_loss_us(),
            edges: self.edges.all,
            late_edges: self.edges.late,
            latest_edge_us: self.edges.latest_us,
            failures: self.trouble.failures,
            refused: self.trouble.refused(),
        }
    }

    fn running(&self, now_us: u64) -> Running {
        if self.trouble.is_degraded() {
            Running::Degraded
        } else if self.is_held {
            Running::Waiting
        } else if self.terms.sharing == Sharing::Weights {
            Running::Slices
        } else if self.pacer.course().is_unlimited(now_us) {
            Running::Free
        } else if self.pacer.is_open() {
            Running::Open
        } else {
            Running::Closed
        }
    }
}
