//! Channels, and their registrations with UVM files.

use super::{
    api::*,
    program::{CARDS, CHARGED, LIMITS, Program},
    world::{Object, Registration},
};

impl Program<'_> {
    /// A channel in a group.
    pub(super) fn make_channel(&mut self) -> Option<()> {
        let group = self.pick_of(GROUP)?;
        let (handle, process) = (self.handle(), self.process()?);
        self.make_of(CHANNEL, (group.client, handle), process, [group.handle; 2])
    }

    fn pick_of(&mut self, kind: Kind) -> Option<Object> {
        let of_kind: Vec<_> = self.world.objects.iter().filter(|object| object.kind == kind).cloned().collect();
        self.pick(of_kind)
    }

    /// The driver registers it, unless it has one of that name, for better or worse.
    pub(super) fn register_channel(&mut self) -> Option<()> {
        let (channel, file) = (self.pick_of(CHANNEL)?, self.uvm()?);
        let choice = self.byte();
        if self.accounts.registration_fits().is_err() {
            assert!(self.accounts.counts().references >= LIMITS.references as usize);
            return None;
        }
        let key = (file, channel.client, channel.handle);
        if choice.is_multiple_of(8) || self.world.registrations.contains_key(&key) {
            return None;
        }
        let group = self.world.group_of(&channel);
        let card = choice % CARDS;
        let registration = Registration {
            card,
            memory: group.map_or(channel.memory, |group| group.memory),
            retained: group.into_iter().chain([&channel]).map(|object| (object.number, object.kind)).collect(),
        };
        self.world.registrations.insert(key, registration);
        let name = ObjectName::new(Handle(channel.client), Handle(channel.handle));
        self.accounts.register_channel(UvmFile(file as u64), Card(card), name);
        Some(())
    }

    pub(super) fn unregister_channel(&mut self) -> Option<()> {
        let keys: Vec<_> = self.world.registrations.keys().copied().collect();
        let (file, client, channel) = self.pick(keys)?;
        if self.world.uvm[file].holders.is_empty() {
            return None;
        }
        let all = |program: &Self| CHARGED.map(|card| program.world.allocated(card)).iter().sum::<u64>();
        let before = all(self);
        self.world.registrations.remove(&(file, client, channel));
        let freed = before - all(self);
        let name = ObjectName::new(Handle(client), Handle(channel));
        let released = self.accounts.unregister_channel(UvmFile(file as u64), name).0;
        assert!(released <= freed, "{released} said to be freed, {freed} are");
        assert!(self.behind || self.stale || self.mixed || released == freed);
        Some(())
    }
}
