//! Processes on a card: nobody but the container's own, as the caller would call them.

use abi::{
    Status,
    classes::{HOPPER_A, HOPPER_COMPUTE_A, NV20_SUBDEVICE_0},
    controls::{
        NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_VIDMEM_SIZE, NV0000_CTRL_CMD_GPUACCT_GET_ACCOUNTING_PIDS,
        NV0000_CTRL_CMD_GPUACCT_GET_ACCOUNTING_STATE, NV2080_CTRL_CMD_FB_GET_INFO, NV2080_CTRL_CMD_FB_GET_INFO_V2,
        NV2080_CTRL_CMD_GPU_DESCRIBE_PARTITIONS, NV2080_CTRL_CMD_GPU_GET_PID_INFO, NV2080_CTRL_CMD_GPU_GET_PIDS,
        NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_INFO, NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_INFO_V2,
        NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_STATS, NV2080_CTRL_GPU_GET_NVFBC_SW_SESSION_INFO,
        NV2080_CTRL_GPU_GET_NVFBC_SW_SESSION_STATS,
    },
    layout::{read_u32, read_u64, write_u32},
};
use std::sync::Arc;

use super::{
    alone::{OneContext, OneProgram, TwoContexts},
    spy::{GR, Spy},
    world::{Context, GIB, MIB, Machine, Program, struct_with, words},
};

const LIMIT: u64 = 4 * GIB;
const SUBDEVICE: u32 = NV20_SUBDEVICE_0;
const COMPUTE: u32 = HOPPER_COMPUTE_A;
const GRAPHICS: u32 = HOPPER_A;

/// `NV2080_CTRL_CMD_GPU_GET_PIDS`: who has an object of a class.
fn pids(context: &Context, class: u32) -> Vec<u32> {
    let mut params = struct_with(3812, &[(4, class)]);
    context.subdevice_control(NV2080_CTRL_CMD_GPU_GET_PIDS, &mut params).unwrap();
    let count = usize::try_from(read_u32(&params, 8).unwrap()).unwrap();
    (0..count).map(|at| read_u32(&params, 12 + 4 * at).unwrap()).collect()
}

/// `NV2080_CTRL_CMD_GPU_GET_PID_INFO`: result and memory of each.
fn used(context: &Context, pids: &[u32]) -> Vec<(u32, u64)> {
    let mut params = struct_with(14408, &[(0, u32::try_from(pids.len()).unwrap())]);
    for (at, pid) in pids.iter().enumerate() {
        assert!(write_u32(&mut params, 8 + 72 * at, *pid));
    }
    context.subdevice_control(NV2080_CTRL_CMD_GPU_GET_PID_INFO, &mut params).unwrap();
    let told = |at| (read_u32(&params, at + 8).unwrap(), read_u64(&params, at + 16).unwrap());
    (0..pids.len()).map(|at| told(8 + 72 * at)).collect()
}

/// Returns what a program is called in the container's first namespace.
fn inside(program: &Arc<Program>) -> u32 {
    u32::try_from(program.pid.0 - 999).unwrap()
}

#[test]
fn only_the_containers_own_processes_are_on_the_card_by_their_own_pids() {
    // The other container has the lower numbers.
    let TwoContexts { context: foreign, neighbour: container, foreign: first, .. } = TwoContexts::within(LIMIT);
    foreign.memory(GIB).unwrap();
    first.memory(GIB).unwrap();
    let (one, other) = (&first.program, container.program());
    let context = other.context(0);
    context.memory(2 * MIB).unwrap();
    assert_eq!(pids(&context, SUBDEVICE), [inside(one), inside(&other)]);
    let nobody = (Status::OBJECT_NOT_FOUND.0, 0);
    let told = used(&context, &[inside(one), inside(&other), inside(&foreign.program), 1]);
    assert_eq!(told, [(0, GIB), (0, 2 * MIB), nobody, nobody]);
}

