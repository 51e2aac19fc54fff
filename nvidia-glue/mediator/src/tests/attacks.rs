//! Ways around a quota that were thought of.

use abi::{
    Node, Status,
    classes::{HOPPER_COMPUTE_A, NV01_MEMORY_LOCAL_USER, NV20_SUBDEVICE_0},
    controls::{
        NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, NV0080_CTRL_CMD_DMA_FLUSH, NV0080_CTRL_CMD_DMA_GET_PDE_INFO,
        NV0080_CTRL_CMD_DMA_GET_PTE_INFO, NV0080_CTRL_CMD_DMA_SET_PTE_INFO, NV2080_CTRL_CMD_EVENT_SET_MEMORY_NOTIFIES,
        NV2080_CTRL_CMD_EVENT_SET_SEMA_MEM_VALIDATION, NV2080_CTRL_CMD_EVENT_SET_SEMAPHORE_MEMORY,
        NV2080_CTRL_CMD_EVENT_SET_TRIGGER, NV2080_CTRL_CMD_EVENT_SET_TRIGGER_FIFO, NV2080_CTRL_CMD_FB_GET_INFO_V2,
        NV2080_CTRL_CMD_GPU_ACQUIRE_COMPUTE_MODE_RESERVATION, NV2080_CTRL_CMD_GPU_GET_INFO_V2,
        NV2080_CTRL_CMD_GPU_RELEASE_COMPUTE_MODE_RESERVATION, NV2080_CTRL_CMD_GR_CTXSW_PM_MODE,
        NV2080_CTRL_CMD_GR_CTXSW_SMPC_MODE, NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE,
        NV2080_CTRL_CMD_GR_PC_SAMPLING_MODE,
    },
    escapes::{NV_ESC_RM_ALLOC, NV_ESC_RM_FREE},
    layout::{read_u32, write_u32},
    params::{NVOS00_PARAMETERS, NVOS21_PARAMETERS},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use proptest::prelude::*;

use super::{
    alone::{OneContext, OneProgram, TwoContexts},
    world::{
        Container, Context, MIB, Machine, Program, alloc_args, control_args, memory_params, result, struct_with, words,
    },
};
use crate::{Answer, Trapped, locks::lock};

const LIMIT: u64 = 64 * MIB;
const GET_ATTACHED_IDS: u32 = NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS;

/// Whatever is called in a client of another container: the registry of clients refuses it, before
/// the driver, which takes anybody with the right file for the client's owner. (Allocations and
/// duplicates are refused by the accounts once more.)
#[test]
fn no_call_in_a_client_of_others_reaches_the_driver() {
    let TwoContexts { spy, container: victims, neighbour: thieves, context: owner, foreign: own } =
        TwoContexts::within(LIMIT);
    let (thief, memory) = (&own.program, owner.memory(MIB).unwrap());
    // Handed the very file that the client lives on, which is all that the driver asks for.
    let stolen = thief.give(owner.program.file_of(owner.control));
    // Free, control, allocation, duplicate, share, heap, map, unmap, context DMA, map and unmap for
    // the card, bind, new mapping, events; each with its size, and where its status is.
    let calls: [(u8, usize, usize); 14] = [
        (0x29, 16, 12),
        (0x2a, 32, 28),
        (0x2b, 32, 28),
        (0x34, 28, 24),
        (0x35, 24, 20),
        (0x4a, 184, 20),
        (0x4e, 56, 40),
        (0x4f, 32, 24),
        (0x54, 56, 48),
        (0x57, 64, 56),
        (0x58, 48, 40),
        (0x59, 16, 12),
        (0xce, 16, 12),
        (0xcf, 16, 12),
    ];
    for fd in [stolen, own.control] {
        for (number, size, status_at) in calls {
            let mut args = struct_with(size, &[(0, owner.client), (4, owner.device), (8, memory)]);
            if number == 0x2b {
                assert!(write_u32(&mut args, 12, NV01_MEMORY_LOCAL_USER));
            }
            spy.escapes(0);
            assert_eq!(thief.rm(fd, number, &mut args, status_at), Err(Status::INVALID_CLIENT), "{number:#x}");
            assert_eq!(spy.escapes(number), Vec::<Vec<u8>>::new(), "{number:#x}");
        }
        assert_eq!(thief.free(fd, owner.client, owner.client), Err(Status::INVALID_CLIENT));
        let attached = thief.control(fd, (owner.client, owner.client), GET_ATTACHED_IDS, &mut [0; 128]);
        assert_eq!(attached, Err(Status::INVALID_CLIENT));
        let place = (owner.client, owner.device, 0);
        let made = thief.alloc(fd, place, NV01_MEMORY_LOCAL_USER, &mut memory_params(MIB));
        assert_eq!(made, Err(Status::INVALID_CLIENT));
        let taken = thief.dup(fd, (own.client, own.device), (owner.client, memory));
        assert_eq!(taken, Err(Status::INVALID_CLIENT));
        let left = thief.dup(fd, (owner.client, owner.device), (own.client, own.device));
        assert_eq!(left, Err(Status::INVALID_CLIENT));
    }
    assert!(owner.subdevice_control(NV2080_CTRL_CMD_GPU_GET_INFO_V2, &mut [0; 8]).is_ok());
    assert_eq!((victims.used(0), thieves.used(0)), (MIB, 0));
    owner.free(memory).unwrap();
}

/// The driver would write three lines into the kernel's log for each.
#[test]
fn a_question_about_a_channel_without_context_does_not_reach_the_driver() {
    const CONTEXT_SIZE: u32 = NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE;
    let OneContext { spy, context, .. } = OneContext::new();
    let (group, channel) = context.group_of_one(1);
    let mut question = [words(&[channel, 0]), vec![0; 8]].concat();
    spy.seen();
    for object in [channel, group, context.device, 0, 77] {
        let mut question = [words(&[object, 0]), vec![0; 8]].concat();
        assert_eq!(context.subdevice_control(CONTEXT_SIZE, &mut question), Err(Status(0x31)), "{object:#x}");
    }
    assert_eq!(spy.count(CONTEXT_SIZE), 0);
    context.object_below(channel, HOPPER_COMPUTE_A, &mut []).unwrap();
    assert_eq!(spy.count(CONTEXT_SIZE), 1, "the mediator asks once, for the charge");
    context.subdevice_control(CONTEXT_SIZE, &mut question).unwrap();
    assert_eq!(spy.count(CONTEXT_SIZE), 1);
}

/// The driver would let a program say where a page of its lies; keep a bare pointer to memory, and
/// write through it when that is freed; signal the events of others; flush the whole card's cache;
/// make a profiler's buffers for a group that was measured before.
#[test]
fn page_tables_notifiers_and_profilers_do_not_reach_the_driver() {
    let OneContext { spy, context, .. } = OneContext::new();
    let subdevice = context.subdevice;
    let calls: [(u32, u32); 12] = [
        (context.device, NV0080_CTRL_CMD_DMA_GET_PTE_INFO),
        (context.device, NV0080_CTRL_CMD_DMA_FLUSH),
        (context.device, NV0080_CTRL_CMD_DMA_GET_PDE_INFO),
        (context.device, NV0080_CTRL_CMD_DMA_SET_PTE_INFO),
        (subdevice, NV2080_CTRL_CMD_EVENT_SET_TRIGGER),
        (subdevice, NV2080_CTRL_CMD_EVENT_SET_MEMORY_NOTIFIES),
        (subdevice, NV2080_CTRL_CMD_EVENT_SET_SEMAPHORE_MEMORY),
        (subdevice, NV2080_CTRL_CMD_EVENT_SET_SEMA_MEM_VALIDATION),
        (subdevice, NV2080_CTRL_CMD_EVENT_SET_TRIGGER_FIFO),
        (subdevice, NV2080_CTRL_CMD_GR_CTXSW_PM_MODE),
        (subdevice, NV2080_CTRL_CMD_GR_CTXSW_SMPC_MODE),
        (subdevice, NV2080_CTRL_CMD_GR_PC_SAMPLING_MODE),
    ];
    spy.seen();
    for (object, id) in calls {
        assert_eq!(context.control(object, id, &mut [0; 200]), Err(Status::NOT_SUPPORTED), "{id:#010x}");
    }
    assert_eq!(spy.seen(), []);
}

/// In an exclusive compute mode, who asked the driver first would keep the card from all others.
#[test]
fn a_reservation_of_the_card_is_answered_without_the_driver() {
    let TwoContexts { spy, context, foreign, .. } = TwoContexts::within(LIMIT);
    spy.seen();
    for id in
        [NV2080_CTRL_CMD_GPU_ACQUIRE_COMPUTE_MODE_RESERVATION, NV2080_CTRL_CMD_GPU_RELEASE_COMPUTE_MODE_RESERVATION]
    {
        spy.refuse(id, Status::STATE_IN_USE);
        for context in [&context, &foreign] {
            assert_eq!(context.subdevice_control(id, &mut []), Ok(()), "{id:#010x}");
        }
    }
    assert_eq!(spy.seen(), []);
}

/// Allocates memory of `size`, while another thread overwrites the class once the struct is read,
/// and the size once the parameters are.
fn alloc_in_a_race(context: &Context, size: u64, then: u64) -> Result<u64, Status> {
    let program = &context.program;
    let params = program.put(&memory_params(size));
    let args = alloc_args((context.client, context.device, 0), 0x40, params);
    let args_at = program.put(&args);
    program.race_with({
        let first = AtomicBool::new(true);
        move |program, _| {
            program.poke(args_at + 12, &0x3e_u32.to_le_bytes());
            if !first.swap(false, Ordering::SeqCst) {
                program.poke(params + 64, &then.to_le_bytes());
            }
        }
    });
    let stopped = Trapped::escape(context.control, (NV_ESC_RM_ALLOC, NVOS21_PARAMETERS::SIZE), args_at);
    let answer = program.handle(stopped);
    program.no_race();
    let args = program.take(args_at);
    program.take(params);
    result(answer, &args, 28).map(|()| program.container.used(0))
}

#[test]
fn what_was_checked_is_what_is_executed() {
    let OneContext { container, context, .. } = OneContext::within(LIMIT);
    // The class is read before it becomes one that is not charged; the size, before it becomes
    // larger.
    assert_eq!(alloc_in_a_race(&context, LIMIT / 2, 100 * LIMIT), Ok(LIMIT / 2));
    assert_eq!(alloc_in_a_race(&context, LIMIT, 1), Err(Status::NO_MEMORY));
    assert_eq!(container.session.reconcile(), []);
}

#[test]
fn memory_that_is_not_there_is_an_error_of_the_caller_alone() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let before = container.used(0);
    for pointer in [1, 0xffff_ffff_ffff_f000, u64::MAX] {
        let mut args = alloc_args((context.client, context.device, 0), 0x40, pointer);
        assert_eq!(program.escape(context.control, 0x2b, &mut args), Answer::Errno(libc::EFAULT));
        let mut args =
            control_args((context.client, context.subdevice), NV2080_CTRL_CMD_FB_GET_INFO_V2, (pointer, 1028));
        assert_eq!(program.escape(context.control, 0x2a, &mut args), Answer::Errno(libc::EFAULT));
        assert_eq!(
            program.handle(Trapped::escape(context.control, (NV_ESC_RM_ALLOC, NVOS21_PARAMETERS::SIZE), pointer)),
            Answer::Errno(libc::EFAULT)
        );
    }
    let mut huge = words(&[context.client, context.subdevice, NV2080_CTRL_CMD_FB_GET_INFO_V2, 0]);
    huge.extend(program.put(&[0; 16]).to_le_bytes());
    huge.extend(words(&[u32::MAX, 0]));
    assert_eq!(program.rm(context.control, 0x2a, &mut huge, 28), Err(Status::INVALID_ARGUMENT));
    assert_eq!(container.used(0), before);
    assert_eq!(container.accounts().counts().abandoned, 0);
}

