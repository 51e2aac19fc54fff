//! Whatever bytes come: an answer, never a panic, and nothing taken that is not given back.

use proptest::prelude::*;

use super::*;

/// Words that follow from `seed` (SplitMix64): small numbers, handles and classes that exist, and any others. Not one strategy
/// for each word: making those takes most of a test's time.
fn words(seed: u64, count: usize) -> Vec<u8> {
    const KNOWN: [u32; 11] = [0x40, 0x3e, 0x80, 0x2080, 0x90f1, 0xa06c, 0xc86f, 0x41, 0x50a0, 0x9067, 0x79];
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

const ESCAPES: [(u32, usize); 27] = [
    (0x27, 56),
    (0x28, 20),
    (0x29, 16),
    (0x2a, 32),
    (0x2b, 32),
    (0x2b, 48),
    (0x34, 28),
    (0x35, 24),
    (0x41, 56),
    (0x4a, 184),
    (0x4e, 56),
    (0x4f, 32),
    (0x52, 16),
    (0x54, 56),
    (0x57, 64),
    (0x58, 48),
    (0x59, 16),
    (0x5e, 40),
    (0xc8, 72),
    (0xc9, 4),
    (0xce, 16),
    (0xcf, 16),
    (0xd1, 12),
    (0xd2, 72),
    (0xd4, 8),
    (0xd9, 2608),
    (0xda, 8),
];

const CONTROLS: [(u32, usize); 30] = [
    (0x201, 128),
    (0x202, 40),
    (0x204, 4),
    (0x205, 32),
    (0x214, 384),
    (0x215, 132),
    (0x21b, 12),
    (0x274, 272),
    (0x275, 268),
    (0x288, 3076),
    (0x12b, 8348),
    (0x13a, 1352),
    (0xd01, 12),
    (0xd02, 16),
    (0xd05, 12),
    (0x3d05, 24),
    (0x3d06, 20),
    (0x3d08, 80),
    (0x3d0a, 76),
    (0x3d0b, 2128),
    (0x3d0c, 652),
    (0x2080_0110, 132),
    (0x2080_014a, 268),
    (0x2080_018d, 3812),
    (0x2080_018e, 14408),
    (0x2080_1218, 16),
    (0x2080_1301, 16),
    (0x2080_1303, 1028),
    (0x2080_110b, 536),
    (0xa06c_0101, 3),
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
                (if number == 0 { 0x3000_0001 } else { number }, &uvm)
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
        let group = program.alloc(device, 0, 0xa06c, Some(&mut vec![0; 20])).unwrap();
        let carrier = machine.driver.open(Node::Control).unwrap();
        for (which, seed) in calls {
            let mut params = words(seed, 600);
            let (number, size) = CONTROLS[which];
            params.resize(size, 0);
            let object = match number >> 16 {
                0 => program.client,
                0xa06c => group,
                _ => subdevice,
            };
            let at = match number {
                0x3d05 => 16,
                0x3d0a => 72,
                _ => 0,
            };
            let _answer = program.control_with(object, number, &mut params, Some((at, &carrier)));
            prop_assert_eq!(params.len(), size);
        }
        prop_assert_eq!(machine.used(0), machine.live());
    }
}
