//! Status of a mediator's scheduling: for its shim, to the mediators that share its cards, and to
//! whoever asks.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::round_robin::RoundRobin;
use base::{
    Format, PriorityMode,
    block_file::{BlockFile, Published},
};

/// The file of [`Status`], beside the container's usage file.
pub type StatusFile = BlockFile<Status>;

impl Published for Status {
    const FORMAT: Format = Format::new(4, 3);
}

/// Status of a mediator's scheduling.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Time of writing (`now_us`).
    pub written_us: u64,
    /// Latest time of the next writing; `None`: not before something happens, as there is nothing
    /// to schedule. Whoever finds it passed by two periods has found a mediator that has stalled.
    pub next_by_us: Option<u64>,
    /// The mediator's process id, by which the driver's log of switches names the container
    /// ([`Switch::process`](crate::Switch::process)). 0: it does not know how the initial namespace
    /// numbers it.
    pub process: u32,
    /// Processes of the container have the driver open (policy `preemptive` counts those).
    pub has_processes: bool,
    /// Priority of the threads that begin and end turns; `None`: an older mediator, which does not
    /// say.
    #[serde(default)]
    pub priority: Option<ThreadPriority>,
    /// Card by card, in the container's order.
    pub cards: Vec<CardStatus>,
}

/// Priority of a mediator's threads that begin and end turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadPriority {
    /// The lowest real-time one.
    RealTime,
    /// The highest of the others (nice -20), which weighs within the shim's cgroup only: some
    /// kernels give no real-time one to a cgroup without a budget for it
    /// (`CONFIG_RT_GROUP_SCHED`).
    Nice,
    /// The kernel grants neither.
    None,
}

impl Status {
    /// Delay of the next status, and the interval at which they come; `None`: it is not late.
    pub fn late_by(&self, now_us: u64) -> Option<(Duration, Duration)> {
        let due_us = self.next_by_us?;
        let late_us = now_us.checked_sub(due_us).filter(|late_us| *late_us > 0)?;
        let interval_us = due_us.saturating_sub(self.written_us);
        Some((Duration::from_micros(late_us), Duration::from_micros(interval_us)))
    }
}

/// A container's time on one card, as far as it is known. Sums grow from the container's start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardStatus {
    /// `GPU-...`.
    pub uuid: String,
    /// Its state now.
    pub running: Running,
    /// Channels and compute channel groups that are scheduled.
    pub channels: usize,
    /// Compute channel groups.
    pub groups: usize,
    /// True if it has work for the card, as far as is known; `None`: not known.
    pub busy: Option<bool>,
    /// Time during which its channels were on the card.
    pub open_us: u64,
    /// Time during which it had channels, and they were off the card.
    pub throttled_us: u64,
    /// Card time that it used: its windows in which anything ran; where it has none, its time on
    /// the compute engine, but no more than the card was busy. `None`: its windows are others',
    /// too, and there is no log of the card's switches; or the driver does not say how busy the
    /// card is.
    pub used_us: Option<u64>,
    /// Its grant of the card's time, in millionths.
    pub share_ppm: u32,
    /// Utilization in the last second, of what it was granted, in millionths: what it sees of the
    /// card's utilization. `None`: not known.
    pub utilization_ppm: Option<u32>,
    /// Part of [`CardStatus::used_us`] that came in the last second and the last minute that are
    /// known, in millionths of the card's time.
    pub achieved_1s_ppm: Option<u32>,
    pub achieved_60s_ppm: Option<u32>,
    /// Mean loss of its recent windows; `None`: not known.
    #[serde(default)]
    pub window_loss_us: Option<u64>,
    /// Edges so far, how many began late by more than a millisecond, and the latest.
    pub edges: u64,
    pub late_edges: u64,
    /// Microseconds.
    pub latest_edge_us: u64,
    /// Time of its turns that it did not get, and will not: what was made up later does not count.
    #[serde(default)]
    pub lost_us: u64,
    /// Part of it that was lost in the last second.
    #[serde(default)]
    pub lost_1s_us: u64,
    /// Time for which the calls of its edges waited in the driver: what each took beyond 2 ms.
    #[serde(default)]
    pub edge_wait_us: u64,
    /// Longest time that the calls of an edge took.
    #[serde(default)]
    pub longest_edge_us: u64,
    /// Edges with a call that took more than 5 ms.
    #[serde(default)]
    pub slow_edges: u64,
    /// Calls of the driver's that failed, in all.
    pub failures: u64,
    /// Processor time of the thread that schedules the card, and of that what went into driver
    /// calls. Microseconds.
    #[serde(default)]
    pub scheduler_cpu_us: u64,
    #[serde(default)]
    pub scheduler_driver_cpu_us: u64,
    /// Way in which it leaves the card to others of high priority; `None`: it does not, or an older
    /// mediator does not say.
    #[serde(default)]
    pub gives_way: Option<PriorityMode>,
    /// Time for which it had work and not the card, in all, as far as its channels on the compute
    /// engine show that ([`Gate::submitted`](crate::Gate::submitted)); `None`: not known, or nobody
    /// else is on the card.
    #[serde(default)]
    pub waited_us: Option<u64>,
    /// Part of it that came in the last second.
    #[serde(default)]
    pub waited_1s_us: Option<u64>,
    /// Number of such waits by their lengths ([`WAIT_BOUNDS_US`](crate::WAIT_BOUNDS_US)); the last
    /// is of the longest.
    #[serde(default)]
    pub waits: Vec<u64>,
    /// It has submitted nothing of late, and nothing waits; `None`: not known, or of no use to
    /// anybody.
    #[serde(default)]
    pub is_quiet: Option<bool>,
    /// While it is [`Running::Degraded`]: with which status the driver refuses; `None`: nobody has
    /// asked it, or the call itself failed.
    #[serde(default)]
    pub refused: Option<u32>,
    /// Time that the card lost in switches to the container from others, in all and in the last
    /// second; `None`: there is no log of them.
    #[serde(default)]
    pub switching_us: Option<u64>,
    #[serde(default)]
    pub switching_1s_us: Option<u64>,
    /// Turns of the containers without a cap, as its mediator chooses or follows them; `None`: it
    /// does neither.
    #[serde(default)]
    pub round_robin: Option<RoundRobin>,
}