#[test]
fn what_a_caller_that_is_gone_never_hears_of_is_undone() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let objects = || container.accounts().counts().objects;
    let before = objects();
    // Before it is executed; then, while it is.
    let gone = |work: &dyn Fn() -> Answer| {
        program.goes_after_reads(1);
        assert_eq!(work(), Answer::Errno(libc::EINTR));
        program.comes_back();
        program.goes_after_looks(1);
        assert_eq!(work(), Answer::Errno(libc::EINTR));
        program.comes_back();
    };
    for class in [0x40, 0x3e] {
        gone(&|| {
            let params = program.put(&memory_params(4 * MIB));
            let mut args = alloc_args((context.client, context.device, 0), class, params);
            program.escape(context.control, 0x2b, &mut args)
        });
    }
    assert_eq!((container.used(0), objects()), (0, before));
    let clients = container.accounts().counts().clients;
    gone(&|| program.escape(context.control, 0x2b, &mut [0; 32]));
    assert_eq!(container.accounts().counts().clients, clients);
    let memory = context.memory(4 * MIB).unwrap();
    gone(&|| {
        let mut args = words(&[context.client, context.device, 0, context.client, memory, 0, 0]);
        program.escape(context.control, 0x34, &mut args)
    });
    context.free(memory).unwrap();
    assert_eq!((container.used(0), objects()), (0, before));
    assert_eq!(container.session.reconcile(), []);
}

