//! What the threads of a container's cards tell, in one file.

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock},
};

use nvidia_glue::{
    mediate::Seen,
    schedule::{CardStatus, Status, StatusFile, meter::Measured, now_us},
};

use super::super::listener::Mediation;
use crate::sync::lock;

#[derive(Debug)]
pub(super) struct Board {
    file: StatusFile,
    told: Mutex<Told>,
    /// Who tells the container how busy it is.
    mediation: OnceLock<Arc<dyn Utilization>>,
}

/// Makes of what a card's thread measures what the container is told, and what it worked.
pub(super) trait Utilization: fmt::Debug + Send + Sync {
    /// See [`Session::measured`](nvidia_glue::mediate::Session::measured).
    fn measured(&self, uuid: &str, measured: Measured, in_doubt: bool) -> Seen;
}

impl Utilization for Mediation {
    fn measured(&self, uuid: &str, measured: Measured, in_doubt: bool) -> Seen {
        self.session.measured(uuid, measured, in_doubt)
    }
}

#[derive(Debug)]
struct Told {
    status: Status,
    /// Card by card: when it tells again, at the latest.
    next_by_us: Vec<Option<u64>>,
    is_troubled: bool,
}

impl Board {
    pub(super) fn new(file: StatusFile, uuids: impl Iterator<Item = String>) -> Self {
        let cards: Vec<CardStatus> = uuids.map(|uuid| CardStatus { uuid, ..CardStatus::default() }).collect();
        let next_by_us = vec![None; cards.len()];
        let status = Status { process: std::process::id(), cards, ..Status::default() };
        let told = Mutex::new(Told { status, next_by_us, is_troubled: false });
        Self { file, told, mediation: OnceLock::new() }
    }

    /// From now on what cards' threads measure is the container's utilization.
    pub(super) fn tell_container(&self, mediation: Arc<dyn Utilization>) {
        // There is one.
        let _ = self.mediation.set(mediation);
    }

    /// What a card's thread has measured, and whether the container may have been on the card without work. What that comes to.
    pub(super) fn measured(&self, uuid: &str, measured: Measured, in_doubt: bool) -> Seen {
        self.mediation.get().map(|mediation| mediation.measured(uuid, measured, in_doubt)).unwrap_or_default()
    }

    /// What a card's thread tells, and when it tells again at the latest.
    pub(super) fn tell(&self, index: usize, card: CardStatus, next_by_us: Option<u64>) {
        self.change(|told| {
            if let Some(slot) = told.status.cards.get_mut(index) {
                *slot = card;
            }
            if let Some(slot) = told.next_by_us.get_mut(index) {
                *slot = next_by_us;
            }
        });
    }

    /// The container's first process has the driver open, or none has any more.
    pub(super) fn tell_presence(&self, has_processes: bool) {
        self.change(|told| told.status.has_processes = has_processes);
    }

    fn change(&self, change: impl FnOnce(&mut Told)) {
        // Held while it is written: what is told last is what is read. The file is one of a memory file system.
        let mut told = lock(&self.told);
        change(&mut told);
        told.status.written_us = now_us();
        // Whoever is late first makes all of it late.
        told.status.next_by_us = told.next_by_us.iter().flatten().min().copied();
        match self.file.write(&told.status) {
            Ok(()) => told.is_troubled = false,
            Err(error) if !told.is_troubled => {
                told.is_troubled = true;
                tracing::warn!(%error, "what the container does on its cards cannot be told");
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
        let board = Board::new(StatusFile::create(&path).unwrap(), uuids);
        let card = |uuid: &str, edges| CardStatus { uuid: uuid.into(), edges, ..CardStatus::default() };
        board.tell(1, card("GPU-b", 3), Some(50));
        board.tell(0, card("GPU-a", 7), Some(70));
        let read = StatusFile::read(&path).unwrap();
        assert_eq!((read.next_by_us, read.cards[0].edges, read.cards[1].edges), (Some(50), 7, 3));
        board.tell(1, card("GPU-b", 4), None);
        board.tell_presence(true);
        let read = StatusFile::read(&path).unwrap();
        assert_eq!((read.next_by_us, read.has_processes), (Some(70), true));
    }
}