/// State of a container on a card.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Running {
    /// As the driver schedules it.
    #[default]
    Free,
    /// In its window.
    Open,
    /// Between its windows: its channels are off the card.
    Closed,
    /// It waits for others of higher priority, or for its turn among those of low priority.
    Waiting,
    /// By time slices.
    Slices,
    /// Its channels cannot be taken off the card: what stays is a weight.
    Degraded,
}

#[cfg(test)]
mod tests {
    use testing::{fixture, is_fixture};

    use super::*;
    use crate::round_robin::RoundRobinMember;

    #[test]
    fn a_status_file_is_read_as_it_was_written() {
        let of_crate = env!("CARGO_MANIFEST_DIR");
        let card = CardStatus {
            uuid: "GPU-039be7ea-a108-510e-6157-7374c95c0000".to_owned(),
            running: Running::Closed,
            channels: 1,
            groups: 1,
            busy: Some(true),
            open_us: 2,
            throttled_us: 3,
            used_us: Some(4),
            share_ppm: 300_000,
            utilization_ppm: Some(5),
            achieved_1s_ppm: Some(6),
            achieved_60s_ppm: Some(7),
            window_loss_us: Some(8),
            edges: 2,
            late_edges: 9,
            latest_edge_us: 10,
            lost_us: 11,
            lost_1s_us: 12,
            edge_wait_us: 13,
            longest_edge_us: 14,
            slow_edges: 15,
            failures: 16,
            scheduler_cpu_us: 17,
            scheduler_driver_cpu_us: 18,
            gives_way: Some(PriorityMode::Harvest),
            waited_us: Some(20),
            waited_1s_us: Some(21),
            waits: vec![22, 23],
            is_quiet: Some(false),
            refused: Some(19),
            switching_us: Some(26),
            switching_1s_us: Some(27),
            round_robin: Some(RoundRobin {
                from_us: 24,
                members: vec![RoundRobinMember { grant_id: "grant".to_owned(), quantum_us: 25 }],
            }),
        };
        let status = Status {
            written_us: 1,
            next_by_us: Some(2),
            process: 5423,
            has_processes: true,
            priority: Some(ThreadPriority::RealTime),
            cards: vec![card],
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("schedule");
        StatusFile::create(&path).unwrap().write(&status).unwrap();
        let number = Status::FORMAT.number;
        is_fixture(of_crate, &format!("status-{number}"), &std::fs::read(&path).unwrap());
        let read = StatusFile::parse(&fixture(of_crate, &format!("status-{number}"))).unwrap().unwrap();
        assert_eq!(read, status);
    }
}