/// Bytes of a thread that no longer waits may be anything: it gets nobody denied, killed or
/// counted, and no status is written over what the thread does meanwhile.
#[test]
fn nothing_is_decided_on_what_was_read_of_a_caller_that_is_gone() {
    let OneContext { container, program, context, .. } = OneProgram::killed_beyond(LIMIT).with_context();
    let uvm = context.uvm_file();
    let unknown_class = 0x1234;
    for (class, reads) in [(0x40, 2), (0x40, 1), (unknown_class, 1)] {
        let mut args = alloc_args((context.client, context.device, 0), class, program.put(&memory_params(100 * LIMIT)));
        program.goes_after_reads(reads);
        assert_eq!(program.escape(context.control, 0x2b, &mut args), Answer::Errno(libc::EINTR), "{class:#x} {reads}");
        program.comes_back();
    }
    // A range of another card's, and one that would be made.
    for number in [33, 73] {
        let argument = program.put(&vec![0; 9264]);
        program.goes_after_reads(1);
        assert!(matches!(
            program.handle(Trapped::Ioctl { fd: uvm, command: number, argument }),
            Answer::Errno(libc::EINTR)
        ));
        program.comes_back();
    }
    assert!(lock(&container.observed.over_memory).is_empty());
    let usage = container.session.usage();
    assert_eq!((usage.denials, usage.kills), (0, 0));
    assert_eq!(container.session.reconcile(), []);
}

