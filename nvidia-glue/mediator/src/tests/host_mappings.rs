//! Memory of the host's that is freed while it is mapped for the processor: charged until the file
//! of the mapping is gone.

use abi::{Node, Status, layout::read_u32};

use account::ObjectLimits;
use base::Bytes;

use super::{
    alone::{OneContext, OneProgram},
    pinned::{card_of, pin},
    world::{Container, Context, MIB, OWNER},
};

/// Bytes that one container may have of the host's memory here.
const LIMIT: u64 = 64 * MIB;

fn limited(limits: ObjectLimits) -> OneProgram {
    OneProgram::limited(MIB, ObjectLimits { host_memory: Bytes(LIMIT), ..limits })
}

impl Context {
    /// The same by `NV_ESC_RM_VID_HEAP_CONTROL` (`NVOS32_FUNCTION_ALLOC_SIZE`), with
    /// `NVOS32_ATTR_LOCATION_ANY`.
    fn host_memory_by_heap(&self, size: u64) -> Result<u32, Status> {
        let args = self.heap(2, &[(40, OWNER), (56, 3 << 25)], &[(88, size)])?;
        Ok(read_u32(&args, 44).unwrap())
    }

    /// Memory that is mapped through a file of its own.
    fn mapped(&self, size: u64) -> Result<(u32, i32), Status> {
        self.mapped_at(self.host_memory(size)?, size)
    }

    fn mapped_at(&self, memory: u32, size: u64) -> Result<(u32, i32), Status> {
        let file = self.program.open(Node::Control);
        self.map_on(file, (self.device, memory), size)?;
        Ok((memory, file))
    }
}

#[test]
fn what_the_old_heap_call_takes_of_the_host_counts_alike() {
    let OneContext { machine, container, program, context, .. } = limited(ObjectLimits::default()).with_context();
    let mut files = Vec::new();
    let status = loop {
        match context.host_memory_by_heap(16 * MIB) {
            Ok(memory) => {
                files.push(context.mapped_at(memory, 16 * MIB).unwrap().1);
                context.free(memory).unwrap();
            }
            Err(status) => break status,
        }
        assert!(
            machine.driver.host_memory_used().unwrap() <= LIMIT,
            "{} MiB",
            machine.driver.host_memory_used().unwrap() / MIB
        );
    };
    assert_eq!((status, files.len(), container.host_used()), (Status::NO_MEMORY, 4, LIMIT));
    files.into_iter().for_each(|file| program.close(file));
}

/// The driver keeps the pages until the file is closed: in a loop, that would be all that the
/// machine has.
#[test]
fn what_is_freed_while_it_is_mapped_counts_against_the_bound() {
    let OneContext { machine, container, program, context, .. } = limited(ObjectLimits::default()).with_context();
    let mut files = Vec::new();
    let status = loop {
        match context.mapped(16 * MIB) {
            Ok((memory, file)) => {
                context.free(memory).unwrap();
                files.push(file);
            }
            Err(status) => break status,
        }
        assert!(
            machine.driver.host_memory_used().unwrap() <= LIMIT,
            "{} MiB",
            machine.driver.host_memory_used().unwrap() / MIB
        );
    };
    assert_eq!((status, files.len()), (Status::NO_MEMORY, 4));
    assert_eq!((container.host_used(), machine.driver.host_memory_used().unwrap()), (LIMIT, LIMIT));
    container.session.reconcile();
    assert_eq!(container.host_used(), LIMIT, "it is still there");
    // What the driver has let go of is to be had at once.
    program.close(files.remove(0));
    let (memory, file) = context.mapped(16 * MIB).unwrap();
    context.free(memory).unwrap();
    files.push(file);
    assert_eq!(context.host_memory(4096), Err(Status::NO_MEMORY));
    files.into_iter().for_each(|file| program.close(file));
    assert!(container.session.holds_anything());
    container.session.reconcile();
    assert_eq!((container.host_used(), machine.driver.host_memory_used().unwrap()), (0, 0));
    assert_eq!(container.accounts().counts().host_mappings, 0);
}

