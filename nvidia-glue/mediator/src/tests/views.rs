//! View of a container of its cards and of who is on them.

use abi::{
    Node, Status,
    classes::{NV01_DEVICE_0, NV01_ROOT_CLIENT, RM_USER_SHARED_DATA},
    controls::{
        NV0000_CTRL_CMD_GPU_ASYNC_ATTACH_ID, NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2,
        NV0000_CTRL_CMD_GPU_GET_PCI_INFO, NV0000_CTRL_CMD_GPU_GET_PROBED_IDS, NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID,
        NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO, NV2080_CTRL_CMD_FB_GET_INFO, NV2080_CTRL_CMD_FB_GET_INFO_V2,
    },
    layout::{read_u32, read_u64, write_u32, write_u64},
};
use std::os::unix::fs::FileExt;

use super::{
    alone::{OneContext, TwoContexts},
    world::{Context, GIB, MIB, Machine, OWNER, WHOLE, struct_with, words},
};

const LIMIT: u64 = 4 * GIB;
/// KiB, as the driver counts.
const LIMIT_KIB: u32 = 4 << 20;

/// `FB_GET_INFO_V2` of these indexes.
fn fb_info(context: &Context, indexes: &[u32]) -> Vec<u32> {
    let mut params = struct_with(1028, &[(0, u32::try_from(indexes.len()).unwrap())]);
    for (at, index) in indexes.iter().enumerate() {
        assert!(write_u32(&mut params, 4 + 8 * at, *index));
    }
    context.subdevice_control(NV2080_CTRL_CMD_FB_GET_INFO_V2, &mut params).unwrap();
    (0..indexes.len()).map(|at| read_u32(&params, 8 + 8 * at).unwrap()).collect()
}

#[test]
fn the_card_has_the_size_of_the_grant() {
    let OneContext { program, context, .. } = OneContext::within(LIMIT);
    let (total, heap, free) = (0x08, 0x09, 0x16);
    assert_eq!(fb_info(&context, &[total, heap, free]), [LIMIT_KIB; 3]);
    context.memory(GIB).unwrap();
    assert_eq!(fb_info(&context, &[heap, free]), [LIMIT_KIB, LIMIT_KIB - (1 << 20)]);

    // The old one, whose list is behind a pointer.
    let list = program.put(&words(&[heap, 0, free, 0]));
    let mut params = words(&[2, 0]);
    params.extend(list.to_le_bytes());
    context.subdevice_control(NV2080_CTRL_CMD_FB_GET_INFO, &mut params).unwrap();
    assert_eq!(read_u64(&params, 8), Some(list), "the caller's own pointer comes back");
    assert_eq!(program.take(list), words(&[heap, LIMIT_KIB, free, LIMIT_KIB - (1 << 20)]));

    assert_eq!(heap_info(&context), (LIMIT, LIMIT - GIB, LIMIT - GIB));
}

#[test]
fn a_whole_card_is_shown_as_it_is() {
    let TwoContexts { container, context, foreign, .. } = TwoContexts::within(WHOLE);
    let total = container.machine.inventory.cards[0].memory.0;
    foreign.memory(10 * GIB).unwrap();
    let shown = fb_info(&context, &[0x08, 0x16]);
    assert!(u64::from(shown[0]) <= total >> 10);
    assert!(u64::from(shown[1]) <= (total - 10 * GIB) >> 10, "the neighbour's memory is not free");
}

#[test]
fn where_grants_exceed_the_card_each_container_sees_its_own() {
    let machine = Machine::new(1);
    let card = machine.inventory.cards[0].memory.0;
    let kib = |bytes: u64| u32::try_from(bytes >> 10).unwrap();
    let neighbour = machine.container(&[0], 105 * GIB).program().context(0);
    neighbour.memory(103 * GIB).unwrap();
    // Less than the card, but more than is free on it; the card's own size; more.
    for limit in [105 * GIB, card, card * 3 / 2] {
        let container = machine.container(&[0], limit);
        let context = container.program().context(0);
        let (total, heap, largest, free) = (0x08, 0x09, 0x12, 0x16);
        assert_eq!(fb_info(&context, &[total, heap, largest, free]), [kib(limit); 4], "{limit}");
        context.memory(GIB).unwrap();
        assert_eq!(fb_info(&context, &[total, free]), [kib(limit), kib(limit - GIB)]);
        assert_eq!(heap_info(&context), (limit, limit - GIB, limit - GIB));
        // What is shown as free may be a neighbour's: then the driver says so.
        assert_eq!(context.memory(50 * GIB), Err(Status::NO_MEMORY));
        assert_eq!(fb_info(&context, &[free]), [kib(limit - GIB)], "nothing is charged for it");
        assert_eq!(container.session.usage().denials, 0, "it was the driver's own answer");
    }
}

#[test]
fn an_old_allocation_tells_of_the_grant() {
    let OneContext { context, .. } = OneContext::within(LIMIT);
    // NVOS32_FUNCTION_ALLOC_SIZE.
    let args = context.heap(2, &[(40, OWNER)], &[(88, GIB)]).unwrap();
    let told = |at| read_u64(&args, at).unwrap();
    assert_eq!((told(24), told(32)), (LIMIT, LIMIT - GIB));
}

