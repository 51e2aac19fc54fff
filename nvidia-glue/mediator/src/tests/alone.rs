//! A container that is alone on a machine's only card, with one program in it, or that shares the
//! card with another one: where most tests begin. What reaches the driver is seen by a [`Spy`].

use std::{sync::Arc, time::Duration};

use abi::DriverRelease;
use account::{Accounts, ObjectLimits};
use base::{Bytes, OverMemory};
use driver::Driver;
use schedule::Gate;

use super::{
    spy::Spy,
    world::{Container, Context, GIB, Machine, Program},
};
use crate::clock::tests::TestClock;

/// One whose program has no client yet.
pub(super) struct OneProgram {
    pub(super) machine: Machine,
    pub(super) spy: Arc<Spy>,
    pub(super) container: Arc<Container>,
    pub(super) program: Arc<Program>,
}

impl OneProgram {
    pub(super) fn new() -> Self {
        Self::within(8 * GIB)
    }

    /// One that was granted so many bytes of the card.
    pub(super) fn within(limit: u64) -> Self {
        Self::on_cards(1, limit)
    }

    /// One that was granted so many bytes of each of the machine's cards.
    pub(super) fn on_cards(cards: u32, limit: u64) -> Self {
        Self::of((cards, limit), OverMemory::Deny, |_| ())
    }

    /// One that is killed when it asks for more than that.
    pub(super) fn killed_beyond(limit: u64) -> Self {
        Self::of((1, limit), OverMemory::Kill, |_| ())
    }

    /// One that may have so many objects.
    pub(super) fn limited(limit: u64, limits: ObjectLimits) -> Self {
        let limited = Accounts::new(&[Bytes(limit)], limits);
        Self::of((1, limit), OverMemory::Deny, |container| *container.accounts() = limited)
    }

    /// One that has the driver capability `graphics`.
    pub(super) fn that_may_draw(cards: u32) -> Self {
        Self::of((cards, 8 * GIB), OverMemory::Deny, Container::may_draw)
    }

    /// One beside a driver of that release.
    pub(super) fn beside(release: DriverRelease) -> Self {
        Self::of((1, 8 * GIB), OverMemory::Deny, |container| container.beside(release))
    }

    /// One whose time passes as the test says, and with each look for its processes by so much.
    pub(super) fn by_a_clock(limit: u64, look: Duration) -> (TestClock, Self) {
        let clock = TestClock::default();
        let one = Self::of((1, limit), OverMemory::Deny, |container| container.looks_cost(&clock, look));
        (clock, one)
    }

    fn of((cards, limit): (u32, u64), over_memory: OverMemory, prepare: impl FnOnce(&mut Container)) -> Self {
        let machine = Machine::new(cards);
        let spy = Spy::new(&machine);
        let driver = Arc::clone(&spy) as Arc<dyn Driver>;
        let indexes: Vec<usize> = (0..machine.inventory.cards.len()).collect();
        let mut container = machine.container_on(driver, over_memory, &indexes, limit);
        prepare(Arc::get_mut(&mut container).unwrap());
        let program = container.program();
        Self { machine, spy, container, program }
    }

    /// The same, and the program has made a client.
    pub(super) fn with_context(self) -> OneContext {
        let Self { machine, spy, container, program } = self;
        let (context, gate) = (program.context(0), container.gate());
        OneContext { machine, spy, container, program, context, gate }
    }
}

/// One whose program has a client, with a device and a subdevice of the card.
pub(super) struct OneContext {
    pub(super) machine: Machine,
    pub(super) spy: Arc<Spy>,
    pub(super) container: Arc<Container>,
    pub(super) program: Arc<Program>,
    pub(super) context: Context,
    pub(super) gate: Arc<dyn Gate>,
}

impl OneContext {
    pub(super) fn new() -> Self {
        Self::within(8 * GIB)
    }

    /// One that was granted so many bytes of the card.
    pub(super) fn within(limit: u64) -> Self {
        OneProgram::within(limit).with_context()
    }

    /// One that may have so many objects.
    pub(super) fn limited(limit: u64, limits: ObjectLimits) -> Self {
        OneProgram::limited(limit, limits).with_context()
    }
}

/// Two containers on one card, each with a program that has a client.
pub(super) struct TwoContexts {
    pub(super) spy: Arc<Spy>,
    pub(super) container: Arc<Container>,
    pub(super) neighbour: Arc<Container>,
    pub(super) context: Context,
    pub(super) foreign: Context,
}

impl TwoContexts {
    /// Two of which each was granted so many bytes.
    pub(super) fn within(limit: u64) -> Self {
        let OneContext { machine, spy, container, context, .. } = OneContext::within(limit);
        let neighbour = machine.container_on(Arc::clone(&spy) as Arc<dyn Driver>, OverMemory::Deny, &[0], limit);
        let foreign = neighbour.program().context(0);
        Self { spy, container, neighbour, context, foreign }
    }
}