#[test]
fn an_answer_that_nobody_took_is_undone() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let args = alloc_args((context.client, context.device, 0), 0x40, program.put(&memory_params(LIMIT)));
    let argument = program.put(&args);
    let stopped = Trapped::escape(context.control, (NV_ESC_RM_ALLOC, NVOS21_PARAMETERS::SIZE), argument);
    for _ in 0..3 {
        let (answer, sequel) = container.session.handle_with_sequel(&*program, &stopped);
        assert_eq!(answer, Answer::Return(0));
        assert_eq!(container.used(0), LIMIT);
        container.session.answered(sequel.unwrap(), false);
        assert_eq!(container.used(0), 0);
        program.poke(argument, &args);
        program.poke(args_params(&args), &memory_params(LIMIT));
    }
    let free = program.put(&words(&[context.client, context.client, context.device, 0]));
    let stopped = Trapped::escape(context.control, (NV_ESC_RM_FREE, NVOS00_PARAMETERS::SIZE), free);
    assert!(container.session.handle_with_sequel(&*program, &stopped).1.is_none());
}

/// Returns where the parameters of an allocation are.
fn args_params(args: &[u8]) -> u64 {
    abi::layout::read_u64(args, 16).unwrap()
}

#[test]
fn results_that_cannot_be_written_are_undone_too() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let params = program.put(&memory_params(4 * MIB));
    let mut args = alloc_args((context.client, context.device, 0), 0x40, params);
    // Another thread unmaps the parameters once they are read.
    let first = AtomicBool::new(true);
    program.race_with(move |program, _| {
        if !first.swap(false, Ordering::SeqCst) {
            program.take(params);
        }
    });
    let answer = program.escape(context.control, 0x2b, &mut args);
    program.no_race();
    assert_eq!(answer, Answer::Errno(libc::EFAULT));
    assert_eq!(container.used(0), 0);
    assert_eq!(container.session.reconcile(), []);
}

#[test]
fn other_cards_of_the_machine_stay_out_of_reach_through_uvm() {
    let machine = Machine::new(2);
    let container = machine.container(&[0], LIMIT);
    let program = container.program();
    let uvm = program.uvm_file();
    let mut register =
        [super::world::uuid_bytes(&container.machine.inventory.cards[1].uuid).to_vec(), vec![0; 24]].concat();
    assert!(write_u32(&mut register, 24, u32::MAX));
    assert_eq!(program.uvm(uvm, 37, &mut register, 36), Err(Status::INVALID_DEVICE));
}

