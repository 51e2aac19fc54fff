//! The container's processes, as one of them sees them, and what of the card others use.

use abi::decode::Control;
use account::Card;
use base::Pid;

use crate::{
    Session,
    in_flight::InFlightCall,
    locks::lock,
    view::{memory::ShownMemory, processes, processes::ShownProcess},
};

impl Session {
    /// The container's processes that use the card that a control is made on, by the numbers that
    /// they have for the caller.
    pub(crate) fn shown_processes(&self, flight: &InFlightCall<'_>, control: Control) -> Vec<ShownProcess> {
        let card = self.objects.card_of(control.client, control.object);
        card.map(|card| self.processes_on(card, flight.pid)).unwrap_or_default()
    }

    /// The container's processes that use a card and exist for `viewer`, by the numbers that they
    /// have there.
    pub(crate) fn processes_on(&self, card: Card, viewer: Pid) -> Vec<ShownProcess> {
        let users: Vec<_> =
            lock(&self.objects.accounts).users().filter(|(_, used_card, _)| *used_card == card).collect();
        let table = lock(&self.process_table);
        let shown = |(pid, _, used)| Some(ShownProcess { pid: table.pid_seen_by(pid, viewer)?, used });
        let mut shown: Vec<ShownProcess> = users.into_iter().filter_map(shown).collect();
        shown.sort_by_key(|process| process.pid);
        shown
    }

    /// `NV2080_CTRL_CMD_GPU_GET_PIDS`, which the driver has found good: it knows the mediator
    /// alone, and so cannot tell who has what.
    pub(crate) fn list_processes(&self, flight: &mut InFlightCall<'_>, control: Control) {
        let class = processes::class_asked(flight.params());
        let card = self.objects.card_of(control.client, control.object);
        let holders =
            card.zip(class).map(|(card, class)| lock(&self.objects.accounts).holders(class, card)).unwrap_or_default();
        let table = lock(&self.process_table);
        let mut pids: Vec<u32> =
            holders.into_iter().filter_map(|holder| table.pid_seen_by(holder, flight.pid)).collect();
        drop(table);
        pids.sort_unstable();
        processes::pids(flight.params_mut(), &pids);
    }

    /// Sums over the encoders, or the captures, of all who use the card. Which of them are the
    /// container's, the driver does not say.
    pub(crate) fn rewrite_sessions(&self, flight: &mut InFlightCall<'_>, control: Control) {
        let card = self.objects.card_of(control.client, control.object);
        if card.is_none_or(|card| ShownMemory::of(&self.grant, card, &lock(&self.objects.accounts)).is_some()) {
            flight.params_mut().fill(0);
        }
    }
}