/// Programs map memory, end the mapping and close its file long before they free it; some never do.
#[test]
fn what_is_mapped_and_not_freed_is_charged_once() {
    let OneContext { container, program, context, .. } = limited(ObjectLimits::default()).with_context();
    let (memory, first) = context.mapped(16 * MIB).unwrap();
    let second = program.open(Node::Control);
    context.map_on(second, (context.device, memory), 4096).unwrap();
    assert_eq!(container.host_used(), 16 * MIB);
    program.close_and_reconcile(first);
    context.free(memory).unwrap();
    container.session.reconcile();
    assert_eq!(container.host_used(), 16 * MIB, "the other file may map it");
    program.close_and_reconcile(second);
    assert_eq!(container.host_used(), 0);
    let (memory, file) = context.mapped(16 * MIB).unwrap();
    program.close(file);
    context.free(memory).unwrap();
    container.session.reconcile();
    assert_eq!(container.host_used(), 0);
}

#[test]
fn every_way_to_the_same_memory_follows_its_charge() {
    let OneProgram { machine, container, program, .. } = limited(ObjectLimits::default());
    let (one, other) = (program.context(0), program.context(0));
    let memory = one.host_memory(16 * MIB).unwrap();
    let duplicate = other.dup(&one, memory).unwrap();
    let file = program.open(Node::Control);
    other.map_on(file, (other.device, duplicate), 16 * MIB).unwrap();
    one.free(memory).unwrap();
    // The whole client.
    other.free(other.client).unwrap();
    container.session.reconcile();
    assert_eq!((container.host_used(), machine.driver.host_memory_used().unwrap()), (16 * MIB, 16 * MIB));
    // The file lives in another process.
    let heir = container.program();
    let inherited = heir.give(program.file_of(file));
    container.session.process_ended(program.exit());
    container.session.reconcile();
    assert_eq!((container.host_used(), machine.driver.host_memory_used().unwrap()), (16 * MIB, 16 * MIB));
    heir.close_and_reconcile(inherited);
    assert_eq!((container.host_used(), machine.driver.host_memory_used().unwrap()), (0, 0));
    container.assert_nothing_left();
}

impl Context {
    /// Pins some of the program's memory, the driver does not say which.
    fn pin(&self, object: u32, length: u64) -> Result<(), Status> {
        let card = card_of(self);
        let made = pin(self, card, object, length);
        self.program.close(card);
        made
    }
}

fn kept(container: &Container) -> u64 {
    container.accounts().kept_by_pins().0
}

/// Nobody says which pages an object pins: they may be of what was mapped when it was made.
#[test]
fn what_was_pinned_while_it_was_mapped_counts_against_a_bound() {
    let OneContext { container, program, context, .. } = limited(ObjectLimits::default()).with_context();
    let mut count = 0;
    let status = loop {
        let (memory, file) = match context.mapped(16 * MIB) {
            Ok(mapped) => mapped,
            Err(status) => break status,
        };
        context.pin(0x100 + count, 16 * MIB).unwrap();
        context.free(memory).unwrap();
        program.close_and_reconcile(file);
        count += 1;
        assert!(count <= 8, "{count}");
    };
    // What is kept counts in what there may be, and is not had beside it.
    assert_eq!((status, kept(&container)), (Status::NO_MEMORY, u64::from(count) * 16 * MIB));
    assert!(u64::from(count) * 16 * MIB <= LIMIT, "{count}");
    let usage = container.session.usage();
    assert_eq!(usage.pinned_memory_limit_bytes, Bytes(LIMIT));
    assert_eq!(usage.pinned_memory_used_bytes.0, kept(&container) + container.host_used());
    (0..count).for_each(|pin| context.free(0x100 + pin).unwrap());
    let (memory, file) = context.mapped(16 * MIB).unwrap();
    context.free(memory).unwrap();
    program.close_and_reconcile(file);
    assert_eq!((kept(&container), container.host_used()), (0, 0));
}

