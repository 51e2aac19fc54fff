//! Things that the driver keeps once a handle is freed: they stay charged, counted, and under its
//! gate.

use abi::{
    Handle, Node, Status,
    classes::{
        FERMI_VASPACE_A, HOPPER_CHANNEL_GPFIFO_A, KEPLER_CHANNEL_GROUP_A, NV01_DEVICE_0, NV01_MEMORY_SYSTEM,
        NV20_SUBDEVICE_0, NV50_MEMORY_VIRTUAL,
    },
    controls::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD,
    layout::{write_u32, write_u64},
};
use account::ObjectLimits;

use super::{
    alone::{OneContext, OneProgram},
    pinned::{card_of, pin},
    spy::{COPY, GR, SCHEDULE_GROUP},
    world::{
        Container, Context, GIB, MIB, device_params, host_memory_params, memory_params, range, struct_with, uuid_bytes,
        words,
    },
};
use crate::locks::lock;

/// A channel whose USERD is in that memory (`hUserdMemory[0]`).
fn channel_with_userd(context: &Context, parent: u32, memory: u32) -> Result<u32, Status> {
    context.channel_with(parent, &[(32, memory), (128, GR)])
}

/// The driver goes on running it: to believe otherwise would give the container the card for
/// itself.
#[test]
fn a_channel_outlives_the_memory_of_its_userd_and_keeps_it() {
    let OneContext { spy, container, context, gate, .. } = OneContext::new();
    for is_grouped in [true, false] {
        let parent = if is_grouped { context.group(GR) } else { context.device };
        let before = container.used(0);
        let memory = context.memory(2 * MIB).unwrap();
        let channel = channel_with_userd(&context, parent, memory).unwrap();
        let with_channel = container.used(0);
        if is_grouped {
            context.schedule(parent, SCHEDULE_GROUP).unwrap();
        }
        // Another handle of it makes no difference.
        let duplicate = context.dup(&context, memory).unwrap();
        context.free(memory).unwrap();
        context.free(duplicate).unwrap();
        assert_eq!(container.used(0), with_channel, "the channel keeps the memory, and its own context");
        assert_eq!((gate.channels(), container.accounts().counts().channels), (1, 1));
        if is_grouped {
            assert!(spy.works(&context, channel));
            gate.close().unwrap();
            assert!(!spy.works(&context, channel), "it obeys all the same");
            gate.open().unwrap();
        }
        context.free(channel).unwrap();
        assert_eq!((gate.channels(), container.used(0)), (0, before));
    }
    // So it does with memory of the host's.
    let memory = context.host_memory(MIB).unwrap();
    let channel = channel_with_userd(&context, context.device, memory).unwrap();
    context.free(memory).unwrap();
    assert_eq!(container.host_used(), MIB);
    context.free(channel).unwrap();
    assert_eq!(container.host_used(), 0);
}

/// Pinned memory is made without the mediator. A channel goes with it in newer drivers, which would
/// not be seen.
#[test]
fn a_userd_in_memory_that_nobody_knows_is_refused() {
    let OneContext { spy, container, context, .. } = OneContext::new();
    let unknown = 0x77;
    let address_space = context.object(FERMI_VASPACE_A, &mut [0; 56]).unwrap();
    spy.escapes(0);
    for memory in [unknown, address_space, context.device] {
        assert_eq!(channel_with_userd(&context, context.device, memory), Err(Status::OBJECT_NOT_FOUND));
    }
    assert_eq!(spy.escapes(0x2b), Vec::<Vec<u8>>::new());
    let counts = container.accounts().counts();
    assert_eq!((counts.channels, counts.abandoned, container.gate().channels()), (0, 0, 0));
}

