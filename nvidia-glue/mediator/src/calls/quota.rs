//! Asking the accounts for room, what becomes of a process for which there is none, and other
//! limits.

use std::time::Duration;

use abi::{
    Call, Status,
    controls::{ControlRule, rule_of},
};
use account::{Accounts, Card, OverQuota, Refusal};
use base::{OverMemory, Pid};

use crate::{
    Answer, OverMemoryEvent, Session,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
};

impl Session {
    /// Returns the end of a call that the accounts refuse for good.
    pub(crate) fn refused(&self, pid: Pid, refusal: Refusal) -> CallEnd {
        match refusal {
            // The host's is not what was granted, nor what a container is killed for.
            Refusal::OverQuota(over) if over.card != Card::HOST => self.over_quota(pid, over),
            refusal => refusal.into(),
        }
    }

    /// A process asked for more than there is.
    pub(crate) fn over_quota(&self, pid: Pid, over: OverQuota) -> CallEnd {
        lock(&self.objects.accounts).count_denial(over.card);
        let OverQuota { card, asked, used, limit, bound } = over;
        let card = self.grant.uuid(card).to_owned();
        self.observer.over_memory(&OverMemoryEvent { pid, card, asked, used, limit, bound, action: self.over_memory });
        match self.over_memory {
            OverMemory::Deny => Refusal::from(over).into(),
            OverMemory::Kill => CallEnd::Kill,
        }
    }

    /// Tells of a call that ends for want of something, whoever refuses it.
    pub(crate) fn report_shortage_of(&self, flight: &InFlightCall<'_>, result: &Result<Answer, CallEnd>) {
        let (control, class) = match flight.call {
            Call::Control(control) => (Some(control), None),
            Call::Alloc(alloc) => (None, abi::classes::class(alloc.class)),
            _ => (None, None),
        };
        let end = match *result {
            Err(end) => end,
            Ok(Answer::Return(_)) if flight.has_failed => match flight.row.status(&flight.args) {
                Some(status) => CallEnd::Status(status),
                None => return,
            },
            Ok(_) => return,
        };
        // A table that is answered as if it were full is full for good.
        let is_by_rule = control
            .is_some_and(|control| matches!(rule_of(control.id), ControlRule::Answered(..) | ControlRule::Refuse(..)));
        if is_by_rule {
            return;
        }
        let of_what = control.and_then(|control| control.row()).map(|row| row.name).or(class.map(|class| class.name));
        let call = [Some(flight.row.name()), of_what].into_iter().flatten().collect::<Vec<_>>().join(" of ");
        self.report_shortage(end, &call, flight.has_failed);
    }

    /// Tells of a call that ends so, if that is for want of something; whether the driver was the
    /// last to be asked.
    pub(crate) fn report_shortage(&self, end: CallEnd, call: &str, driver_failed: bool) {
        let (text, of_the_driver) = match end {
            CallEnd::Refused(Refusal::OverQuota(OverQuota { card: Card::HOST, limit, .. })) => {
                let text = "the driver would have pinned more of the host's memory for the container than it may have,";
                (format!("{text} {limit}"), false)
            }
            CallEnd::Refused(refusal @ Refusal::TooMany { .. }) => (refusal.to_string(), false),
            CallEnd::Insufficient(why) => (why.to_owned(), false),
            CallEnd::OutOfOwnMemory(limit) => {
                (format!("the mediator itself has as much memory as it may for this container, {limit}"), false)
            }
            CallEnd::Errno(libc::EMFILE | libc::ENFILE | libc::ENOMEM) if !driver_failed => {
                (format!("the mediator has no room for another file or address space, as {call} needs"), false)
            }
            CallEnd::Errno(libc::EMFILE | libc::ENFILE | libc::ENOMEM)
            | CallEnd::Status(Status::NO_MEMORY | Status::INSUFFICIENT_RESOURCES) => {
                let why = "the card, or the host, has less left than was granted";
                (format!("the driver itself refused {call} for want of memory or resources: {why}"), true)
            }
            // What is over a card's quota has been told.
            CallEnd::Refused(_) | CallEnd::Errno(_) | CallEnd::Status(_) | CallEnd::Kill => return,
        };
        if let Some(shortage) = self.shortages.add(text, of_the_driver, self.reclaim_throttle.clock.now()) {
            self.observer.shortage(&shortage);
        }
    }

    /// Asks the accounts; if there is no room, looks for what is gone meanwhile, and asks again.
    pub(crate) fn reserve<T>(&self, pid: Pid, ask: impl Fn(&mut Accounts) -> Result<T, Refusal>) -> Result<T, CallEnd> {
        self.ask_for_room(ask).map_err(|refusal| self.refused(pid, refusal))
    }

    /// The same, where a refusal is not the end.
    pub(crate) fn ask_for_room<T>(&self, ask: impl Fn(&mut Accounts) -> Result<T, Refusal>) -> Result<T, Refusal> {
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
        answer
    }
}
