//! Mailbox of a card's thread, to which the mediator's main thread sends timetables.

use std::{
    io,
    sync::{Arc, Mutex},
};

use schedule::Timetable;
use sys::sync::lock;

use super::alarm::Waker;

/// Mailbox of one card.
#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) uuid: String,
    pub(super) waker: Waker,
    unread: Mutex<Option<Option<Arc<Timetable>>>>,
}

impl Mailbox {
    pub(super) fn new(uuid: String) -> io::Result<Self> {
        Ok(Self { uuid, waker: Waker::new()?, unread: Mutex::default() })
    }

    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Sends another timetable, or none if it could not be read.
    pub(super) fn send(&self, table: Option<Arc<Timetable>>) {
        *lock(&self.unread) = Some(table);
        self.wake();
    }

    pub(super) fn receive(&self) -> Option<Option<Arc<Timetable>>> {
        lock(&self.unread).take()
    }
}