/// The card writes into it, wherever that is: the driver does not ask whether it is in the memory.
#[test]
fn a_userd_lies_in_its_memory() {
    let OneContext { spy, context, .. } = OneContext::new();
    // One page, though more is charged for it.
    let host = context.host_memory(4096).unwrap();
    let video = context.memory(2 * MIB).unwrap();
    let channel = |memory: u32, offset: u64, others: (usize, u32, u64)| {
        let mut params = struct_with(368, &[(32, memory), (128, GR)]);
        assert!(write_u64(&mut params, 64, offset));
        let (index, handle, offset) = others;
        if index > 0 {
            assert!(write_u32(&mut params, 32 + 4 * index, handle) && write_u64(&mut params, 64 + 8 * index, offset));
        }
        context.object_below(context.device, HOPPER_CHANNEL_GPFIFO_A, &mut params)
    };
    for (memory, length) in [(host, 4096), (video, 2 * MIB)] {
        for offset in [0, length - 512] {
            let made = channel(memory, offset, (0, 0, 0)).unwrap();
            context.free(made).unwrap();
        }
        spy.escapes(0);
        for offset in [length - 511, length, 65536 * 1024, u64::MAX, u64::MAX - 511] {
            assert_eq!(channel(memory, offset, (0, 0, 0)), Err(Status::INVALID_OFFSET), "{offset:#x}");
        }
        for index in 1..8 {
            assert_eq!(channel(memory, 0, (index, memory, 0)), Err(Status::INVALID_ARGUMENT));
            assert_eq!(channel(memory, 0, (index, 0, 512)), Err(Status::INVALID_ARGUMENT));
        }
        assert_eq!(spy.escapes(0x2b), Vec::<Vec<u8>>::new());
    }
    // Addresses are no memory, though the tables for them are charged.
    let mut addresses = memory_params(2 * MIB);
    assert!(write_u32(&mut addresses, 8, 0x0008_0000));
    let addresses = context.object(NV50_MEMORY_VIRTUAL, &mut addresses).unwrap();
    assert_eq!(channel(addresses, 0, (0, 0, 0)), Err(Status::OBJECT_NOT_FOUND));
}

/// The driver writes a channel's errors to where it found the memory, and asks nobody whether it is
/// still there.
#[test]
fn what_is_told_of_a_channels_errors_outlives_it() {
    let OneContext { spy, container, program, context, .. } = OneContext::new();
    let notifier = || context.host_memory(4096).unwrap();
    let channel_telling =
        |parent: u32, (at, notifier): (usize, u32)| context.channel_with(parent, &[(at, notifier), (128, GR)]);
    for at in [0, 140] {
        let memory = notifier();
        let channel = channel_telling(context.device, (at, memory)).unwrap();
        spy.escapes(0);
        assert_eq!(context.free(memory), Err(Status::STATE_IN_USE));
        // A duplicate is another handle of the same memory, which the channel does not know.
        let duplicate = context.dup(&context, memory).unwrap();
        context.free(duplicate).unwrap();
        assert_eq!(spy.escapes(0x29).len(), 1, "the driver was asked for the duplicate alone");
        context.free(channel).unwrap();
        context.free(memory).unwrap();
    }
    for at in [0, 4] {
        let memory = notifier();
        let mut params = struct_with(32, &[(at, memory), (12, GR)]);
        let group = context.object(KEPLER_CHANNEL_GROUP_A, &mut params).unwrap();
        assert_eq!(context.free(memory), Err(Status::STATE_IN_USE));
        context.free(group).unwrap();
        context.free(memory).unwrap();
    }
    // With a device go memory and channel below it, and nothing is left to be told; another
    // device's channel would be.
    let other = context.object_below(context.client, NV01_DEVICE_0, &mut device_params(0)).unwrap();
    let memory = context.object_below(other, NV01_MEMORY_SYSTEM, &mut host_memory_params(4096)).unwrap();
    let channel = channel_telling(context.device, (0, memory)).unwrap();
    assert_eq!(context.free(other), Err(Status::STATE_IN_USE));
    context.free(channel).unwrap();
    channel_telling(other, (0, memory)).unwrap();
    context.free(other).unwrap();
    // What nobody sees freed may not be told.
    let unknown = 0x77;
    let address_space = context.object(FERMI_VASPACE_A, &mut [0; 56]).unwrap();
    for notifier in [unknown, address_space, context.device] {
        assert_eq!(channel_telling(context.device, (0, notifier)), Err(Status::OBJECT_NOT_FOUND));
    }
    let memory = notifier();
    channel_telling(context.device, (0, memory)).unwrap();
    program.free(context.control, context.client, context.client).unwrap();
    assert_eq!(container.accounts().counts().objects, 0);
}

