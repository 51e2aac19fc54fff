//! Making and freeing objects.

use super::*;
use crate::controls::scheduling::{GRAPHICS_CONTEXT, OTHER_CONTEXT};

#[test]
fn what_a_cuda_program_makes_at_its_start() {
    let machine = Machine::new();
    let program = machine.program();
    let (device, subdevice) = program.device(0);
    let space = program.alloc(device, 0x5c00_0001, FERMI_VASPACE_A, Some(&mut vec![0; 56])).unwrap();
    assert_eq!(space, 0x5c00_0001);
    let (memory, size) = program.memory(device, 4_325_376).unwrap();
    assert_eq!(size, 6 * MIB);
    let mut group_params = vec![0; 20];
    put(&mut group_params, 8, space);
    put(&mut group_params, 12, 1);
    let group = program.alloc(device, 0, KEPLER_CHANNEL_GROUP_A, Some(&mut group_params)).unwrap();
    let mut channel_params = vec![0; 368];
    put(&mut channel_params, 28, space);
    let channel = program.alloc(group, 0, HOPPER_CHANNEL_GPFIFO_A, Some(&mut channel_params)).unwrap();
    let mut size = vec![0; 16];
    put(&mut size, 0, channel);
    assert_eq!(
        program.control(subdevice, NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE, &mut size),
        Err(Status::INVALID_OBJECT),
        "no buffers yet"
    );
    program.alloc(channel, 0, HOPPER_COMPUTE_A, None).unwrap();
    program.alloc(channel, 0, HOPPER_DMA_COPY_A, Some(&mut vec![0; 8])).unwrap();
    assert_eq!(machine.used(0), 6 * MIB);
    program.control(subdevice, NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE, &mut size).unwrap();
    assert_eq!(get_u64(&size, 8), 5_435_392);
    let mut copy_params = vec![0; 20];
    put(&mut copy_params, 12, 9);
    let copies = program.alloc(device, 0, KEPLER_CHANNEL_GROUP_A, Some(&mut copy_params)).unwrap();
    let copy_channel = program.alloc(copies, 0, HOPPER_CHANNEL_GPFIFO_A, Some(&mut vec![0; 368])).unwrap();
    put(&mut size, 0, copy_channel);
    assert_eq!(
        program.control(subdevice, NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE, &mut size),
        Err(Status::INVALID_OBJECT)
    );
    for _ in 0..2 {
        program.control(group, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, &mut vec![1, 0, 0]).unwrap();
        program.control(copies, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, &mut vec![1, 0, 0]).unwrap();
        assert_eq!(machine.used(0), 6 * MIB + GRAPHICS_CONTEXT + OTHER_CONTEXT);
        assert_eq!(machine.used(0), machine.live());
    }
    program.free(copies).unwrap();
    program.control(group, NVA06C_CTRL_CMD_SET_TIMESLICE, &mut 2048_u64.to_le_bytes().to_vec()).unwrap();
    let mut timeslice = vec![0; 8];
    program.control(group, NVA06C_CTRL_CMD_GET_TIMESLICE, &mut timeslice).unwrap();
    assert_eq!(get_u64(&timeslice, 0), 2048);

    // The address space goes, and the channels that need it.
    program.free(space).unwrap();
    assert!(!program.exists(channel) && !program.exists(group) && program.exists(memory));
    assert_eq!(machine.used(0), 6 * MIB);
    program.free(device).unwrap();
    assert!(!program.exists(memory));
    assert_eq!((machine.used(0), machine.live()), (0, 0));
    program.free(program.client).unwrap();
    assert_eq!(program.free(program.client), Err(Status::INVALID_OBJECT_HANDLE));
}

