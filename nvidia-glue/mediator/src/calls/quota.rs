//! Asking the accounts for room, what becomes of a process for which there is none, and other
//! limits.

use std::time::Duration;

use abi::Status;
use account::{Accounts, Card, OverQuota, Refusal};
use base::{OverMemory, Pid};

use crate::{OverMemoryEvent, Session, in_flight::CallEnd, locks::lock};

impl Session {
    /// Returns the end of a call that the accounts refuse for good.
    pub(crate) fn refused(&self, pid: Pid, refusal: Refusal) -> CallEnd {
        match refusal {
            // Not what was granted, nor what a container is killed for.
            Refusal::OverQuota(over) if over.card == Card::HOST => CallEnd::Status(refusal.status()),
            Refusal::OverQuota(over) => self.over_quota(pid, over),
            refusal => CallEnd::Status(refusal.status()),
        }
    }

    /// A process asked for more than there is.
    pub(crate) fn over_quota(&self, pid: Pid, over: OverQuota) -> CallEnd {
        lock(&self.objects.accounts).count_denial(over.card);
        let OverQuota { card, asked, used, limit, bound } = over;
        let card = self.grant.uuid(card).to_owned();
        self.observer.over_memory(&OverMemoryEvent { pid, card, asked, used, limit, bound, action: self.over_memory });
        match self.over_memory {
            OverMemory::Deny => CallEnd::Status(Status::NO_MEMORY),
            OverMemory::Kill => CallEnd::Kill,
        }
    }

    /// Asks the accounts; if there is no room, looks for what is gone meanwhile, and asks again.
    pub(crate) fn reserve<T>(&self, pid: Pid, ask: impl Fn(&mut Accounts) -> Result<T, Refusal>) -> Result<T, CallEnd> {
        /// For files of processes that have just ended to be closed.
        const PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(5), Duration::from_millis(50)];
        let mut answer = ask(&mut lock(&self.objects.accounts));
        for pause in PAUSES {
            if !answer.as_ref().is_err_and(Refusal::may_pass) {
                break;
            }
            if pause > Duration::ZERO {
                if !self.has_exiting_owner() {
                    break;
                }
                std::thread::sleep(pause);
            }
            self.reclaim();
            answer = ask(&mut lock(&self.objects.accounts));
        }
        answer.map_err(|refusal| self.refused(pid, refusal))
    }
}
