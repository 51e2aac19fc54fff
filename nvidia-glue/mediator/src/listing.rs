//! The container's processes, as one of them sees them, and what of the card others use.

use abi::decode::Control;
use account::Card;
use base::Pid;

use super::{Session, call::Flight, locks::lock, view, view::processes::Shown};

impl Session {
    /// The container's processes that use the card that a control is made on, by the numbers that they have for the caller.
    pub(super) fn shown_processes(&self, flight: &Flight<'_>, control: Control) -> Vec<Shown> {
        let card = self.card_of(control.client, control.object);
        card.map(|card| self.processes_on(card, flight.pid)).unwrap_or_default()
    }

    /// The container's processes that use a card and exist for `viewer`, by the numbers that they have there.
    pub(super) fn processes_on(&self, card: Card, viewer: Pid) -> Vec<Shown> {
        let users: Vec<_> = lock(&self.accounts).users().filter(|(_, used_card, _)| *used_card == card).collect();
        let people = lock(&self.people);
        let shown = |(pid, _, used)| Some(Shown { pid: people.pid_seen_by(pid, viewer)?, used });
        let mut shown: Vec<Shown> = users.into_iter().filter_map(shown).collect();
        shown.sort_by_key(|process| process.pid);
        shown
    }

    /// `NV2080_CTRL_CMD_GPU_GET_PIDS`, which the driver has found good: it knows the mediator alone, and so cannot tell who has what.
    pub(super) fn list_processes(&self, flight: &mut Flight<'_>, control: Control) {
        let class = view::processes::class_asked(flight.params());
        let card = self.card_of(control.client, control.object);
        let holders =
            card.zip(class).map(|(card, class)| lock(&self.accounts).holders(class, card)).unwrap_or_default();
        let people = lock(&self.people);
        let mut pids: Vec<u32> =
            holders.into_iter().filter_map(|holder| people.pid_seen_by(holder, flight.pid)).collect();
        drop(people);
        pids.sort_unstable();
        view::processes::pids(flight.params_mut(), &pids);
    }

    /// Sums over the encoders, or the captures, of all who use the card. Which of them are the container's, the driver does not say.
    pub(super) fn rewrite_sessions(&self, flight: &mut Flight<'_>, control: Control) {
        let card = self.card_of(control.client, control.object);
        if card.is_none_or(|card| self.grant.shown(card, &lock(&self.accounts)).is_some()) {
            flight.params_mut().fill(0);
        }
    }
}
