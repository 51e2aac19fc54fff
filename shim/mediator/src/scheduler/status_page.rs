//! Status page of a container: the state of its cards, published by their threads in one file.

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock},
};

use mediator::Seen;
use schedule::{CardStatus, Status, StatusFile, ThreadPriority, meter::Measured, now_us};
use sys::sync::lock;

use super::super::mediation::Mediation;

#[derive(Debug)]
pub(super) struct StatusPage {
    file: StatusFile,
    published: Mutex<Published>,
    /// The session, which derives the utilization that the container sees.
    mediation: OnceLock<Arc<dyn Utilization>>,
}

/// Sink for measurements of a card: derives the utilization that the container sees, and its work.
pub(super) trait Utilization: fmt::Debug + Send + Sync {
    /// Takes a measurement: see [`Session::measured`](mediator::Session::measured).
    fn measured(&self, uuid: &str, measured: Measured, in_doubt: bool) -> Seen;

    /// Tells for which part of a time the card was busy: see
    /// [`Session::card_busy_ppm`](mediator::Session::card_busy_ppm).
    fn card_busy_ppm(&self, uuid: &str, now_us: u64, span_us: (u64, u64)) -> Option<u32>;
}

impl Utilization for Mediation {
    fn measured(&self, uuid: &str, measured: Measured, in_doubt: bool) -> Seen {
        self.session.measured(uuid, measured, in_doubt)
    }

    fn card_busy_ppm(&self, uuid: &str, now_us: u64, span_us: (u64, u64)) -> Option<u32> {
        self.session.card_busy_ppm(uuid, now_us, span_us)
    }
}

#[derive(Debug)]
struct Published {
    status: Status,
    /// The latest instant of the next publication of each card.
    next_by_us: Vec<Option<u64>>,
    is_failure_logged: bool,
}

impl StatusPage {
    pub(super) fn new(file: StatusFile, uuids: impl Iterator<Item = String>, priority: Option<ThreadPriority>) -> Self {
        let cards: Vec<CardStatus> = uuids.map(|uuid| CardStatus { uuid, ..CardStatus::default() }).collect();
        let next_by_us = vec![None; cards.len()];
        let status = Status { process: std::process::id(), cards, priority, ..Status::default() };
        let published = Mutex::new(Published { status, next_by_us, is_failure_logged: false });
        Self { file, published, mediation: OnceLock::new() }
    }

    /// Sets the sink for measurements.
    pub(super) fn set_utilization(&self, mediation: Arc<dyn Utilization>) {
        // It is set once.
        let _ = self.mediation.set(mediation);
    }

    /// Passes a measurement to the sink. `in_doubt`: the container may have been on the card
    /// without work.
    pub(super) fn measured(&self, uuid: &str, measured: Measured, in_doubt: bool) -> Seen {
        self.mediation.get().map(|mediation| mediation.measured(uuid, measured, in_doubt)).unwrap_or_default()
    }

    /// Returns the part of a time for which a card was busy, in millionths; `None`: not known.
    pub(super) fn card_busy_ppm(&self, uuid: &str, now_us: u64, span_us: (u64, u64)) -> Option<u32> {
        self.mediation.get()?.card_busy_ppm(uuid, now_us, span_us)
    }

    /// Publishes the state of a card, and the latest instant of its next publication.
    pub(super) fn publish(&self, index: usize, card: CardStatus, next_by_us: Option<u64>) {
        self.update(|published| {
            if let Some(slot) = published.status.cards.get_mut(index) {
                *slot = card;
            }
            if let Some(slot) = published.next_by_us.get_mut(index) {
                *slot = next_by_us;
            }
        });
    }

    /// Publishes whether processes of the container have the driver open.
    pub(super) fn set_presence(&self, has_processes: bool) {
        self.update(|published| published.status.has_processes = has_processes);
    }

    fn update(&self, update: impl FnOnce(&mut Published)) {
        // Locked while the file is written: the last state is the one that is read. The file is on
        // a memory file system.
        let mut published = lock(&self.published);
        update(&mut published);
        published.status.written_us = now_us();
        // The card that is late first makes the whole page late.
        published.status.next_by_us = published.next_by_us.iter().flatten().min().copied();
        match self.file.write(&published.status) {
            Ok(()) => published.is_failure_logged = false,
            Err(error) if !published.is_failure_logged => {
                published.is_failure_logged = true;
                tracing::warn!(%error, "cannot write the status of the container's cards");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_promise_of_any_card_is_the_containers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("schedule");
        let uuids = ["GPU-a", "GPU-b"].map(str::to_owned).into_iter();
        let status_page = StatusPage::new(StatusFile::create(&path).unwrap(), uuids, Some(ThreadPriority::Nice));
        let card = |uuid: &str, edges| CardStatus { uuid: uuid.into(), edges, ..CardStatus::default() };
        status_page.publish(1, card("GPU-b", 3), Some(50));
        status_page.publish(0, card("GPU-a", 7), Some(70));
        let read = StatusFile::read(&path).unwrap();
        assert_eq!((read.next_by_us, read.cards[0].edges, read.cards[1].edges), (Some(50), 7, 3));
        status_page.publish(1, card("GPU-b", 4), None);
        status_page.set_presence(true);
        let read = StatusFile::read(&path).unwrap();
        assert_eq!((read.next_by_us, read.has_processes), (Some(70), true));
        assert_eq!(read.priority, Some(ThreadPriority::Nice));
    }
}