#[test]
fn regions_of_the_card_are_as_large_as_the_grant() {
    const REGIONS: u32 = NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO;
    let OneContext { spy, context, .. } = OneContext::new();
    // Two: base, last byte.
    let mut told = struct_with(904, &[(0, 2)]);
    for (at, value) in [(8, 0), (16, 6 * GIB - 1), (64, 6 * GIB), (72, 140 * GIB - 1)] {
        assert!(write_u64(&mut told, at, value));
    }
    spy.answer(REGIONS, told);
    let mut params = vec![0; 904];
    context.subdevice_control(REGIONS, &mut params).unwrap();
    let last = [16, 72].map(|at| read_u64(&params, at).unwrap());
    assert_eq!(last, [6 * GIB - 1, 8 * GIB - 1]);
}

/// `NVOS32_FUNCTION_INFO`: total, free, largest free.
fn heap_info(context: &Context) -> (u64, u64, u64) {
    let args = context.heap(5, &[], &[]).unwrap();
    let told = |at| read_u64(&args, at).unwrap();
    (told(24), told(32), told(56))
}

#[test]
fn only_the_granted_cards_exist() {
    let machine = Machine::new(4);
    let container = machine.container(&[1, 3], LIMIT);
    let program = container.program();
    let control = program.open(Node::Control);
    let client = program.alloc(control, (0, 0, 0), NV01_ROOT_CLIENT, &mut []).unwrap();
    let ask = |id: u32, params: &mut [u8]| program.control(control, (client, client), id, params);

    let mut attached = [0; 128];
    ask(NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, &mut attached).unwrap();
    let ids: Vec<u32> =
        (0..32).map(|at| read_u32(&attached, 4 * at).unwrap()).take_while(|id| *id != u32::MAX).collect();
    assert_eq!(ids.len(), 2);
    let mut probed = [0; 384];
    ask(NV0000_CTRL_CMD_GPU_GET_PROBED_IDS, &mut probed).unwrap();
    assert_eq!(attached[..8], probed[..8]);
    assert_eq!(read_u32(&probed, 8), Some(u32::MAX));

    let mut instances = Vec::new();
    for id in &ids {
        let mut info = struct_with(32, &[(0, *id)]);
        ask(NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, &mut info).unwrap();
        instances.push(read_u32(&info, 8).unwrap());
    }
    // Ids of other cards, as a machine without mediation would name them.
    let others: Vec<u32> = (0..0x1000).map(|at| at << 8).filter(|id| !ids.contains(id)).collect();
    for id in others.iter().take(64) {
        for (call, size) in [
            (NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, 32),
            (NV0000_CTRL_CMD_GPU_GET_PCI_INFO, 12),
            (NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID, 268),
            (NV0000_CTRL_CMD_GPU_ASYNC_ATTACH_ID, 4),
        ] {
            let mut params = struct_with(size, &[(0, *id)]);
            assert_eq!(ask(call, &mut params), Err(Status::INVALID_ARGUMENT), "{call:#x} {id:#x}");
        }
    }
    for instance in 0..8 {
        let made =
            program.alloc(control, (client, client, 0), NV01_DEVICE_0, &mut super::world::device_params(instance));
        assert_eq!(made.is_ok(), instances.contains(&instance), "{instance}");
        if !instances.contains(&instance) {
            assert_eq!(made, Err(Status::INVALID_DEVICE));
        }
    }
    let mut infos = vec![0; 72 * 8];
    program.escape(control, 0xc8, &mut infos);
    let shown: Vec<u32> =
        infos.chunks(72).filter(|info| info[0] != 0).map(|info| read_u32(info, 16).unwrap()).collect();
    assert_eq!(shown, ids);
}

#[test]
fn the_drivers_page_about_the_card_is_the_mediators() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let page = context.object_below(context.subdevice, RM_USER_SHARED_DATA, &mut [0; 8]).unwrap();
    let file = program.open(Node::Control);
    context.map_on(file, (context.subdevice, page), 2608).unwrap();
    let mapped = program.file_of(file);
    assert_eq!(mapped.metadata().unwrap().len(), 1 << 16);
    let mut bytes = [1; 4096];
    mapped.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "nothing on it is valid");
    for changed in [mapped.set_len(0), mapped.set_len(1 << 20)] {
        assert_eq!(changed.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied, "others have mapped it, too");
    }
    // Any other memory is mapped through the file that the program named.
    let memory = context.memory(MIB).unwrap();
    let other = program.open(Node::Card(container.machine.inventory.cards[0].minor));
    context.map_on(other, (context.device, memory), MIB).unwrap();
}

#[test]
fn what_no_table_has_is_counted() {
    let OneContext { container, context, .. } = OneContext::within(LIMIT);
    assert_eq!(context.object(0xdead, &mut [0; 4]), Err(Status::INVALID_CLASS));
    assert_eq!(context.object(0xdead, &mut [0; 4]), Err(Status::INVALID_CLASS));
    assert_eq!(context.subdevice_control(0x2080_13ee, &mut [0; 4]), Err(Status::NOT_SUPPORTED)); // Not in the tables
    // One that only the card's firmware knows.
    let _ = context.subdevice_control(0x2080_93ee, &mut [0; 4]); // Not in the tables
    let usage = container.session.usage();
    assert_eq!((usage.unknown_refused, usage.unknown_passed), (3, 1));
    let told = crate::locks::lock(&container.observed.unknown);
    let told: Vec<String> = told.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["class 0xdead", "control 0x208013ee"], "each that is refused is reported once");
}