#[test]
fn a_range_ends_with_what_it_was_and_not_with_what_it_was_said_to_be() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let uvm = context.uvm_file();
    let memory = context.memory(4 * MIB).unwrap();
    context.map(uvm, 0x7000_0000, 4 * MIB, memory).unwrap();
    context.free(memory).unwrap();
    // A second UVM file of the same process, with a range at the same place: its end is not the
    // first one's.
    let other = program.uvm_file();
    program.create_range(other, 0x7000_0000, 4 * MIB).unwrap();
    program.free_range(other, 0x7000_0000, 4 * MIB).unwrap();
    assert_eq!(container.used(0), 4 * MIB);
    let second = program.give(program.file_of(uvm));
    program.free_range(second, 0x7000_0000, 4 * MIB).unwrap();
    assert_eq!(container.used(0), 0, "the same file under another number");
}

#[test]
fn legacy_and_nested_calls_are_no_way_round() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    // NV_ESC_IOCTL_XFER_CMD with an allocation inside.
    let inner = program.put(&[0; 32]);
    let mut xfer = words(&[0x2b, 32]);
    xfer.extend(inner.to_le_bytes());
    assert_eq!(program.escape(context.control, 0xd3, &mut xfer), Answer::Errno(libc::EINVAL));
    // Every class that aliases memory by address, and pinned memory by way of RM_ALLOC.
    for class in [0x3f, 0x71, 0x81, 0x82, 0x83, 0xc2, 0xfd, 0xe0] {
        assert!(context.object(class, &mut [0; 256]).is_err(), "{class:#x}");
    }
    // An allocation without parameters.
    let mut args = words(&[context.client, context.device, 0, 0x40, 0]);
    let answer = program.escape(context.control, 0x28, &mut args);
    assert!(result(answer, &args, 16).is_err());
    assert_eq!(container.used(0), 0);
}

/// One step of a program that does as it likes.
#[derive(Debug, Clone)]
enum Step {
    Memory { size: u64, huge: bool },
    Free { which: usize },
    Map { which: usize, at: u64 },
    Unmap { at: u64 },
    Dup { which: usize },
    Context,
    Close { which: usize },
    Exec,
    Garbage { number: u8, bytes: Vec<u8> },
    GarbageUvm { command: u32, bytes: Vec<u8> },
    GarbageControl { id: u32, bytes: Vec<u8> },
}

fn any_step() -> impl Strategy<Value = Step> {
    let bytes = || prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..200);
    prop_oneof![
        8 => (0..40 * MIB, any::<bool>()).prop_map(|(size, huge)| Step::Memory { size, huge }),
        6 => any::<usize>().prop_map(|which| Step::Free { which }),
        6 => (any::<usize>(), 0..8_u64).prop_map(|(which, at)| Step::Map { which, at }),
        4 => (0..8_u64).prop_map(|at| Step::Unmap { at }),
        4 => any::<usize>().prop_map(|which| Step::Dup { which }),
        2 => Just(Step::Context),
        2 => any::<usize>().prop_map(|which| Step::Close { which }),
        1 => Just(Step::Exec),
        3 => (any::<u8>(), bytes()).prop_map(|(number, bytes)| Step::Garbage { number, bytes }),
        3 => (0..90_u32, bytes()).prop_map(|(command, bytes)| Step::GarbageUvm { command, bytes }),
        3 => (prop_oneof![0..0x4000_u32, NV20_SUBDEVICE_0 << 16..NV20_SUBDEVICE_0 << 16 | 0x4000], bytes())
            .prop_map(|(id, bytes)| Step::GarbageControl { id, bytes }),
    ]
}

/// A program's contexts, memory and files.
struct Life {
    program: Arc<Program>,
    contexts: Vec<Context>,
    memory: Vec<(usize, u32)>,
    uvm: i32,
}