impl Context {
    /// `UVM_REGISTER_CHANNEL`.
    fn register_channel(&self, uvm: i32, channel: u32, base: u64) -> Result<(), Status> {
        let uuid = uuid_bytes(&self.program.container.machine.inventory.cards[0].uuid);
        let names = words(&[self.control.cast_unsigned(), self.client, channel, 0]);
        let mut args = [uuid.to_vec(), names, range(base, 2 * MIB)].concat();
        self.program.uvm(uvm, 27, &mut args, 48)
    }

    /// `UVM_UNREGISTER_CHANNEL`, as before 590.
    fn unregister_channel(&self, uvm: i32, channel: u32) -> Result<(), Status> {
        let mut args = [vec![0; 16], words(&[self.client, channel, 0])].concat();
        self.program.uvm(uvm, 28, &mut args, 24)
    }
}

fn groups_and_channels(container: &Container) -> (u32, u32) {
    let counts = container.accounts().counts();
    (counts.channel_groups, counts.channels)
}

/// UVM has a duplicate of the group, and holds the channel's number and buffers.
#[test]
fn what_a_registered_channel_keeps_stays_charged_and_counted() {
    let OneContext { container, program, context, .. } = OneContext::new();
    let uvm = context.uvm_file();
    let uuid = uuid_bytes(&container.machine.inventory.cards[0].uuid);
    let unregister_card = |command: u32| program.uvm(uvm, command, &mut [uuid.to_vec(), vec![0; 4]].concat(), 16);
    let ends: [&dyn Fn(u32); 4] = [
        &|channel| context.unregister_channel(uvm, channel).unwrap(),
        &|_| unregister_card(26).unwrap(),
        &|_| unregister_card(38).unwrap(),
        &|_| {
            program.close_and_reconcile(uvm);
        },
    ];
    for (at, end) in ends.into_iter().enumerate() {
        if at > 1 {
            context.register(uvm);
        }
        let bare = at % 2 == 1;
        let parent = if bare { context.device } else { context.group(GR) };
        let channels = [(); 2].map(|()| context.channel(parent, GR).unwrap());
        let used = container.used(0);
        context.register_channel(uvm, channels[0], 0x7000_0000).unwrap();
        assert_eq!(container.used(0), used, "nothing is charged twice");
        assert_eq!(context.register_channel(uvm, channels[0], 0x7000_0000), Err(Status::INVALID_CHANNEL));
        if !bare {
            context.free(parent).unwrap();
            assert_eq!((container.used(0), groups_and_channels(&container)), (used, (1, 1)), "{at}");
        } else {
            channels.iter().for_each(|channel| context.free(*channel).unwrap());
            assert_eq!((container.used(0), groups_and_channels(&container)), (used / 2, (0, 1)), "{at}");
        }
        assert_eq!(container.gate().channels(), 0, "it does no work any more");
        end(channels[0]);
        assert_eq!((container.used(0), groups_and_channels(&container)), (0, (0, 0)), "{at}");
    }
    context.free(context.client).unwrap();
    container.assert_nothing_left();
}

