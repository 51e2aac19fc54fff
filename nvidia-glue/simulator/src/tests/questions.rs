//! Questions of programs: cards, names, sizes, processes.

use super::*;

#[test]
fn cards_are_listed_and_distinguished() {
    let machine = Machine::new();
    let program = machine.program();
    let (_, subdevice) = program.device(1);
    let card = &inventory().cards[1];
    let mut ids = vec![0; 128];
    program.control(program.client, NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, &mut ids).unwrap();
    let id = get(&ids, 4);
    assert_ne!((get(&ids, 0), id), (id, u32::MAX));
    assert_eq!(get(&ids, 8), u32::MAX);
    let mut probed = vec![0; 384];
    program.control(program.client, NV0000_CTRL_CMD_GPU_GET_PROBED_IDS, &mut probed).unwrap();
    assert_eq!((get(&probed, 4), get(&probed, 128), get(&probed, 256)), (id, u32::MAX, 0));
    let mut info = vec![0; 32];
    put(&mut info, 0, id);
    program.control(program.client, NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, &mut info).unwrap();
    assert_eq!(get(&info, 8), 1);
    let mut pci = vec![0; 12];
    put(&mut pci, 0, id);
    program.control(program.client, NV0000_CTRL_CMD_GPU_GET_PCI_INFO, &mut pci).unwrap();
    assert_eq!(get(&pci, 8), u32::from(card.pci.bus));
    let mut gid = vec![0; 268];
    program.control(subdevice, NV2080_CTRL_CMD_GPU_GET_GID_INFO, &mut gid).unwrap();
    assert_eq!((get(&gid, 8), &gid[12..52]), (41, card.uuid.as_bytes()));
    put(&mut gid, 4, 2);
    program.control(subdevice, NV2080_CTRL_CMD_GPU_GET_GID_INFO, &mut gid).unwrap();
    assert_eq!((get(&gid, 8), &gid[12..28]), (16, super::super::controls::uuid_bytes(&card.uuid).as_slice()));
    let mut name = vec![0; 132];
    program.control(subdevice, NV2080_CTRL_CMD_GPU_GET_NAME_STRING, &mut name).unwrap();
    assert_eq!(name[4..16], *b"NVIDIA H200\0");
    let mut uuid = vec![0; 272];
    uuid[..40].copy_from_slice(card.uuid.as_bytes());
    program.control(program.client, NV0000_CTRL_CMD_GPU_GET_UUID_INFO, &mut uuid).unwrap();
    assert_eq!((get(&uuid, 260), get(&uuid, 264)), (id, 1));
    let mut cards = [0; 144];
    let call = DriverCall { command: command(NV_ESC_CARD_INFO, 144), args: &mut cards, buffers: &mut [], files: &[] };
    machine.driver.ioctl(&program.control, call).unwrap();
    assert_eq!((get(&cards, 72 + 16), get(&cards, 72 + 56), get_u64(&cards, 72 + 48)), (id, 1, CARD));
}

#[test]
fn memory_is_reported_in_kib() {
    let machine = Machine::new();
    let program = machine.program();
    let (device, subdevice) = program.device(0);
    program.memory(device, 100 * MIB).unwrap();
    let mut info = vec![0; 1028];
    put(&mut info, 0, 3);
    for (place, index) in [0x08, 0x09, 0x16].into_iter().enumerate() {
        put(&mut info, 4 + place * 8, index);
    }
    program.control(subdevice, NV2080_CTRL_CMD_FB_GET_INFO_V2, &mut info).unwrap();
    let kib = |bytes: u64| u32::try_from(bytes / 1024).unwrap();
    assert_eq!([get(&info, 8), get(&info, 16), get(&info, 24)], [kib(CARD), kib(CARD), kib(CARD - 100 * MIB)]);
    put(&mut info, 4, 0xff);
    assert_eq!(program.control(subdevice, NV2080_CTRL_CMD_FB_GET_INFO_V2, &mut info), Err(Status::INVALID_ARGUMENT));
    put(&mut info, 0, 129);
    assert_eq!(program.control(subdevice, NV2080_CTRL_CMD_FB_GET_INFO_V2, &mut info), Err(Status::INVALID_ARGUMENT));
}

#[test]
fn processes_are_this_one_with_what_its_objects_hold() {
    let machine = Machine::new();
    let program = machine.program();
    let (device, subdevice) = program.device(0);
    let (memory, _) = program.memory(device, 100 * MIB).unwrap();
    program.duplicate(device, program.client, memory).unwrap();
    let mut pids = vec![0; 3812];
    put(&mut pids, 4, NV20_SUBDEVICE_0);
    program.control(subdevice, NV2080_CTRL_CMD_GPU_GET_PIDS, &mut pids).unwrap();
    assert_eq!((get(&pids, 8), get(&pids, 12)), (1, std::process::id()));
    put(&mut pids, 4, HOPPER_COMPUTE_A);
    program.control(subdevice, NV2080_CTRL_CMD_GPU_GET_PIDS, &mut pids).unwrap();
    assert_eq!(get(&pids, 8), 0);
    let mut info = vec![0; 14408];
    put(&mut info, 0, 2);
    put(&mut info, 8, std::process::id());
    put(&mut info, 80, 1);
    program.control(subdevice, NV2080_CTRL_CMD_GPU_GET_PID_INFO, &mut info).unwrap();
    assert_eq!((get_u64(&info, 8 + 16), get_u64(&info, 80 + 16)), (100 * MIB, 0));
}

#[test]
fn a_control_has_its_object_its_size_and_its_parameters() {
    let machine = Machine::new();
    let program = machine.program();
    let (device, subdevice) = program.device(0);
    assert_eq!(program.control(program.client, 0x999, &mut vec![0; 4]), Err(Status::NOT_SUPPORTED));
    assert_eq!(program.control(device, NV2080_CTRL_CMD_FB_GET_INFO_V2, &mut vec![0; 1028]), Err(Status::NOT_SUPPORTED));
    assert_eq!(
        program.control(subdevice, NV2080_CTRL_CMD_FB_GET_INFO_V2, &mut vec![0; 1027]),
        Err(Status::INVALID_PARAM_STRUCT)
    );
    assert_eq!(
        program.control(0x777, NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, &mut vec![0; 128]),
        Err(Status::OBJECT_NOT_FOUND)
    );
    let stranger = Program { client: 0xc1d0_0000, ..machine.program() };
    assert_eq!(
        stranger.control(0xc1d0_0000, NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, &mut vec![0; 128]),
        Err(Status::INVALID_CLIENT)
    );
}

#[test]
fn versions_are_compared() {
    let machine = Machine::new();
    let program = machine.program();
    let ask = |text: &str, query: u32| {
        let mut args = [0; 72];
        put(&mut args, 0, query);
        args[8..8 + text.len()].copy_from_slice(text.as_bytes());
        let call = DriverCall {
            command: command(NV_ESC_CHECK_VERSION_STR, 72),
            args: &mut args,
            buffers: &mut [],
            files: &[],
        };
        let answer = machine.driver.in_callers_place(&program.control, call).unwrap();
        (answer.is_ok(), String::from_utf8(args[8..18].to_vec()).unwrap())
    };
    assert_eq!(ask("580.159.04", 0), (true, "580.159.04".to_owned()));
    assert_eq!(ask("575.1", 0), (false, "580.159.04".to_owned()));
    assert_eq!(ask("", u32::from(b'2')), (true, "580.159.04".to_owned()));
}
