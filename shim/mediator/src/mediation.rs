//! The mediation of one container: what its listeners, its main thread and its worker threads
//! share.

use std::{
    fs::File,
    io, mem,
    os::unix::fs::FileExt,
    sync::{Arc, atomic::AtomicBool},
};

use driver::DeviceFile;
use mediator::{ExitedProcesses, Pid, Session, StillHeld};
use sys::sync::{Flag, Monitor};

use super::{
    caller::ThreadCache,
    cost::Cost,
    outbox::Outbox,
    processes::{ContainerProcess, ProcessTable},
};

/// Work for the thread that reclaims what the container no longer uses.
#[derive(Debug, Default)]
struct PendingReclaim {
    /// Objects of processes that have ended.
    left: Option<ExitedProcesses>,
    /// Objects of files that were closed, which a scan of open files finds.
    closed_files: bool,
}

/// The session of the container, and the queues between its threads.
#[derive(Debug)]
pub(super) struct Mediation {
    pub(super) session: Session,
    pub(super) processes: Arc<ProcessTable>,
    pub(super) threads: ThreadCache,
    pub(super) outbox: Arc<Outbox>,
    pub(super) cost: Cost,
    /// Calls are being handled, or were a moment ago.
    pub(super) is_active: AtomicBool,
    /// No call is to be taken up.
    is_paused: Monitor<bool>,
    pending_reclaim: Monitor<PendingReclaim>,
    /// The accounts may have changed.
    needs_accounting: Flag,
    /// Says whether the driver may hold something for the grant.
    held: File,
    /// Open for as long as the process lives.
    _cards: Vec<DeviceFile>,
}

impl Mediation {
    pub(super) fn new(
        session: Session,
        processes: Arc<ProcessTable>,
        outbox: Arc<Outbox>,
        cost: Cost,
        held: File,
        cards: Vec<DeviceFile>,
    ) -> Self {
        Self {
            session,
            threads: ThreadCache::new(Arc::clone(&processes)),
            processes,
            outbox,
            cost,
            is_active: AtomicBool::new(false),
            is_paused: Monitor::default(),
            pending_reclaim: Monitor::default(),
            needs_accounting: Flag::default(),
            held,
            _cards: cards,
        }
    }

    /// Notes that the driver is about to hold something for the grant, before the first call.
    pub(super) fn mark_held(&self) -> io::Result<()> {
        self.held.write_all_at(b"1", 0)
    }

    /// Frees all that the container has. A mediator that ends without that leaves its mark, and the
    /// grant is kept until somebody has looked.
    pub(super) fn end(&self) -> Result<(), StillHeld> {
        self.session.end()?;
        if let Err(error) = self.held.write_all_at(b"0", 0) {
            tracing::warn!(%error, "cannot note that all is freed");
        }
        Ok(())
    }

    /// Forgets a process that has ended, and has the objects that it left reclaimed.
    ///
    /// Its number may be another process's from now on.
    pub(super) fn process_ended(&self, process: &Arc<ContainerProcess>) {
        self.threads.forget(process);
        let left = self.session.process_exited(Pid(process.pid));
        self.pending_reclaim.update(|pending| pending.left.get_or_insert_default().add(left));
    }

    /// Starts a search for closed files, and does not wait for it.
    pub(super) fn request_closed_file_scan(&self) {
        self.pending_reclaim.update(|pending| pending.closed_files = true);
    }

    /// Reclaims as it is requested. It may have to wait for processes of the container, so it has a
    /// thread of its own.
    pub(super) fn run_reclaim(&self) -> ! {
        loop {
            let is_nothing = |pending: &mut PendingReclaim| pending.left.is_none() && !pending.closed_files;
            let PendingReclaim { left, closed_files } = mem::take(&mut *self.pending_reclaim.wait_while(is_nothing));
            if let Some(left) = left {
                self.session.reclaim_after_exit(&left);
            }
            if closed_files {
                self.session.look_for_closed_files();
            }
        }
    }

    /// Wakes the accounting thread: a call has been handled.
    pub(super) fn request_accounting(&self) {
        self.needs_accounting.raise();
    }

    /// Ends a round of accounting that found nothing to do.
    ///
    /// A process whose call was handled at this instant is looked for once more; later calls
    /// request accounting themselves.
    pub(super) fn end_accounting(&self) {
        self.needs_accounting.lower();
        if !self.processes.known_pids().is_empty() {
            self.needs_accounting.raise();
        }
    }

    /// Waits for a call to be handled after [`Mediation::end_accounting`].
    pub(super) fn wait_for_accounting(&self) {
        self.needs_accounting.wait();
    }

    /// Pauses or resumes the taking up of calls.
    pub(super) fn set_paused(&self, is_paused: bool) {
        // No call waits for the container's turn, so that none is open when the container is
        // frozen. The calls that do not wait are those that were taken up before the pause.
        if is_paused {
            self.is_paused.set(true);
            self.session.hurry(true);
        } else {
            self.session.hurry(false);
            self.is_paused.set(false);
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused.get()
    }

    pub(super) fn wait_while_paused(&self) {
        drop(self.is_paused.wait_while(|is_paused| *is_paused));
    }
}