#[test]
fn a_process_is_called_what_it_is_called_where_the_caller_is() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], LIMIT);
    // Both are number 1 where they are; a third is below the first.
    let (one, other) = (container.program_in(&[(11, 1)]), container.program_in(&[(12, 1)]));
    let (below, outer) = (container.program_in(&[(11, 2), (13, 1)]), container.program());
    let contexts = [&one, &other, &below, &outer].map(|program| program.context(0));
    for (context, size) in contexts.iter().zip([GIB, 2 * MIB, 4 * MIB, 6 * MIB]) {
        context.memory(size).unwrap();
    }
    let [one_sees, other_sees, below_sees, outer_sees] = &contexts;
    let all = [&one, &other, &below, &outer].map(inside);
    assert_eq!(pids(outer_sees, SUBDEVICE), all);
    assert_eq!(used(outer_sees, &all), [(0, GIB), (0, 2 * MIB), (0, 4 * MIB), (0, 6 * MIB)]);
    assert_eq!(pids(other_sees, SUBDEVICE), [1]);
    let nobody = (Status::OBJECT_NOT_FOUND.0, 0);
    assert_eq!(used(other_sees, &[1, all[1]]), [(0, 2 * MIB), nobody]);
    assert_eq!(used(below_sees, &[1]), [(0, 4 * MIB)]);
    assert_eq!(pids(one_sees, SUBDEVICE), [1, 2]);
    assert_eq!(used(one_sees, &[1, 2]), [(0, GIB), (0, 4 * MIB)]);
    // `egpu ps` knows them by the container's numbers.
    let told: Vec<i32> = container.session.usage().processes.iter().map(|process| process.pid_in_container).collect();
    assert_eq!(told, all.map(|pid| i32::try_from(pid).unwrap()));
}

#[test]
fn processes_are_listed_by_what_they_do() {
    let OneProgram { container, program: computes, .. } = OneProgram::that_may_draw(2);
    let (draws, looks) = (container.program(), container.program());
    let works = |program: &Arc<Program>, class: u32| {
        let context = program.context(0);
        let (_, channel) = context.group_of_one(GR);
        let made = context.object_below(channel, class, &mut [0; 8]).unwrap();
        (context.control, context.client, made)
    };
    works(&computes, COMPUTE);
    let (control, client, made) = works(&draws, GRAPHICS);
    let context = looks.context(0);
    assert_eq!(pids(&context, COMPUTE), [inside(&computes)]);
    assert_eq!(pids(&context, GRAPHICS), [inside(&draws)]);
    assert_eq!(pids(&context, SUBDEVICE), [&computes, &draws, &looks].map(inside));
    let elsewhere = looks.context(1);
    assert!(pids(&elsewhere, COMPUTE).is_empty());
    assert_eq!(pids(&elsewhere, SUBDEVICE), [inside(&looks)]);
    draws.free(control, client, made).unwrap();
    assert!(pids(&context, GRAPHICS).is_empty());
}

/// `FB_GET_INFO_V2` and the old one, of these indexes: what they answer.
fn fb_info(context: &Context, indexes: [u32; 3]) -> [Vec<u8>; 2] {
    let asked = words(&indexes.map(|index| [index, 0]).concat());
    let mut params = [words(&[3]), asked.clone()].concat();
    params.resize(1028, 0);
    context.subdevice_control(NV2080_CTRL_CMD_FB_GET_INFO_V2, &mut params).unwrap();
    let list = context.program.put(&asked);
    let mut old = words(&[3, 0]);
    old.extend(list.to_le_bytes());
    context.subdevice_control(NV2080_CTRL_CMD_FB_GET_INFO, &mut old).unwrap();
    [params[4..28].to_vec(), context.program.take(list)]
}

#[test]
fn mappings_of_others_are_not_told() {
    let OneContext { machine, context, .. } = OneContext::within(LIMIT);
    let (size, free, longest) = (0x05, 0x1d, 0x1f);
    let kib = 256 << 10;
    let all = words(&[size, kib, free, kib, longest, kib]);
    assert_eq!(fb_info(&context, [size, free, longest]), [all.clone(), all]);
    // Who looks at the card sees what is mapped of it.
    let monitor = machine.container(&[0], 0);
    let program = monitor.program();
    let [told, _] = fb_info(&program.context(0), [size, free, longest]);
    assert!(read_u32(&told, 12).unwrap() < kib);
}

#[test]
fn a_failed_question_comes_back_as_it_was() {
    let OneProgram { program, .. } = OneProgram::within(LIMIT);
    let mut params = words(&[2, 0x1d, 7, 0x1000, 8]);
    params.resize(1028, 0);
    let asked = params.clone();
    assert_eq!(
        program.context(0).subdevice_control(NV2080_CTRL_CMD_FB_GET_INFO_V2, &mut params),
        Err(Status::INVALID_ARGUMENT)
    );
    assert_eq!((&params[4..8], &params[12..]), (&asked[4..8], &asked[12..]));
}