#[test]
fn registrations_are_limited_in_number() {
    const REGISTER_CHANNEL: u32 = 27;
    let limits = ObjectLimits { references: 2, ..ObjectLimits::default() };
    let OneContext { spy, context, .. } = OneContext::limited(GIB, limits);
    let uvm = context.uvm_file();
    let channels = [(); 3].map(|()| context.channel(context.device, GR).unwrap());
    let register = |at: usize| context.register_channel(uvm, channels[at], 0x7000_0000 + 2 * MIB * at as u64);
    assert_eq!([register(0), register(1)], [Ok(()); 2]);
    spy.uvm_seen();
    assert_eq!(register(2), Err(Status::INSUFFICIENT_RESOURCES));
    assert!(!spy.uvm_seen().contains(&REGISTER_CHANNEL), "before the driver is asked");
    context.unregister_channel(uvm, channels[0]).unwrap();
    register(2).unwrap();
}

/// With it, whoever pins the pages would keep the mediator, and the card, waiting for as long as he
/// likes.
#[test]
fn no_range_is_made_of_pages_for_devices() {
    const ALLOC_DEVICE_P2P: u32 = 78;
    let OneContext { spy, program, context, .. } = OneContext::new();
    let uvm = context.uvm_file();
    let memory = context.memory(2 * MIB).unwrap();
    let mut args = [range(0x7000_0000, 2 * MIB), vec![0; 32]].concat();
    for (at, value) in [(40, context.control.cast_unsigned()), (44, context.client), (48, memory)] {
        assert!(write_u32(&mut args, at, value));
    }
    spy.uvm_seen();
    assert_eq!(program.uvm(uvm, ALLOC_DEVICE_P2P, &mut args, 52), Err(Status::NOT_SUPPORTED));
    assert_eq!(spy.uvm_seen(), Vec::<u32>::new());
}

/// A registration that ends before its channel does takes nothing from it.
#[test]
fn a_channel_that_is_registered_no_more_is_as_before() {
    let OneContext { container, context, .. } = OneContext::new();
    let uvm = context.uvm_file();
    let group = context.group(GR);
    let channels = [(); 3].map(|()| context.channel(group, GR).unwrap());
    let used = container.used(0);
    for (at, channel) in (0..).zip(channels) {
        context.register_channel(uvm, channel, 0x7000_0000 + at * 2 * MIB).unwrap();
    }
    channels.iter().for_each(|channel| context.unregister_channel(uvm, *channel).unwrap());
    assert_eq!(context.unregister_channel(uvm, channels[0]), Err(Status::INVALID_CHANNEL));
    assert_eq!((container.used(0), groups_and_channels(&container)), (used, (1, 3)));
    context.free(group).unwrap();
    assert_eq!((container.used(0), groups_and_channels(&container)), (0, (0, 0)));
}

#[test]
fn a_loop_of_registered_channels_ends_at_the_limits() {
    let OneContext { container, program, context, .. } = OneContext::new();
    let uvm = context.uvm_file();
    let mut params = struct_with(20, &[(12, COPY)]);
    let mut made = 0;
    let refused = loop {
        assert!(made < 200, "nothing ends it");
        let group = match context.object(KEPLER_CHANNEL_GROUP_A, &mut params) {
            Ok(group) => group,
            Err(status) => break status,
        };
        let channel = context.channel(group, COPY).unwrap();
        context.register_channel(uvm, channel, 0x7000_0000 + made * 2 * MIB).unwrap();
        context.free(group).unwrap();
        made += 1;
    };
    assert_eq!((made, refused), (128, Status::INSUFFICIENT_RESOURCES));
    // What nobody has any more ends when room is needed, wherever the file itself may be.
    let hidden = program.file_of(uvm);
    program.close(uvm);
    context.object(KEPLER_CHANNEL_GROUP_A, &mut params).unwrap();
    assert_eq!(groups_and_channels(&container), (1, 0));
    drop(hidden);
}

/// Gives an object out to a new file.
fn export(context: &Context, object: u32) -> Result<(), Status> {
    let fd = context.program.open(Node::Control);
    let mut params = words(&[1, context.device, context.device, object, fd.cast_unsigned(), 0]);
    context.control(context.client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, &mut params)
}

