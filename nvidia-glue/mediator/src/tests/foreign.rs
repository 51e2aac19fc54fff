//! Calls that name clients, cards and files of others.

use abi::{
    Handle, Node, Status,
    classes::{
        FERMI_VASPACE_A, GF100_SUBDEVICE_MASTER, KEPLER_CHANNEL_GROUP_A, NV01_MEMORY_FLA, NV01_MEMORY_LIST_FBMEM,
        NV01_MEMORY_LOCAL_USER, OS_DESCRIPTOR, OS_EVENT, RM_USER_SHARED_DATA,
    },
    controls::{
        NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD,
        NV2080_CTRL_CMD_FB_GET_INFO_V2, NV2080_CTRL_CMD_GET_P2P_CAPS, controls,
    },
    layout::read_u32,
};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use account::ObjectName;
use base::OverMemory;
use driver::{DeviceFile, Driver, DriverCall};
use simulator::SimulatedDriver;

use super::{
    alone::{OneContext, OneProgram, TwoContexts},
    spy::like_the_driver_behind,
    world::{Context, MIB, Machine, memory_params, struct_with, words},
};
use crate::{Answer, locks::lock, objects::open_files::MOST_UVM};

const LIMIT: u64 = 64 * MIB;

/// `NV_ESC_RM_IDLE_CHANNELS` of a channel in each of these clients.
fn idle(context: &Context, clients: &[u32]) -> Result<(), Status> {
    let count = u32::try_from(clients.len()).unwrap();
    let program = &context.program;
    let (list, others) = (program.put(&words(clients)), program.put(&vec![0; 4 * clients.len()]));
    let mut args = words(&[context.client, context.device, context.device, count]);
    for address in [list, others, others] {
        args.extend(address.to_le_bytes());
    }
    args.extend([0; 16]);
    program.rm(context.control, 0x41, &mut args, 48)
}

#[test]
fn nobody_waits_for_another_containers_channels() {
    let TwoContexts { context, foreign, .. } = TwoContexts::within(LIMIT);
    assert_eq!(idle(&context, &[context.client]), Ok(()));
    assert_eq!(idle(&context, &[]), Ok(()));
    assert_eq!(idle(&context, &[context.client, foreign.client]), Err(Status::INVALID_CLIENT));
}

/// Each control whose parameters name a client, with a neighbour's that lives: in each place where
/// they do.
#[test]
fn no_control_names_another_containers_client() {
    let TwoContexts { spy, container, context, foreign, .. } = TwoContexts::within(LIMIT);
    let mut tried = 0;
    for row in controls().filter(|row| !row.clients.is_empty()) {
        for at in row.clients_in(container.session.abi) {
            for (client, is_own) in [(foreign.client, false), (context.client, true)] {
                let mut params = struct_with(512, &[(usize::from(at), client)]);
                spy.seen();
                let answer = context.subdevice_control(row.id, &mut params);
                let has_reached_the_driver = spy.seen().iter().any(|seen| seen.id == row.id);
                assert_eq!(has_reached_the_driver, is_own, "{} at {at}", row.name);
                assert_eq!(answer == Err(Status::INVALID_CLIENT), !is_own, "{} at {at}: {answer:?}", row.name);
            }
            tried += 1;
        }
    }
    assert_eq!(tried, 6, "rows that name a client and reach the driver");
}

/// It would tell what happens to another container's object.
#[test]
fn no_event_watches_another_containers_object() {
    const KINDS: [u32; 2] = [0x05, 0x79];
    let TwoContexts { spy, context, foreign, .. } = TwoContexts::within(LIMIT);
    for kind in KINDS {
        for (client, object) in [(foreign.client, foreign.device), (foreign.client, context.device)] {
            spy.escapes(0);
            let event = context.object(kind, &mut words(&[client, object, OS_EVENT, 12, 40, 0]));
            assert_eq!(event, Err(Status::INVALID_CLIENT), "{kind:#x}");
            assert_eq!(spy.made_classes(), Vec::<u32>::new());
        }
        context.object(kind, &mut words(&[context.client, context.device, OS_EVENT, 12, 40, 0])).unwrap();
        context.object(kind, &mut words(&[0, context.device, OS_EVENT, 12, 40, 0])).unwrap();
    }
}