#[test]
fn memory_is_rounded_to_whole_pages() {
    let machine = Machine::new();
    let program = machine.program();
    let (device, subdevice) = program.device(0);
    let huge_512m = (3 << 23, 2 << 20);
    for (asked, (attr, attr2), length, consumed) in [
        (1, (0, 0), 64 << 10, 64 << 10),
        (65 << 10, (0, 0), 128 << 10, 128 << 10),
        (2 * MIB, (0, 0), 2 * MIB, 2 * MIB),
        (2 * MIB + 1, (0, 0), 4 * MIB, 4 * MIB),
        (2 * MIB + 1, (2 << 23, 0), 2 * MIB + (64 << 10), 2 * MIB + (64 << 10)),
        (4096, (1 << 23, 0), 4096, 64 << 10),
        (4096, (3 << 23, 0), 2 * MIB, 2 * MIB),
        (4096, huge_512m, 512 * MIB, 512 * MIB),
    ] {
        for parent in [device, subdevice] {
            let mut params = memory_params(asked);
            put(&mut params, 24, attr);
            put(&mut params, 28, attr2);
            let handle = program.alloc(parent, 0, NV01_MEMORY_LOCAL_USER, Some(&mut params)).unwrap();
            assert_eq!((get_u64(&params, 64), get_u64(&params, 88)), (length, length - 1), "{asked}");
            assert_eq!(machine.used(0), consumed, "{asked}");
            program.free(handle).unwrap();
        }
    }
}

#[test]
fn a_fixed_address_takes_whole_multiples_of_its_alignment() {
    let machine = Machine::new();
    let program = machine.program();
    let (device, _) = program.device(0);
    let mut params = memory_params(64 << 10);
    put(&mut params, 8, 0x110);
    put_u64(&mut params, 72, 256 * MIB);
    program.alloc(device, 0, NV01_MEMORY_LOCAL_USER, Some(&mut params)).unwrap();
    assert_eq!(get_u64(&params, 64), 64 << 10);
    assert_eq!(machine.used(0), 256 * MIB);
}

#[test]
fn what_the_driver_refuses() {
    let machine = Machine::new();
    let program = machine.program();
    let (device, subdevice) = program.device(0);
    let with = |attr: u32, flags: u32, size: u64| {
        let mut params = memory_params(size);
        put(&mut params, 24, attr);
        put(&mut params, 8, flags);
        params
    };
    for (what, parent, handle, class, params, status) in [
        ("class", device, 0, 0xdead, None, Status::INVALID_CLASS),
        ("parent", 0x777, 0, NV20_SUBDEVICE_0, None, Status::INVALID_OBJECT_PARENT),
        ("kind of parent", subdevice, 0, NV20_SUBDEVICE_0, None, Status::INVALID_OBJECT_PARENT),
        ("taken handle", device, subdevice, NV20_SUBDEVICE_0, None, Status::INSERT_DUPLICATE_NAME),
        ("the client's handle", device, program.client, NV20_SUBDEVICE_0, None, Status::INVALID_OBJECT_HANDLE),
        ("no parameters", device, 0, NV01_MEMORY_LOCAL_USER, None, Status::INVALID_POINTER),
        ("short parameters", device, 0, NV01_MEMORY_LOCAL_USER, Some(vec![0; 127]), Status::INVALID_POINTER),
        ("size 0", device, 0, NV01_MEMORY_LOCAL_USER, Some(with(0, 0, 0)), Status::INVALID_ARGUMENT),
        ("location", device, 0, NV01_MEMORY_LOCAL_USER, Some(with(1 << 25, 0, 1)), Status::INVALID_ARGUMENT),
        ("virtual", device, 0, NV01_MEMORY_LOCAL_USER, Some(with(0, 0x8_0000, 1)), Status::INVALID_ARGUMENT),
        ("on the card", device, 0, NV01_MEMORY_SYSTEM, Some(with(0, 0, 1)), Status::INVALID_ARGUMENT),
        ("too much", device, 0, NV01_MEMORY_LOCAL_USER, Some(with(0, 0, CARD + 1)), Status::NO_MEMORY),
        ("overflow", device, 0, NV01_MEMORY_LOCAL_USER, Some(with(0, 0, u64::MAX)), Status::NO_MEMORY),
        ("whole frame buffer", device, 0, NV01_MEMORY_LOCAL_PHYSICAL, None, Status::INSUFFICIENT_PERMISSIONS),
        ("subdevice", device, 0, NV20_SUBDEVICE_0, Some(vec![1, 0, 0, 0]), Status::INVALID_ARGUMENT),
        ("card", program.client, 0, NV01_DEVICE_0, Some(vec![9; 56]), Status::INVALID_ARGUMENT),
        ("needs what is not there", device, 0, KEPLER_CHANNEL_GROUP_A, Some(vec![9; 20]), Status::OBJECT_NOT_FOUND),
    ] {
        let mut params = params;
        assert_eq!(program.alloc(parent, handle, class, params.as_mut()), Err(status), "{what}");
    }
    assert_eq!(program.free(0x777), Ok(()), "as the driver");
    assert_eq!(machine.used(0), 0);
}

