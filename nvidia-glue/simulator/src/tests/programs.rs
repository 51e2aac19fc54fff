//! Random programs: at every step a card's account is the sum of what lives.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Alloc { size: u64, page: u32 },
    Group,
    Duplicate { which: usize },
    Map { which: usize },
    Unmap { which: usize },
    Export { which: usize },
    CloseExport { which: usize },
    Free { which: usize },
    FreeDevice,
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0_usize..64;
    prop_oneof![
        4 => (1_u64..300 * MIB, 0_u32..4).prop_map(|(size, page)| Step::Alloc { size, page }),
        1 => Just(Step::Group),
        2 => which.clone().prop_map(|which| Step::Duplicate { which }),
        2 => which.clone().prop_map(|which| Step::Map { which }),
        2 => which.clone().prop_map(|which| Step::Unmap { which }),
        1 => which.clone().prop_map(|which| Step::Export { which }),
        1 => which.clone().prop_map(|which| Step::CloseExport { which }),
        4 => which.prop_map(|which| Step::Free { which }),
        1 => Just(Step::FreeDevice),
    ]
}

fn nth<T: Clone>(items: &[T], which: usize) -> Option<T> {
    (!items.is_empty()).then(|| items[which % items.len()].clone())
}

fn take_nth<T>(items: &mut Vec<T>, which: usize) -> Option<T> {
    (!items.is_empty()).then(|| items.swap_remove(which % items.len()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_cards_account_is_what_lives(steps in prop::collection::vec(step(), 1..40)) {
        let machine = Machine::new();
        let program = machine.program();
        let (mut device, _) = program.device(0);
        let mut file = program.address_space(device);
        let (mut handles, mut ranges, mut exports) = (Vec::<(u32, u64)>::new(), Vec::<(u64, u64)>::new(), Vec::new());
        let mut next = 0x7f00_0000_0000_u64;
        for step in steps {
            match step {
                Step::Alloc { size, page } => {
                    let mut params = memory_params(size);
                    put(&mut params, 24, page << 23);
                    if let Ok(handle) = program.alloc(device, 0, NV01_MEMORY_LOCAL_USER, Some(&mut params)) {
                        handles.push((handle, get_u64(&params, 64)));
                    }
                }
                Step::Group => {
                    let mut params = vec![0; 20];
                    put(&mut params, 12, 1);
                    if let Ok(handle) = program.alloc(device, 0, KEPLER_CHANNEL_GROUP_A, Some(&mut params)) {
                        program.alloc(handle, 0, HOPPER_CHANNEL_GPFIFO_A, Some(&mut vec![0; 368])).unwrap();
                        let _answer = program.control(handle, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, &mut vec![1, 0, 0]);
                        handles.push((handle, 0));
                    }
                }
                Step::Duplicate { which } => {
                    if let Some((handle, size)) = nth(&handles, which)
                        && let Ok(duplicate) = program.duplicate(device, program.client, handle)
                    {
                        handles.push((duplicate, size));
                    }
                }
                Step::Map { which } => {
                    if let Some((handle, size)) = nth(&handles, which).filter(|(_, size)| *size > 0) {
                        next += 1 << 40;
                        program.map(&file, next, size, handle).unwrap();
                        ranges.push((next, size));
                    }
                }
                Step::Unmap { which } => {
                    if let Some((base, size)) = take_nth(&mut ranges, which) {
                        program.unmap(&file, base, size).unwrap();
                    }
                }
                Step::Export { which } => {
                    if let Some((handle, _)) = nth(&handles, which).filter(|(_, size)| *size > 0) {
                        let carrier = machine.driver.open(Node::Control).unwrap();
                        let mut params = vec![0; 24];
                        for (at, value) in [(0, 1), (4, device), (12, handle)] {
                            put(&mut params, at, value);
                        }
                        program.control_with(program.client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, &mut params, Some((16, &carrier))).unwrap();
                        exports.push(carrier);
                    }
                }
                Step::CloseExport { which } => drop(take_nth(&mut exports, which)),
                Step::Free { which } => {
                    if let Some((handle, _)) = take_nth(&mut handles, which) {
                        program.free(handle).unwrap();
                    }
                }
                Step::FreeDevice => {
                    program.free(device).unwrap();
                    handles.clear();
                    device = program.device(0).0;
                    ranges.clear();
                    file = program.address_space(device);
                }
            }
            let used = machine.used(0);
            prop_assert_eq!(used, machine.live());
            prop_assert!(used <= CARD);
        }
        drop((program, file, exports));
        prop_assert_eq!(machine.used(0), 0);
    }
}
