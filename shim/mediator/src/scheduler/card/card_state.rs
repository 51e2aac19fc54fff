//! State of the container on the card, as it is published.

use driver::thread_cost;
use mediator::Seen;
use schedule::{CardStatus, Running, meter::Measured};

use super::CardScheduler;
use crate::scheduler::{clock::Clock, share_terms::Sharing, usage_sums::UsageSource};

/// Interval at which the state is published at least, while there are channels.
const PUBLISH_INTERVAL_US: u64 = 250_000;

impl<C: Clock> CardScheduler<C> {
    /// Publishes the state, if it is time. Returns the instant of the next publication.
    pub(super) fn publish(&mut self) -> u64 {
        let now_us = self.clock.now_us();
        if now_us >= self.publish_us {
            self.publish_us = now_us + PUBLISH_INTERVAL_US;
            self.usage_sums.add_elapsed(now_us);
            if self.has_neighbours() {
                self.residency_view.read_log();
            }
            // A window of its own is counted when it is over: only then is known whether anything
            // ran.
            if self.has_neighbours() || !self.has_windows(now_us) {
                self.count();
            }
            let seen = self.report_measured(now_us);
            if !self.has_windows(now_us) {
                self.usage_sums.add_work(&seen.worked);
            } else if self.is_use_attributable() {
                self.usage_sums.sample(now_us);
            }
            let achieved = self.usage_sums.achieved_ppm(now_us);
            let mut status = self.status(now_us, achieved);
            status.utilization_ppm = seen.utilization_ppm;
            self.status_page.publish(self.place.index, status, Some(self.publish_us));
        }
        self.publish_us
    }

    fn is_quiet(&self) -> Option<bool> {
        if self.is_awake { self.waiting.is_quiet() } else { Some(true) }
    }

    /// Looks whether it waits for the card, if it is time. Returns the instant of the next look.
    pub(super) fn look_at_waits(&mut self) -> u64 {
        let now_us = self.clock.now_us();
        if !self.may_wait(now_us) {
            self.waiting.rest(now_us);
            return u64::MAX;
        }
        if now_us < self.waiting.look_us {
            return self.waiting.look_us;
        }
        let is_open = self.pacer.is_open();
        if is_open && !self.has_neighbours() {
            // Alone in its window, until the next edge.
            self.waiting.rest(now_us);
            return u64::MAX;
        }
        let submitted = self.gate.submitted();
        let is_pending = submitted.is_some_and(|submitted| submitted.is_pending);
        let is_on = if !is_open {
            Some(false)
        } else if is_pending {
            self.residency_view.read_log().then(|| self.residency_view.is_on())
        } else {
            self.residency_view.has_log().then_some(true)
        };
        if self.waiting.look(now_us, submitted, (is_open, is_on)) && self.terms.goes_first() {
            // Those of low priority may wait for that.
            self.publish_us = 0;
        }
        self.waiting.look_us
    }

    /// Notes that it was put on the card, or taken off it. What was never looked at would have to
    /// be mapped first, for which an edge has no time.
    pub(super) fn note_edge(&mut self, at_us: u64, is_open: bool) {
        if self.may_wait(at_us) && self.waiting.is_known() {
            self.waiting.edge(at_us, self.gate.submitted(), is_open);
        }
    }

    /// Returns whether it does not always have the card.
    fn may_wait(&self, now_us: u64) -> bool {
        self.has_neighbours() || !self.pacer.timeline().is_unlimited(now_us)
    }

    /// Returns whether others may be on the card at the same time.
    fn has_neighbours(&self) -> bool {
        !self.terms.others.is_empty()
    }

    /// Returns whether it is taken off the card at times, so that it is not there without work.
    fn has_windows(&self, now_us: u64) -> bool {
        let is_held = match self.terms.sharing {
            Sharing::Windows => true,
            Sharing::Turns => !self.is_yielding,
            Sharing::Free | Sharing::Weights => false,
        };
        is_held && !self.pacer.timeline().is_unlimited(now_us)
    }

    /// Returns whether the use of the card can be attributed: no other container is on it at the
    /// same time, or there is a log of switches.
    fn is_use_attributable(&self) -> bool {
        !self.has_neighbours() || self.residency_view.has_log()
    }