#[test]
fn a_subdevice_is_not_asked_about_cards_that_are_not_granted() {
    let machine = Machine::new(2);
    let container = machine.container(&[0], LIMIT);
    let context = container.program().context(0);
    let mut params = struct_with(8 + 32 * 52, &[(4, 1), (8, 0xdead_0000)]);
    assert_eq!(context.subdevice_control(NV2080_CTRL_CMD_GET_P2P_CAPS, &mut params), Err(Status::INVALID_ARGUMENT));
}

#[test]
fn memory_is_registered_as_pinned_memory_of_an_own_client_only() {
    let TwoContexts { container, context, foreign, .. } = TwoContexts::within(LIMIT);
    let program = &context.program;
    let card = program.open(Node::Card(container.machine.inventory.cards[0].minor));
    assert_eq!(program.escape(card, 0xc9, &mut context.control.to_le_bytes()), Answer::Return(0));
    let ask = |client: u32, class: u32| {
        let mut args =
            struct_with(56, &[(0, client), (4, context.device), (8, 0xcaf_e001), (12, class), (48, u32::MAX)]);
        let answer = program.escape(card, 0x27, &mut args);
        (answer, Status(read_u32(&args, 40).unwrap()))
    };
    for class in [NV01_MEMORY_LOCAL_USER, NV01_MEMORY_FLA, NV01_MEMORY_LIST_FBMEM] {
        assert_eq!(ask(context.client, class), (Answer::Return(0), Status::INVALID_CLASS), "{class:#x}");
    }
    assert_eq!(ask(foreign.client, OS_DESCRIPTOR), (Answer::Return(0), Status::INVALID_CLIENT));
    assert_eq!(ask(context.client, OS_DESCRIPTOR), (Answer::Return(0), Status::OK));
}

/// A page on which the driver tells about the card, and a try to map it; whether zeros are what is
/// mapped.
fn is_zeros(context: &Context, page: u32) -> bool {
    let program = &context.program;
    let file = program.open(Node::Control);
    context.map_on(file, (context.subdevice, page), 2608).unwrap();
    program.file_of(file).metadata().unwrap().len() == 1 << 16
}

#[test]
fn a_duplicate_of_the_drivers_page_is_hidden_like_the_page() {
    let OneContext { program, context, .. } = OneContext::within(LIMIT);
    let page = context.object_below(context.subdevice, RM_USER_SHARED_DATA, &mut [0; 8]).unwrap();
    let duplicate = program.dup(context.control, (context.client, context.subdevice), (context.client, page)).unwrap();
    assert!(is_zeros(&context, page));
    assert!(is_zeros(&context, duplicate));
    // The handle is somebody else's then.
    context.free(duplicate).unwrap();
    let plain = context.object_named((context.subdevice, duplicate), GF100_SUBDEVICE_MASTER, &mut []).unwrap();
    assert_eq!(plain, duplicate);
    assert!(!is_zeros(&context, plain));
    // Exported, it could be mapped by whoever takes it in.
    let file = program.open(Node::Control);
    let mut export =
        struct_with(24, &[(0, 1), (4, context.device), (8, context.subdevice), (12, page), (16, file.cast_unsigned())]);
    let exported = context.control(context.client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, &mut export);
    assert_eq!(exported, Err(Status::NOT_SUPPORTED));
}

/// Counts the controls in clients that do not exist: for each, the driver writes a line into the
/// kernel's log.
#[derive(Debug)]
struct Logging {
    driver: Arc<SimulatedDriver>,
    lines: AtomicU32,
}

impl Driver for Logging {
    fn ioctl(&self, file: &DeviceFile, call: DriverCall<'_>) -> io::Result<i32> {
        let is_control = call.command & 0xff == 0x2a;
        let DriverCall { command, args, buffers, files } = call;
        let answer = self.driver.ioctl(file, DriverCall { command, args: &mut *args, buffers, files });
        let is_there = |client| self.driver.has_client(client);
        let names_nobody = read_u32(args, 0).is_some_and(|client| !is_there(client));
        if is_control && names_nobody && read_u32(args, 28) == Some(Status::INVALID_CLIENT.0) {
            self.lines.fetch_add(1, Ordering::SeqCst);
        }
        answer
    }
    like_the_driver_behind!();
}

