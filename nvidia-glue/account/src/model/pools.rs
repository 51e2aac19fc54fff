//! Memory of the host's that the driver makes for a container: pools of semaphores, and events that
//! wake files.

use super::{
    api::*,
    program::{FlyingPool, LIMITS, Program},
    world::PAGE,
};

impl Program<'_> {
    pub(super) fn reserve_pool(&mut self) -> Option<()> {
        let (process, file) = (self.process()?, self.uvm()?);
        let (first, pages) = self.span();
        let cards: Vec<_> = self.accounts.cards().map(|(card, _)| card).collect();
        let tables = self.reserve_tables(&cards, pages * PAGE, false)?;
        let fits = self.fits(Card::HOST.0, pages * PAGE);
        match self.accounts.reserve_pool(Pid(process), Bytes(pages * PAGE)) {
            Ok(hold) => {
                assert!(fits, "it does not fit, but was reserved");
                self.flying_pools.push(FlyingPool { hold, tables, file, first, pages });
                Some(())
            }
            Err(_) => {
                let many = self.accounts.counts().references >= LIMITS.references as usize;
                assert!(!fits || many, "it fits, but was refused");
                self.release_tables(tables);
                None
            }
        }
    }

    /// The driver makes a pool, unless its file is gone or the addresses are taken, for better or
    /// worse.
    pub(super) fn execute_pool(&mut self) -> Option<()> {
        let index = self.below(self.flying_pools.len());
        if index >= self.flying_pools.len() {
            return None;
        }
        let FlyingPool { hold, tables, file, first, pages } = self.flying_pools.swap_remove(index);
        let is_held = !self.world.uvm[file].holders.is_empty();
        if self.byte().is_multiple_of(8) || !is_held || self.is_taken(file, first, pages) {
            self.accounts.release(hold);
            self.release_tables(tables);
            return None;
        }
        self.world.pools.insert((file, first), pages);
        self.accounts.pool(hold, UvmFile(file as u64), first * PAGE, pages * PAGE);
        self.release_tables(tables);
        Some(())
    }

    pub(super) fn os_event(&mut self) -> Option<()> {
        let client = self.client()?;
        match self.accounts.os_event_fits() {
            Ok(()) => {
                let events = self.world.events.entry(client).or_default();
                let fd = events.last().map_or(0, |last| last + 1);
                events.insert(fd);
                self.accounts.os_event(Handle(client), fd);
                Some(())
            }
            Err(refusal) => {
                assert!(matches!(refusal, Refusal::TooMany { .. }));
                assert!(self.accounts.counts().os_events >= LIMITS.os_events);
                None
            }
        }
    }

    /// Frees an event, or closes the file that it wakes, which no call reports.
    pub(super) fn os_event_gone(&mut self) -> Option<()> {
        let clients: Vec<_> =
            self.world.events.iter().filter(|(_, fds)| !fds.is_empty()).map(|(&client, _)| client).collect();
        let client = self.pick(clients)?;
        let fd = self.world.events.get_mut(&client)?.pop_first()?;
        assert!(self.accounts.has_os_event(Handle(client), fd));
        if self.byte().is_multiple_of(4) {
            self.events_lost = true;
        } else {
            self.accounts.os_event_gone(Handle(client), fd);
        }
        Some(())
    }
}
