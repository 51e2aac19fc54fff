//! Whatever bytes come: an answer, never a panic, and nothing taken that is not given back.

use proptest::prelude::*;

use super::*;

/// Words that follow from `seed` (SplitMix64): small numbers, handles and classes that exist, and any others. Not one strategy
/// for each word: making those takes most of a test's time.
fn words(seed: u64, count: usize) -> Vec<u8> {
    const KNOWN: [u32; 11] = [
        NV01_MEMORY_LOCAL_USER,
        NV01_MEMORY_SYSTEM,
        NV01_DEVICE_0,
        NV20_SUBDEVICE_0,
        FERMI_VASPACE_A,
        KEPLER_CHANNEL_GROUP_A,
        HOPPER_CHANNEL_GPFIFO_A,
        NV01_ROOT_CLIENT,
        NV50_MEMORY_VIRTUAL,
        FERMI_CONTEXT_SHARE_A,
        NV01_EVENT_OS_EVENT,
    ];
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    };
    let mut word = || {
        let random = next();
        let (kind, value) = (random >> 61, u32::try_from(random & 0xffff_ffff).unwrap());
        match kind {
            0 | 1 => value,
            2 | 3 => value % 8,
            4 => 0xcaf0_0000 + value % 8,
            5 => u32::MAX << (value % 33).min(31),
            _ => KNOWN[value as usize % KNOWN.len()],
        }
    };
    (0..count).flat_map(|_| word().to_le_bytes()).collect()
}

const ESCAPES: [(u8, usize); 27] = [
    (NV_ESC_RM_ALLOC_MEMORY, 56),
    (NV_ESC_RM_ALLOC_OBJECT, 20),
    (NV_ESC_RM_FREE, 16),
    (NV_ESC_RM_CONTROL, 32),
    (NV_ESC_RM_ALLOC, 32),
    (NV_ESC_RM_ALLOC, 48),
    (NV_ESC_RM_DUP_OBJECT, 28),
    (NV_ESC_RM_SHARE, 24),
    (NV_ESC_RM_IDLE_CHANNELS, 56),
    (NV_ESC_RM_VID_HEAP_CONTROL, 184),
    (NV_ESC_RM_MAP_MEMORY, 56),
    (NV_ESC_RM_UNMAP_MEMORY, 32),
    (NV_ESC_RM_GET_EVENT_DATA, 16),
    (NV_ESC_RM_ALLOC_CONTEXT_DMA2, 56),
    (NV_ESC_RM_MAP_MEMORY_DMA, 64),
    (NV_ESC_RM_UNMAP_MEMORY_DMA, 48),
    (NV_ESC_RM_BIND_CONTEXT_DMA, 16),
    (NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO, 40),
    (NV_ESC_CARD_INFO, 72),
    (NV_ESC_REGISTER_FD, 4),
    (NV_ESC_ALLOC_OS_EVENT, 16),
    (NV_ESC_FREE_OS_EVENT, 16),
    (NV_ESC_STATUS_CODE, 12),
    (NV_ESC_CHECK_VERSION_STR, 72),
    (NV_ESC_ATTACH_GPUS_TO_FD, 8),
    (NV_ESC_EXPORT_TO_DMABUF_FD, 2608),
    (NV_ESC_WAIT_OPEN_COMPLETE, 8),
];

const CONTROLS: [(u32, usize); 30] = [
    (NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, 128),
    (NV0000_CTRL_CMD_GPU_GET_ID_INFO, 40),
    (NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS, 4),
    (NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, 32),
    (NV0000_CTRL_CMD_GPU_GET_PROBED_IDS, 384),
    (NV0000_CTRL_CMD_GPU_ATTACH_IDS, 132),
    (NV0000_CTRL_CMD_GPU_GET_PCI_INFO, 12),
    (NV0000_CTRL_CMD_GPU_GET_UUID_INFO, 272),
    (NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID, 268),
    (NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS, 3076),
    (NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2, 8348),
    (NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX, 1352),
    (NV0000_CTRL_CMD_CLIENT_GET_ADDR_SPACE_TYPE, 12),
    (NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO, 16),
    (NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE, 12),
    (NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, 24),
    (NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD, 20),
    (NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO, 80),
    (NV0000_CTRL_CMD_OS_UNIX_CREATE_EXPORT_OBJECT_FD, 76),
    (NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD, 2128),
    (NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD, 652),
    (NV2080_CTRL_CMD_GPU_GET_NAME_STRING, 132),
    (NV2080_CTRL_CMD_GPU_GET_GID_INFO, 268),
    (NV2080_CTRL_CMD_GPU_GET_PIDS, 3812),
    (NV2080_CTRL_CMD_GPU_GET_PID_INFO, 14408),
    (NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE, 16),
    (NV2080_CTRL_CMD_FB_GET_INFO, 16),
    (NV2080_CTRL_CMD_FB_GET_INFO_V2, 1028),
    (NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, 536),
    (NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, 3),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_get_an_answer(
        calls in prop::collection::vec((0_usize..128, any::<u64>(), any::<bool>(), 0_u32..82), 1..60),
    ) {
        let machine = Machine::new();
        let program = machine.program();
        let (device, subdevice) = program.device(0);
        let uvm = program.address_space(device);
        let card = machine.driver.open(Node::Card(0)).unwrap();
        let carrier = machine.driver.open(Node::Control).unwrap();
        for (which, seed, own, number) in calls {
            let (mut args, params) = (words(seed, 64), words(!seed, 200));
            let (command, file) = if which < 64 {
                let (number, size) = ESCAPES[which % ESCAPES.len()];
                args.resize(size, 0);
                (command(number, size), if which % 5 == 0 { &card } else { &program.control })
            } else {
                args.resize(9264, 0);
                (if number == 0 { UVM_INITIALIZE } else { number }, &uvm)
            };
            if own {
                put(&mut args, 0, program.client);
            }
            let files = [
                FileField { holder: Holder::Args, offset: 0, file: carrier.clone() },
                FileField { holder: Holder::Args, offset: 48, file: carrier.clone() },
            ];
            let mut buffers = [Buffer { holder: Holder::Args, offset: 16, bytes: params }];
            let call = DriverCall { command, args: &mut args, buffers: &mut buffers, files: &files };
            let _answer = machine.driver.ioctl(file, call);
            prop_assert_eq!(machine.used(0) + machine.used(1), machine.live());
        }
        let _ = subdevice;
    }

    #[test]
    fn any_parameters_of_a_control_get_an_answer(calls in prop::collection::vec((0_usize..30, any::<u64>()), 1..20)) {
        let machine = Machine::new();
        let program = machine.program();
        let (device, subdevice) = program.device(0);
        let group = program.alloc(device, 0, KEPLER_CHANNEL_GROUP_A, Some(&mut vec![0; 20])).unwrap();
        let carrier = machine.driver.open(Node::Control).unwrap();
        for (which, seed) in calls {
            let mut params = words(seed, 600);
            let (number, size) = CONTROLS[which];
            params.resize(size, 0);
            let object = match number >> 16 {
                0 => program.client,
                KEPLER_CHANNEL_GROUP_A => group,
                _ => subdevice,
            };
            let at = match number {
                NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD => 16,
                NV0000_CTRL_CMD_OS_UNIX_CREATE_EXPORT_OBJECT_FD => 72,
                _ => 0,
            };
            let _answer = program.control_with(object, number, &mut params, Some((at, &carrier)));
            prop_assert_eq!(params.len(), size);
        }
        prop_assert_eq!(machine.used(0), machine.live());
    }
}