impl Life {
    fn step(&mut self, step: &Step) {
        let pick = |which: usize, count: usize| (count > 0).then(|| which % count);
        match step {
            Step::Memory { size, huge } => {
                let mut params = memory_params(*size);
                assert!(write_u32(&mut params, 24, if *huge { 3 << 23 } else { 0 }));
                if let Ok(memory) = self.contexts[0].object(NV01_MEMORY_LOCAL_USER, &mut params) {
                    self.memory.push((0, memory));
                }
            }
            Step::Free { which } => {
                if let Some(at) = pick(*which, self.memory.len()) {
                    let (context, memory) = self.memory.swap_remove(at);
                    let _ = self.contexts[context].free(memory);
                }
            }
            Step::Map { which, at } => {
                if let Some(picked) = pick(*which, self.memory.len()) {
                    let (context, memory) = self.memory[picked];
                    let _ = self.contexts[context].map(self.uvm, 0x7000_0000 + at * MIB, MIB, memory);
                }
            }
            Step::Unmap { at } => {
                let _ = self.program.free_range(self.uvm, 0x7000_0000 + at * MIB, MIB);
            }
            Step::Dup { which } => {
                if let Some(picked) = pick(*which, self.memory.len()) {
                    let (context, memory) = self.memory[picked];
                    let to = self.contexts.len() - 1;
                    let (source, target) = (&self.contexts[context], &self.contexts[to]);
                    let source = (source.client, memory);
                    if let Ok(duplicate) = self.program.dup(target.control, (target.client, target.device), source) {
                        self.memory.push((to, duplicate));
                    }
                }
            }
            Step::Context => self.contexts.push(self.program.context(0)),
            Step::Close { which } => {
                if self.contexts.len() > 1 {
                    let at = 1 + which % (self.contexts.len() - 1);
                    if at == self.contexts.len() - 1 {
                        let closed = self.contexts.remove(at);
                        self.program.close(closed.control);
                        self.memory.retain(|(context, _)| *context != at);
                    }
                }
            }
            Step::Exec => {
                self.program.exec();
                self.memory.clear();
                self.contexts = vec![self.program.context(0)];
                self.uvm = self.program.uvm_file();
                self.contexts[0].register(self.uvm);
            }
            Step::Garbage { number, bytes } => {
                self.program.escape(self.contexts[0].control, *number, &mut bytes.clone());
                let mut own = bytes.clone();
                let _ = write_u32(&mut own, 0, self.contexts[0].client);
                // Not its own end, which is a step of its own.
                if *number != 0x29 {
                    self.program.escape(self.contexts[0].control, *number, &mut own);
                }
            }
            Step::GarbageUvm { command, bytes } => {
                // Not the end of the file's address space.
                let mut padded = [bytes.clone(), vec![0; 9264]].concat();
                self.program.ioctl(self.uvm, *command, &mut padded);
            }
            Step::GarbageControl { id, bytes } => {
                let context = &self.contexts[0];
                let address = self.program.put(bytes);
                for object in [context.client, context.device, context.subdevice] {
                    let mut args =
                        control_args((context.client, object), *id, (address, u32::try_from(bytes.len()).unwrap()));
                    self.program.escape(context.control, 0x2a, &mut args);
                }
            }
        }
    }
}

fn driver_says(container: &Container) -> u64 {
    let session = &container.session;
    session.driver_truth(account::Card(0)).unwrap().0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever a program does, the driver never has handed out more than the quota, the accounts
    /// never say less than the driver, and when it is over nothing is left.
    #[test]
    fn no_program_gets_more_than_its_quota(steps in prop::collection::vec(any_step(), 1..40)) {
        let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
        {
            let uvm = program.uvm_file();
            let mut life = Life { program: Arc::clone(&program), contexts: vec![program.context(0)], memory: Vec::new(), uvm };
            life.contexts[0].register(uvm);
            for step in &steps {
                life.step(step);
                let (driver, accounts) = (driver_says(&container), container.used(0));
                prop_assert!(driver <= LIMIT, "{driver} after {step:?}");
                prop_assert!(accounts <= LIMIT, "{accounts} after {step:?}");
                prop_assert!(driver <= accounts, "{driver} of {accounts} after {step:?}");
            }
            prop_assert_eq!(container.session.reconcile(), vec![]);
        }
        container.session.process_ended(program.exit());
        container.session.drop_unheld_tokens([std::time::Duration::ZERO; 2]);
        container.assert_nothing_left();
    }
}

#[test]
fn nothing_of_a_call_reaches_the_driver_that_is_not_the_callers_or_ours() {
    // The number of a descriptor that is not the driver's, where a control file is wanted.
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let memory = context.memory(MIB).unwrap();
    let stranger = program.give(tempfile::tempfile().unwrap());
    let mut args =
        struct_with(56, &[(0, context.client), (4, context.device), (8, memory), (48, stranger.cast_unsigned())]);
    assert_eq!(program.rm(context.control, 0x4e, &mut args, 40), Err(Status::INVALID_ARGUMENT));
    assert_eq!(read_u32(&args, 48), Some(stranger.cast_unsigned()));
    let card = program.open(Node::Card(container.machine.inventory.cards[0].minor));
    let mut register = stranger.to_le_bytes();
    assert!(matches!(program.escape(card, 0xc9, &mut register), Answer::Errno(_)));
}
