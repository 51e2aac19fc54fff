//! What the mediator's main thread tells the thread of a card.

use std::{
    io,
    sync::{Arc, Mutex},
};

use nvidia_glue::schedule::Timetable;

use super::alarm::Waker;
use crate::sync::lock;

/// Where a card's thread is told what there is.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) uuid: String,
    pub(super) waker: Waker,
    news: Mutex<Option<Option<Arc<Timetable>>>>,
}

impl Post {
    pub(super) fn new(uuid: String) -> io::Result<Self> {
        Ok(Self { uuid, waker: Waker::new()?, news: Mutex::default() })
    }

    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Another timetable, or none that could be read.
    pub(super) fn tell(&self, table: Option<Arc<Timetable>>) {
        *lock(&self.news) = Some(table);
        self.wake();
    }

    pub(super) fn take(&self) -> Option<Option<Arc<Timetable>>> {
        lock(&self.news).take()
    }
}
