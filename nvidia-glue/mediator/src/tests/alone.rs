//! A container that is alone on a machine's only card, with one program in it: where most tests
//! begin. What reaches the driver is seen by a [`Spy`].

use std::sync::Arc;

use base::OverMemory;
use driver::Driver;
use schedule::Gate;

use super::{
    spy::Spy,
    world::{Container, Context, GIB, Machine, Program},
};

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
        let machine = Machine::new(1);
        let spy = Spy::new(&machine);
        let driver = Arc::clone(&spy) as Arc<dyn Driver>;
        let container = machine.container_on(driver, OverMemory::Deny, &[0], limit);
        let program = container.program();
        Self { machine, spy, container, program }
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
        let OneProgram { machine, spy, container, program } = OneProgram::within(limit);
        let (context, gate) = (program.context(0), container.gate());
        Self { machine, spy, container, program, context, gate }
    }
}
