//! Who may use what, and what keeps memory.

use abi::{Abi, DriverRelease, Handle};
use driver::open_own_client;

use super::*;

#[test]
fn a_client_is_used_through_its_own_open_file_only() {
    let machine = Machine::new();
    let program = machine.program();
    let elsewhere = machine.driver.open(Node::Control).unwrap();
    let ask = |file: &DeviceFile| {
        program.alloc_as(file, program.client, [program.client, 0, NV01_DEVICE_0], Some(&mut vec![0; 56]))
    };
    assert_eq!(ask(&elsewhere), Err(Status::INVALID_CLIENT));
    assert!(ask(&duplicate_of(&program.control)).is_ok());
    assert_eq!(
        program.alloc_as(&program.control, 0xc1d0_0000, [0xc1d0_0000, 0, NV01_DEVICE_0], None),
        Err(Status::INVALID_OBJECT_HANDLE),
        "no such client"
    );
}

#[test]
fn a_registered_card_file_may_use_the_control_files_clients_and_keeps_them() {
    let machine = Machine::new();
    let program = machine.program();
    let card = machine.driver.open(Node::Card(0)).unwrap();
    let event = |file: &DeviceFile| {
        program.alloc_as(file, program.client, [program.client, 0, NV01_EVENT_OS_EVENT], Some(&mut vec![0; 24]))
    };
    let register = |control: &DeviceFile| {
        let files = [FileField { holder: Holder::Args, offset: 0, file: control.clone() }];
        let call =
            DriverCall { command: command(NV_ESC_REGISTER_FD, 4), args: &mut [0; 4], buffers: &mut [], files: &files };
        machine.driver.in_callers_place(&card, call).unwrap().map_err(|error| error.raw_os_error())
    };
    assert_eq!(event(&card), Err(Status::INVALID_CLIENT));
    assert_eq!(register(&card), Err(Some(libc::EINVAL)), "no control file");
    assert_eq!(register(&program.control), Ok(0));
    assert_eq!(register(&program.control), Err(Some(libc::EINVAL)), "once is enough");
    assert!(event(&card).is_ok());
    let client = program.client;
    drop(program);
    let probe = open_own_client(&machine.driver, &Abi::nearest(DriverRelease::new(580, 159, 4))).unwrap();
    assert!(machine.driver.client_exists(&probe, Handle(client)).unwrap(), "the card file keeps the control file");
    drop(card);
    assert!(!machine.driver.client_exists(&probe, Handle(client)).unwrap());
    assert!(machine.driver.client_exists(&probe, probe.client).unwrap());
}

#[test]
fn the_last_close_frees_a_client_with_all_that_it_has() {
    let machine = Machine::new();
    let program = machine.program();
    let (device, _) = program.device(1);
    program.memory(device, 100 * MIB).unwrap();
    let duplicate = duplicate_of(&program.control);
    drop(program);
    assert_eq!(machine.used(1), 100 * MIB);
    drop(duplicate);
    assert_eq!((machine.used(1), machine.live()), (0, 0));
}

#[test]
fn a_duplicate_keeps_memory_and_takes_none() {
    let machine = Machine::new();
    let (program, other) = (machine.program(), machine.program());
    let (device, _) = program.device(0);
    let (others_device, _) = other.device(0);
    let (memory, _) = program.memory(device, 10 * MIB).unwrap();
    let duplicate = other.duplicate(others_device, program.client, memory).unwrap();
    assert_eq!(machine.used(0), 10 * MIB);
    program.free(memory).unwrap();
    assert_eq!(machine.used(0), 10 * MIB);
    assert_eq!(other.duplicate(others_device, program.client, device), Err(Status::INVALID_ARGUMENT));
    assert_eq!(other.duplicate(others_device, program.client, program.client), Err(Status::INVALID_ARGUMENT));
    other.free(duplicate).unwrap();
    assert_eq!(machine.used(0), 0);
    assert_eq!(other.duplicate(others_device, program.client, memory), Err(Status::OBJECT_NOT_FOUND));
    assert_eq!(other.duplicate(others_device, 0xc1d0_0000, memory), Err(Status::INVALID_OBJECT_HANDLE));
}

#[test]
fn a_mapping_keeps_memory_until_it_is_unmapped_replaced_or_its_file_is_closed() {
    let machine = Machine::new();
    let program = machine.program();
    let (device, _) = program.device(0);
    let file = program.address_space(device);
    let (memory, size) = program.memory(device, 4 * MIB).unwrap();
    let base = 0x7f00_0000_0000;
    program.map(&file, base, size, memory).unwrap();
    program.free(memory).unwrap();
    assert_eq!((machine.used(0), machine.live()), (size, size));
    // Another allocation at the same place: what was there is unmapped.
    let (next, _) = program.memory(device, 4 * MIB).unwrap();
    program.map_again(&file, base, size, next).unwrap();
    assert_eq!(machine.used(0), size);
    // Half of it: the rest stays mapped.
    let mut args = [0; 40];
    put_u64(&mut args, 0, base);
    put_u64(&mut args, 8, 2 * MIB);
    args[16..32].copy_from_slice(&super::super::controls::uuid_bytes(&inventory().cards[0].uuid));
    program.uvm(&file, UVM_UNMAP_EXTERNAL, &mut args, 32).unwrap();
    program.free(next).unwrap();
    assert_eq!(machine.used(0), size);
    program.unmap(&file, base, size).unwrap();
    assert_eq!(machine.used(0), 0);

    let (last, _) = program.memory(device, 4 * MIB).unwrap();
    program.map(&file, base, size, last).unwrap();
    program.free(program.client).unwrap();
    assert_eq!(machine.used(0), size, "the mapping outlives the client");
    drop(file);
    assert_eq!(machine.used(0), 0);
}