    /// Counts the use of the card in windows. Without windows the samples of the driver show that,
    /// later.
    pub(super) fn count(&mut self) {
        let now_us = self.clock.now_us();
        let source = if !self.has_windows(now_us) {
            UsageSource::Nothing
        } else if self.has_neighbours() {
            UsageSource::Log
        } else if self.ran == Some(false) {
            UsageSource::Nothing
        } else {
            UsageSource::Window
        };
        self.usage_sums.count(source, self.residency_view.used_us(now_us));
    }

    /// Reports the measured use to the session, which derives the work from it.
    ///
    /// With windows, edges are not to wait for the driver, and a container without work does not
    /// come back in the next one.
    pub(super) fn report_measured(&self, now_us: u64) -> Seen {
        let in_doubt = self.is_awake && !self.has_windows(now_us);
        self.status_page.measured(self.gate.uuid(), self.measured(now_us), in_doubt)
    }

    /// Returns the most that it can have used of the card; `None`: others are there at the same
    /// time, without a log.
    fn measured(&self, now_us: u64) -> Measured {
        let log_us = || self.residency_view.used_us(now_us);
        let used_us = if self.has_neighbours() {
            log_us()
        } else if self.has_windows(now_us) {
            log_us().or(Some(self.usage_sums.open_us))
        } else {
            // The log is not read while no other container is there.
            Some(self.usage_sums.open_us)
        };
        Measured { at_us: now_us, used_us, share_ppm: self.terms.share_ppm, rests: !self.is_awake }
    }

    pub(super) fn status(&mut self, now_us: u64, [achieved_1s_ppm, achieved_60s_ppm]: [Option<u32>; 2]) -> CardStatus {
        let busy = if !self.is_awake {
            Some(false)
        } else if self.has_windows(now_us) {
            self.ran
        } else {
            self.has_neighbours().then(|| self.residency_view.is_busy(now_us, self.terms.gives_way())).flatten()
        };
        let cost = thread_cost().unwrap_or_default();
        let waited_us = self.waiting.waited_us(now_us);
        let switching_us = self.residency_view.switching_us();
        CardStatus {
            uuid: self.gate.uuid().to_owned(),
            running: self.running(now_us),
            channels: self.gate.channels(),
            groups: self.gate.groups(),
            busy,
            open_us: self.usage_sums.open_us,
            throttled_us: self.usage_sums.throttled_us,
            used_us: (!self.is_awake || self.usage_sums.is_known(now_us)).then_some(self.usage_sums.used_us),
            share_ppm: self.terms.share_ppm,
            utilization_ppm: None,
            achieved_1s_ppm,
            achieved_60s_ppm,
            window_loss_us: self.pacer.window_loss_us(),
            edges: self.edge_times.edges,
            late_edges: self.edge_times.late,
            latest_edge_us: self.edge_times.latest_us,
            lost_us: self.pacer.lost_us(),
            lost_1s_us: self.edge_times.in_last_second(now_us).lost_us,
            edge_wait_us: self.edge_times.wait_us,
            longest_edge_us: self.edge_times.longest_us,
            slow_edges: self.edge_times.slow,
            failures: self.edge_failures.failures,
            gives_way: self.gives_way(),
            waited_us: waited_us.map(|(all_us, _)| all_us),
            waited_1s_us: waited_us.map(|(_, second_us)| second_us),
            waits: self.waiting.counts().to_vec(),
            is_quiet: self.terms.goes_first().then(|| self.is_quiet()).flatten(),
            refused: self.edge_failures.refused(),
            switching_us,
            switching_1s_us: switching_us.map(|sum_us| self.switching.of(now_us, sum_us)),
            round_robin: self.agreed_turns(),
            scheduler_cpu_us: cost.cpu_us,
            scheduler_driver_cpu_us: cost.driver_us,
        }
    }

    fn running(&self, now_us: u64) -> Running {
        if self.edge_failures.is_degraded() {
            Running::Degraded
        } else if self.is_yielding {
            Running::Waiting
        } else if self.terms.sharing == Sharing::Weights {
            Running::Slices
        } else if self.pacer.timeline().is_unlimited(now_us) {
            Running::Free
        } else if self.pacer.is_open() {
            Running::Open
        } else {
            Running::Closed
        }
    }
}