#[test]
fn nobody_elses_encoders_are_told() {
    for sums in [NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_STATS, NV2080_CTRL_GPU_GET_NVFBC_SW_SESSION_STATS] {
        let OneContext { spy, context, .. } = OneContext::new();
        spy.answer(sums, words(&[3, 60, 1000]));
        let mut params = [1; 12];
        context.subdevice_control(sums, &mut params).unwrap();
        assert_eq!(params, [0; 12], "{sums:#x}");
    }
}

/// NVML asks so for accounting and for sessions of encoders and captures; outside, a card without
/// either answers the same.
#[test]
fn sessions_and_accounting_are_answered_as_where_there_are_none() {
    let machine = Machine::new(2);
    let spy = Spy::new(&machine);
    for sessions in [
        NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_INFO,
        NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_INFO_V2,
        NV2080_CTRL_GPU_GET_NVFBC_SW_SESSION_INFO,
    ] {
        spy.answer(sessions, words(&[3, 0, 0, 0]));
    }
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    for sessions in [NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_INFO_V2, NV2080_CTRL_GPU_GET_NVFBC_SW_SESSION_INFO] {
        let mut params = words(&[512, 7, 7, 7]);
        context.subdevice_control(sessions, &mut params).unwrap();
        assert_eq!(params, words(&[0, 7, 7, 7]), "{sessions:#x}");
    }
    // Its list is behind a pointer, which stays.
    let list = program.put(&[7; 64]);
    let mut params = [words(&[2, 0]), list.to_le_bytes().to_vec()].concat();
    context.subdevice_control(NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_INFO, &mut params).unwrap();
    assert_eq!(params, [words(&[0, 0]), list.to_le_bytes().to_vec()].concat());
    assert_eq!(program.take(list), [7; 64]);
    let ask = |id: u32, gpu: u32, size: usize| {
        let mut params = words(&vec![gpu; size / 4]);
        let answer = context.control(context.client, id, &mut params);
        answer.map(|()| read_u32(&params, size - 4).unwrap())
    };
    let own = container.session.grant.names()[0].gpu_id;
    assert_eq!(ask(NV0000_CTRL_CMD_GPUACCT_GET_ACCOUNTING_STATE, own, 12), Ok(1), "off");
    assert_eq!(ask(NV0000_CTRL_CMD_GPUACCT_GET_ACCOUNTING_PIDS, own, 16012), Ok(0));
    assert_eq!(ask(NV0000_CTRL_CMD_GPUACCT_GET_ACCOUNTING_PIDS, own, 8), Err(Status::INVALID_ARGUMENT));
    let other = own ^ 0x100;
    assert_eq!(ask(NV0000_CTRL_CMD_GPUACCT_GET_ACCOUNTING_STATE, other, 12), Err(Status::INVALID_ARGUMENT));
    let asked = [NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_INFO, NV0000_CTRL_CMD_GPUACCT_GET_ACCOUNTING_STATE];
    assert!(spy.seen().iter().all(|seen| !asked.contains(&seen.id)), "the driver is not asked");
}

/// All of a card is protected memory, or none.
#[test]
fn memory_for_confidential_computing_is_the_quota() {
    const SIZES: u32 = NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_VIDMEM_SIZE;
    let OneContext { spy, context, .. } = OneContext::new();
    let quota = u32::try_from((8 * GIB) >> 10).unwrap();
    for (told, shown) in [([9, 0], [quota, 0]), ([0, 9], [0, quota])] {
        let answer = |subdevice: u32, [protected, not]: [u32; 2]| words(&[subdevice, 0, protected, 0, not, 0]);
        spy.answer(SIZES, answer(context.subdevice, told));
        let mut params = answer(context.subdevice, [0, 0]);
        context.control(context.client, SIZES, &mut params).unwrap();
        assert_eq!(params, answer(context.subdevice, shown));
        let mut of_nobody = answer(0x7777, [0, 0]);
        spy.answer(SIZES, answer(0x7777, told));
        let refused = context.control(context.client, SIZES, &mut of_nobody);
        assert_eq!((refused, of_nobody), (Err(Status::OBJECT_NOT_FOUND), answer(0x7777, [0, 0])));
    }
}

#[test]
fn how_the_card_could_be_cut_is_not_told() {
    const DESCRIBE_PARTITIONS: u32 = NV2080_CTRL_CMD_GPU_DESCRIBE_PARTITIONS;
    let OneContext { spy, context, .. } = OneContext::new();
    spy.answer(DESCRIBE_PARTITIONS, vec![1; 640]);
    let mut params = vec![0; 640];
    assert_eq!(context.subdevice_control(DESCRIBE_PARTITIONS, &mut params), Err(Status::NOT_SUPPORTED));
    assert_eq!(params, vec![0; 640]);
}