#[test]
fn what_unified_memory_refuses() {
    let machine = Machine::new();
    let program = machine.program();
    let (device, _) = program.device(0);
    let (memory, size) = program.memory(device, 4 * MIB).unwrap();
    let raw = machine.driver.open(Node::Uvm).unwrap();
    assert_eq!(program.map(&raw, 0x1000, 4096, memory), Err(Status::ILLEGAL_ACTION), "not initialized");
    let file = program.address_space(device);
    let base = 0x7f00_0000_0000;
    assert_eq!(program.map(&file, base, 100, memory), Err(Status::INVALID_ADDRESS), "no whole pages");
    assert_eq!(program.map(&file, u64::MAX - 4095, 8192, memory), Err(Status::INVALID_ADDRESS));
    program.map(&file, base, size, memory).unwrap();
    assert_eq!(program.map(&file, base + 4096, size, memory), Err(Status::UVM_ADDRESS_IN_USE), "in use");
    assert_eq!(
        program.map(&file, base + (1 << 30), size + 4096, memory),
        Err(Status::INVALID_OFFSET),
        "beyond the memory"
    );
    assert_eq!(program.map_again(&file, base, size, 0x777), Err(Status::OBJECT_NOT_FOUND));
    assert_eq!(program.unmap(&file, base, 4096), Err(Status::INVALID_ADDRESS), "not the whole range");
    assert_eq!(program.uvm(&file, UVM_INITIALIZE, &mut [1; 16], 8), Err(Status::INVALID_ARGUMENT), "other flags");
    let call = DriverCall { command: 9999, args: &mut [0; 64], buffers: &mut [], files: &[] };
    assert_eq!(machine.driver.ioctl(&file, call).unwrap_err().raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn an_export_keeps_memory_and_travels() {
    let machine = Machine::new();
    let program = machine.program();
    let (device, _) = program.device(0);
    let (memory, size) = program.memory(device, 4 * MIB).unwrap();
    let carrier = machine.driver.open(Node::Control).unwrap();
    let mut params = vec![0; 24];
    for (at, value) in [(0, 1), (4, device), (8, device), (12, memory)] {
        put(&mut params, at, value);
    }
    program
        .control_with(program.client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, &mut params, Some((16, &carrier)))
        .unwrap();
    program.free(program.client).unwrap();
    assert_eq!((machine.used(0), machine.live()), (size, size));

    let receiver = machine.program();
    let (others_device, _) = receiver.device(0);
    let sent = duplicate_of(&carrier);
    drop(carrier);
    let mut params = vec![0; 20];
    put(&mut params, 4, 1);
    put(&mut params, 12, others_device);
    receiver
        .control_with(receiver.client, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD, &mut params, Some((0, &sent)))
        .unwrap();
    let handle = get(&params, 16);
    drop(sent);
    assert_eq!(machine.used(0), size);
    receiver.free(handle).unwrap();
    assert_eq!(machine.used(0), 0);
}

#[test]
fn many_objects_travel_with_one_file() {
    let machine = Machine::new();
    let program = machine.program();
    let (device, _) = program.device(0);
    let carrier = machine.driver.open(Node::Control).unwrap();
    let mut params = vec![0; 2128];
    put(&mut params, 4, device);
    put(&mut params, 8, 3 | 0x4142 << 16);
    put(&mut params, 2124, 3);
    for index in 0..3 {
        put(&mut params, 76 + index * 4, program.memory(device, 4 * MIB).unwrap().0);
    }
    program
        .control_with(program.client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD, &mut params, Some((0, &carrier)))
        .unwrap();
    let mut info = vec![0; 80];
    program
        .control_with(program.client, NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO, &mut info, Some((0, &carrier)))
        .unwrap();
    assert_eq!((get(&info, 4), &info[12..16]), (0, [3, 0, 0x42, 0x41].as_slice()));
    let mut params = vec![0; 652];
    put(&mut params, 4, device);
    put(&mut params, 648, 3);
    program
        .control_with(program.client, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD, &mut params, Some((0, &carrier)))
        .unwrap();
    assert_eq!(params[520..524], [1, 1, 1, 0]);
    assert_eq!(machine.used(0), 12 * MIB);
    let mut too_many = vec![0; 652];
    put(&mut too_many, 4, device);
    put(&mut too_many, 648, 4);
    let answer = program.control_with(
        program.client,
        NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD,
        &mut too_many,
        Some((0, &carrier)),
    );
    assert_eq!(answer, Err(Status::INVALID_ARGUMENT));
}

#[test]
fn a_card_is_one_for_all_who_simulate_it() {
    let state_dir = tempfile::tempdir().unwrap();
    let (one, other) = (Machine::below(state_dir.path()), Machine::below(state_dir.path()));
    let (program, neighbour) = (one.program(), other.program());
    let (device, neighbours) = (program.device(0).0, neighbour.device(0).0);
    program.memory(device, 700 * MIB).unwrap();
    assert_eq!(neighbour.memory(neighbours, 400 * MIB), Err(Status::NO_MEMORY));
    assert_eq!(other.used(0), 700 * MIB);
    drop(program);
    assert_eq!(one.used(0), 0);
    neighbour.memory(neighbours, 400 * MIB).unwrap();
    drop(neighbour);
    drop(other);
    assert_eq!(one.used(0), 0, "a driver that ends gives back what it had");
}