/// Contexts come and go beside a pool of pinned memory that is never freed.
#[test]
fn what_programs_pin_keeps_nothing() {
    let OneProgram { container, program, .. } = limited(ObjectLimits::default());
    let pool = program.context(0);
    pool.pin(0x100, 1024 * MIB).unwrap();
    for round in 0..20 {
        let context = program.context(0);
        let (_, file) = context.mapped(32 * MIB).unwrap();
        context.pin(0x100, 64 * MIB).unwrap();
        // The pool grows by a little, for good.
        pool.pin(0x200 + round, 4096).unwrap();
        program.close(file);
        context.free(context.client).unwrap();
        program.close_and_reconcile(context.control);
        assert_eq!(kept(&container), u64::from(round + 1) * (4096 + (64 << 10)));
    }
}

/// The driver takes one mapping for each file.
#[test]
fn a_file_that_is_named_twice_is_watched_for_its_first_mapping() {
    let OneContext { container, program, context, .. } = limited(ObjectLimits::default()).with_context();
    let (first, file) = context.mapped(16 * MIB).unwrap();
    let second = context.host_memory(16 * MIB).unwrap();
    for _ in 0..100 {
        assert_eq!(context.map_on(file, (context.device, second), 16 * MIB), Err(Status::STATE_IN_USE));
    }
    // Nor is it to be mapped through a card's.
    let card = program.open(Node::Card(container.machine.inventory.cards[0].minor));
    assert_eq!(context.map_on(card, (context.device, second), 16 * MIB), Err(Status::INVALID_ARGUMENT));
    assert_eq!(container.accounts().counts().host_mappings, 1);
    context.free(second).unwrap();
    context.free(first).unwrap();
    container.session.reconcile();
    assert_eq!(container.host_used(), 16 * MIB);
    program.close_and_reconcile(file);
    assert_eq!((container.host_used(), container.accounts().counts().abandoned), (0, 0));
}

#[test]
fn files_that_are_watched_are_limited_in_number() {
    let OneContext { container, program, context, .. } =
        limited(ObjectLimits { host_mappings: 3, ..ObjectLimits::default() }).with_context();
    let memory = context.host_memory(MIB).unwrap();
    let map = || {
        let file = program.open(Node::Control);
        context.map_on(file, (context.device, memory), MIB).map(|()| file).inspect_err(|_| program.close(file))
    };
    let files: Vec<i32> = (0..3).map(|_| map().unwrap()).collect();
    assert_eq!(map(), Err(Status::INSUFFICIENT_RESOURCES));
    // Those that are gone count no more, though the memory is still there. A program may map and
    // end mappings for ever.
    program.close(files[0]);
    let mut last = map().unwrap();
    for _ in 0..50 {
        program.close(last);
        last = map().unwrap();
    }
    assert_eq!(map(), Err(Status::INSUFFICIENT_RESOURCES));
    // A card's memory is none of this.
    let of_card = context.memory(MIB).unwrap();
    let card = program.open(Node::Card(container.machine.inventory.cards[0].minor));
    context.map_on(card, (context.device, of_card), MIB).unwrap();
    assert_eq!((container.host_used(), container.used(0)), (MIB, MIB));
}

/// Another container may have the file, which no grant reaches.
#[test]
fn a_container_that_has_ended_says_what_is_left_and_does_not_wait_for_it() {
    let OneContext { machine, container, program, context, .. } = limited(ObjectLimits::default()).with_context();
    let (_, file) = context.mapped(16 * MIB).unwrap();
    let elsewhere = program.file_of(file);
    container.session.process_ended(program.exit());
    container.session.end().unwrap();
    assert_eq!((container.host_used(), machine.driver.host_memory_used().unwrap()), (16 * MIB, 16 * MIB));
    drop(elsewhere);
    container.session.reconcile();
    assert_eq!(machine.driver.host_memory_used().unwrap(), 0);
    container.assert_nothing_left();
}