#[test]
fn a_device_needs_its_cards_node_open() {
    let mut machine = Machine::new();
    drop(machine._cards.remove(0));
    let program = machine.program();
    let device = |card: u32| {
        let mut params = vec![0; 56];
        put(&mut params, 0, card);
        program.alloc(program.client, 0, NV01_DEVICE_0, Some(&mut params))
    };
    assert_eq!(device(0), Err(Status::INSUFFICIENT_PERMISSIONS));
    assert!(device(1).is_ok());
}

#[test]
fn each_number_has_its_size_and_its_node() {
    let machine = Machine::new();
    let program = machine.program();
    let card = machine.driver.open(Node::Card(0)).unwrap();
    let call = |file: &DeviceFile, number: u8, size: usize| {
        let mut args = vec![0; size];
        let call = DriverCall { command: command(number, size), args: &mut args, buffers: &mut [], files: &[] };
        machine.driver.ioctl(file, call).map_err(|error| error.raw_os_error())
    };
    for (number, size) in [
        (NV_ESC_RM_ALLOC, 40),
        (NV_ESC_RM_ALLOC, 31),
        (NV_ESC_RM_CONTROL, 33),
        (NV_ESC_RM_FREE, 0),
        (0x99, 16),
        (NV_ESC_IOCTL_XFER_CMD, 16),
    ] {
        assert_eq!(call(&program.control, number, size), Err(Some(libc::EINVAL)), "{number:#x} {size}");
    }
    assert_eq!(call(&card, NV_ESC_RM_CONTROL, 32), Err(Some(libc::EINVAL)));
    assert_eq!(call(&program.control, NV_ESC_RM_ALLOC_MEMORY, 56), Err(Some(libc::EINVAL)));
    // The type byte and the direction mean nothing.
    let mut args = [0; 48];
    put(&mut args, 12, NV01_ROOT_CLIENT);
    let command = 48 << 16 | u32::from(b'Q') << 8 | u32::from(NV_ESC_RM_ALLOC);
    let foreign = DriverCall { command, args: &mut args, buffers: &mut [], files: &[] };
    machine.driver.ioctl(&program.control, foreign).unwrap();
    assert_ne!(get(&args, 8), 0);
}

#[test]
fn the_older_way_to_memory_leads_to_the_same() {
    let machine = Machine::new();
    let program = machine.program();
    let (device, _) = program.device(0);
    let mut args = [0; 184];
    put(&mut args, 0, program.client);
    put(&mut args, 4, device);
    put(&mut args, 8, 2);
    put(&mut args, 40, 0xc1d0_0001);
    put_u64(&mut args, 88, 3 * MIB);
    program.escape(NV_ESC_RM_VID_HEAP_CONTROL, &mut args, 20).unwrap();
    assert_eq!((get_u64(&args, 88), get_u64(&args, 24), get_u64(&args, 32)), (4 * MIB, CARD, CARD - 4 * MIB));
    assert_eq!(machine.used(0), 4 * MIB);
    put(&mut args, 8, 3);
    program.escape(NV_ESC_RM_VID_HEAP_CONTROL, &mut args, 20).unwrap();
    assert_eq!(machine.used(0), 0);
    // Tiled: height times pitch.
    put(&mut args, 8, 6);
    put(&mut args, 44, 0);
    put(&mut args, 56, 1024);
    put(&mut args, 60, 8192);
    put(&mut args, 64, 0);
    program.escape(NV_ESC_RM_VID_HEAP_CONTROL, &mut args, 20).unwrap();
    assert_eq!(machine.used(0), 8 * MIB);
}