/// The driver would give out whatever can be duplicated: a group that others take in is one that
/// nobody counts.
#[test]
fn only_memory_is_given_out_to_files() {
    let OneContext { spy, context, .. } = OneContext::new();
    let (group, memory) = (context.group(GR), context.memory(MIB).unwrap());
    let channel = context.channel(group, GR).unwrap();
    let address_space = context.object(FERMI_VASPACE_A, &mut [0; 56]).unwrap();
    for object in [group, channel, address_space, context.device] {
        assert_eq!(export(&context, object), Err(Status::NOT_SUPPORTED));
    }
    assert_eq!(spy.count(NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD), 0);
    export(&context, memory).unwrap();
}

/// Each device is kept by the card's firmware, in a heap that all who use the card share.
#[test]
fn devices_are_bounded_on_each_card() {
    let OneContext { program, context, .. } = OneProgram::on_cards(2, 8 * GIB).with_context();
    let subdevice = |device: u32| context.object_below(device, NV20_SUBDEVICE_0, &mut [0; 4]);
    let mut made = 2;
    let refused = loop {
        assert!(made < 1100, "nothing ends it");
        match subdevice(context.device) {
            Ok(_) => made += 1,
            Err(status) => break status,
        }
    };
    assert_eq!((made, refused), (1024, Status::INSUFFICIENT_RESOURCES));
    // The other card's firmware has nothing to do with it, nor has memory.
    program.context(1);
    context.memory(MIB).unwrap();
    context.free(context.device).unwrap();
    program.context(0);
}

/// The driver makes groups and graphics contexts for channels' sake, with handles that nobody was
/// told; they can be duplicated, and keep the buffers of a context then.
#[test]
fn what_the_driver_has_made_for_itself_is_not_duplicated_nor_given_out() {
    let OneContext { spy, container, program, context, .. } = OneContext::new();
    let hidden = context.group(GR);
    container.accounts().free(Handle(context.client), Handle(hidden)).unwrap();
    lock(&container.session.objects.topology).remove(Handle(context.client), Handle(hidden));
    let other = program.context(0);
    let pinned = 0x5c00_0077;
    pin(&context, card_of(&context), pinned, 64 << 10).unwrap();
    let objects = || container.accounts().counts().objects;
    let before = objects();
    for to in [&context, &other] {
        let duplicate = to.dup(&context, hidden);
        assert_eq!(duplicate, Err(Status::OBJECT_NOT_FOUND));
    }
    assert_eq!((objects(), spy.duplicates()), (before, 1), "what was pinned");
    assert_eq!(export(&context, hidden), Err(Status::NOT_SUPPORTED));
    let duplicate = other.dup(&context, pinned).unwrap();
    assert_eq!((objects(), spy.duplicates()), (before + 1, 2));
    export(&context, pinned).unwrap();
    export(&other, duplicate).unwrap();
}

/// From 575.51 to 595 the driver keeps its locks for good when what is to be made of a duplicate
/// has no parent: it must not get there.
#[test]
fn nothing_is_duplicated_or_imported_below_what_is_not_there() {
    let OneContext { spy, program, context, .. } = OneContext::new();
    let other = program.context(0);
    let memory = context.memory(MIB).unwrap();
    let channel_group = other.group(GR);
    let gone = other.object_below(other.client, NV01_DEVICE_0, &mut device_params(0)).unwrap();
    other.free(gone).unwrap();
    spy.escapes(0x34);
    for parent in [0, 0xdead, gone, channel_group] {
        let duplicate = program.dup(other.control, (other.client, parent), (context.client, memory));
        assert_eq!(duplicate, Err(Status::OBJECT_NOT_FOUND), "{parent:#x}");
    }
    assert!(spy.escapes(0x34).is_empty(), "the driver was not asked");
    for parent in [other.client, other.device] {
        program.dup(other.control, (other.client, parent), (context.client, memory)).unwrap();
    }
    let subdevice = other.object(NV20_SUBDEVICE_0, &mut [0; 4]).unwrap();
    program.dup(other.control, (other.client, subdevice), (context.client, memory)).unwrap();
    assert_eq!(spy.escapes(0x34).len(), 3);
}