#[test]
fn the_kernels_log_is_not_filled_with_clients_that_are_gone() {
    let machine = Machine::new(1);
    let driver = Arc::new(Logging { driver: Arc::clone(&machine.driver), lines: AtomicU32::new(0) });
    let container = machine.container_on(Arc::clone(&driver) as Arc<dyn Driver>, OverMemory::Deny, &[0], LIMIT);
    let program = container.program();
    let control = program.open(Node::Control);
    for _ in 0..5 {
        let context = program.context(0);
        context.ended_by_the_driver();
        for _ in 0..5 {
            let asked = program.control(
                control,
                (context.client, context.client),
                NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS,
                &mut [0; 128],
            );
            assert_eq!(asked, Err(Status::INVALID_CLIENT));
        }
    }
    assert_eq!(driver.lines.load(Ordering::SeqCst), 1, "from then on clients are looked for first");
    let context = program.context(0);
    context.subdevice_control(NV2080_CTRL_CMD_FB_GET_INFO_V2, &mut [0; 1028]).unwrap();
    // Of one whose file the program has closed, the driver says only that it is another file's.
    program.close(context.control);
    let asked =
        program.control(control, (context.client, context.client), NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, &mut [0; 128]);
    assert_eq!((asked, driver.lines.load(Ordering::SeqCst)), (Err(Status::INVALID_CLIENT), 1));
}

/// One thread duplicates a handle; another one makes the handle stand for something larger
/// meanwhile.
#[test]
fn what_is_charged_is_what_the_driver_found_under_the_handle() {
    let OneContext { machine, container, program, context, .. } = OneContext::within(LIMIT);
    let handle = context.memory(MIB).unwrap();
    let is_over = AtomicBool::new(false);
    // Judged when both are through: a panic beside the other thread would wait for it for ever.
    let mut wrong = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for size in [16 * MIB, MIB].into_iter().cycle().take_while(|_| !is_over.load(Ordering::SeqCst)) {
                let _ = context.free(handle);
                let at = (context.client, context.device, handle);
                let _ = program.alloc(context.control, at, NV01_MEMORY_LOCAL_USER, &mut memory_params(size));
            }
        });
        for _ in 0..300 {
            let duplicate = context.dup(&context, handle);
            if let Ok(duplicate) = duplicate {
                let name = |object| ObjectName::new(Handle(context.client), Handle(object));
                let charge = container.accounts().object(name(duplicate)).and_then(|view| view.charge);
                let size = machine.driver.length_of(context.client, duplicate);
                let charge = charge.map(|(_, bytes)| bytes.0);
                wrong.extend((charge != size).then_some((charge, size)));
                let _ = context.free(duplicate);
            }
        }
        is_over.store(true, Ordering::SeqCst);
    });
    assert_eq!(wrong, [], "charged, and what the driver has");
}

#[test]
fn uvm_files_that_nobody_has_any_more_do_not_pile_up() {
    let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
    for _ in 0..3 * MOST_UVM {
        let uvm = program.uvm_file();
        program.close(uvm);
    }
    assert!(lock(&container.session.objects.files).all_uvm().len() <= MOST_UVM);
    let held: Vec<i32> = (0..MOST_UVM).map(|_| program.open(Node::Uvm)).collect();
    let answers = held.iter().map(|uvm| program.ioctl(*uvm, 0x3000_0001, &mut [0; 16]));
    assert!(answers.filter(|answer| *answer == Answer::Return(0)).count() <= MOST_UVM);
    let one_more = program.open(Node::Uvm);
    assert_eq!(program.ioctl(one_more, 0x3000_0001, &mut [0; 16]), Answer::Errno(libc::EMFILE));
    program.close(held[7]);
    assert_eq!(program.ioctl(one_more, 0x3000_0001, &mut [0; 16]), Answer::Return(0));
}

#[test]
fn groups_that_went_with_what_they_depend_on_are_forgotten() {
    let OneContext { container, context, .. } = OneContext::within(LIMIT);
    let space = context.object(FERMI_VASPACE_A, &mut [0; 56]).unwrap();
    let mut params = struct_with(20, &[(8, space), (12, 9)]);
    let group = context.object(KEPLER_CHANNEL_GROUP_A, &mut params).unwrap();
    let is_known = || lock(&container.session.objects.topology).group(Handle(context.client), Handle(group)).is_some();
    assert!(is_known());
    context.free(space).unwrap();
    assert!(!is_known());
}
