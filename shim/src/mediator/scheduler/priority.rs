//! The priority of the threads that schedule: the lowest real-time one, or else the highest of the others.
//!
//! To take one needs a right that the mediator gives up, and threads have that of whoever starts them. So the mediator takes it while it has
//! its rights, starts one thread that has it for good and starts those that schedule, and gives it back for itself.

use std::{
    io,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use rustix::process::{getpriority_process, setpriority_process};

use super::{STACK, card::CardScheduler, clock::Monotonic};
use crate::sys;

/// What could be had.
#[derive(Debug)]
enum Had {
    RealTime,
    /// The highest of the others, and why not a real-time one: some kernels give none to a cgroup that has no budget for it
    /// (`CONFIG_RT_GROUP_SCHED`).
    Preferred(io::Error),
    Nothing(io::Error),
}

/// A priority that the calling thread has taken, and all that it starts.
#[derive(Debug)]
pub(super) struct Taken {
    had: Had,
    /// The thread's nice value before.
    nice: i32,
}

/// Takes the priority for the calling thread; to be called while the mediator has its rights.
pub(super) fn take() -> Taken {
    // 0: this thread.
    let nice = getpriority_process(None).unwrap_or(0);
    let had = match sys::become_real_time() {
        Ok(()) => Had::RealTime,
        Err(error) if setpriority_process(None, -20).is_ok() => Had::Preferred(error),
        Err(error) => Had::Nothing(error),
    };
    Taken { had, nice }
}

/// Starts the threads that schedule.
#[derive(Debug)]
pub(super) struct Starter(SyncSender<Box<CardScheduler<Monotonic>>>);

impl Taken {
    /// Leaves it to a thread of its own; the calling one has what it had before.
    pub(super) fn leave(self) -> io::Result<Starter> {
        let Self { had, nice } = self;
        let (sender, receiver) = sync_channel(0);
        thread::Builder::new().name("starter".into()).stack_size(STACK).spawn(move || start_all(&receiver, &had))?;
        sys::become_ordinary()?;
        setpriority_process(None, nice)?;
        Ok(Starter(sender))
    }
}

impl Starter {
    /// Starts a card's thread.
    pub(super) fn start(&self, scheduler: Box<CardScheduler<Monotonic>>) -> io::Result<()> {
        self.0.send(scheduler).map_err(|_| io::Error::other("the thread that starts others has ended"))
    }
}

fn start_all(schedulers: &Receiver<Box<CardScheduler<Monotonic>>>, had: &Had) {
    while let Ok(scheduler) = schedulers.recv() {
        tell(had);
        let run = move || {
            let error = scheduler.run();
            // The shim sees the exit; a message might not get there.
            tracing::error!(%error, "a card cannot be scheduled any more");
            sys::exit_now(1)
        };
        if let Err(error) = thread::Builder::new().name("scheduler".into()).stack_size(STACK).spawn(run) {
            tracing::error!(%error, "a card cannot be scheduled");
            sys::exit_now(1);
        }
    }
}

/// Once: what holds for one card holds for all.
fn tell(had: &Had) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let (error, is_preferred) = match had {
        Had::RealTime => return,
        Had::Preferred(error) => (error, true),
        Had::Nothing(error) => (error, false),
    };
    if !TOLD.swap(true, Ordering::Relaxed) {
        tracing::warn!(%error, is_preferred, "no real-time priority can be had: on a busy host, turns may begin and end late");
    }
}
