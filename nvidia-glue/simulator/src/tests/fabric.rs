//! Addresses on the fabric, and memory that is attached to them.

use super::*;

const LENGTH: u64 = 64 * MIB;
const BLOCK: u64 = 32 * MIB;

fn addresses(program: &Program<'_>, subdevice: u32) -> u32 {
    let mut params = vec![0; 48];
    for (at, value) in [(0, 2 * MIB), (8, LENGTH), (16, 2 * MIB), (24, 1)] {
        put_u64(&mut params, at, value);
    }
    program.alloc(subdevice, 0, NV_MEMORY_FABRIC, Some(&mut params)).unwrap()
}

fn attach(program: &Program<'_>, to: u32, memory: u32, offset: u64) -> Result<(), Status> {
    let mut params = vec![0; 2064];
    for (at, value) in [(0, memory.into()), (8, offset), (24, BLOCK), (2048, 1)] {
        put_u64(&mut params, at, value);
    }
    program.control(to, NV00F8_CTRL_CMD_ATTACH_MEM, &mut params)
}

fn detach(program: &Program<'_>, from: u32, offset: u64) -> Result<(), Status> {
    let mut params = vec![0; 528];
    put_u64(&mut params, 0, offset);
    put_u64(&mut params, 512, 1);
    program.control(from, NV00F8_CTRL_CMD_DETACH_MEM, &mut params)
}

#[test]
fn what_is_attached_goes_with_its_memory_and_with_the_handle_that_attached_it() {
    let machine = Machine::new();
    let (program, other) = (machine.program(), machine.program());
    let ((device, subdevice), (theirs, _)) = (program.device(0), other.device(0));
    let object = addresses(&program, subdevice);
    let duplicate = other.duplicate(theirs, program.client, object).unwrap();
    let count = || machine.driver.attached_to(other.client, duplicate);
    let memory = [0, 0].map(|_| program.memory(device, BLOCK).unwrap().0);
    attach(&program, object, memory[0], 0).unwrap();
    assert_eq!(attach(&program, object, memory[1], 0), Err(Status::INSERT_DUPLICATE_NAME));
    assert_eq!(attach(&program, object, memory[1], LENGTH), Err(Status::INVALID_OFFSET));
    assert_eq!(attach(&program, object, subdevice, BLOCK), Err(Status::INVALID_ARGUMENT));
    attach(&program, object, memory[1], BLOCK).unwrap();
    assert_eq!((count(), machine.used(0)), (Some(2), 2 * BLOCK), "of all handles");
    program.free(memory[0]).unwrap();
    assert_eq!((count(), machine.used(0)), (Some(1), BLOCK));
    detach(&program, object, BLOCK).unwrap();
    attach(&program, object, memory[1], 0).unwrap();
    program.free(object).unwrap();
    assert_eq!((count(), machine.used(0)), (Some(0), BLOCK));
    assert!(!machine.driver.is_corrupted());
}

#[test]
fn what_a_real_driver_does_not_survive_is_noted() {
    let is_corrupted_by = |card: u32, work: fn(&Program<'_>, [u32; 4])| {
        let machine = Machine::new();
        let program = machine.program();
        let ((device, subdevice), (elsewhere, _)) = (program.device(0), program.device(card));
        let object = addresses(&program, subdevice);
        let duplicate = program.duplicate(elsewhere, program.client, object).unwrap();
        let memory = [0, 0].map(|_| program.memory(device, BLOCK).unwrap().0);
        work(&program, [object, duplicate, memory[0], memory[1]]);
        machine.driver.is_corrupted()
    };
    assert!(is_corrupted_by(1, |program, [_, duplicate, memory, _]| attach(program, duplicate, memory, 0).unwrap()));
    assert!(is_corrupted_by(0, |program, [object, duplicate, memory, _]| {
        attach(program, object, memory, 0).unwrap();
        detach(program, duplicate, 0).unwrap();
    }));
    assert!(!is_corrupted_by(0, |program, [object, duplicate, one, other]| {
        attach(program, object, one, 0).unwrap();
        attach(program, duplicate, other, BLOCK).unwrap();
        detach(program, object, 0).unwrap();
        detach(program, duplicate, BLOCK).unwrap();
    }));
}
