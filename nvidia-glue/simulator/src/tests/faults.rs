//! Cards that fail, as whoever writes into the simulated log wants it.

use std::io::Write as _;

use super::{
    engines::{Node, Worker},
    *,
};

const GPU_IS_LOST: Status = Status(0xf);
const DISABLE_CHANNELS: u32 = NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
const LOST: &str = "79, GPU has fallen off the bus.";
const RESET: &str = "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)";

/// Card 0 has an error.
fn log(node: &Node, error: &str) {
    let path = node.state_dir.path().join("simulated/kmsg");
    let mut log = std::fs::OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let number = std::fs::read_to_string(&path).unwrap().lines().count();
    writeln!(log, "3,{number},0,-;NVRM: Xid (PCI:0000:01:00): {error}").unwrap();
}

#[test]
fn a_lost_card_refuses_and_its_reset_takes_all_that_was_on_it() {
    let node = Node::new();
    let (one, other) = (node.machine(), node.machine());
    let (first, second) = (Worker::new(&one), Worker::new(&other));
    let elsewhere = first.program.device(1);
    let (group, channel) = first.busy();
    let neighbour = second.busy().1;
    let (memory, _) = first.program.memory(first.device, 64 * MIB).unwrap();
    let name = [(first.program.client, channel)];
    // Off, as in a window that is closed.
    second.disable(&name, true).unwrap();

    log(&node, LOST);
    for worker in [&first, &second] {
        assert_eq!(worker.disable(&name, false), Err(GPU_IS_LOST));
        assert_eq!(worker.program.memory(worker.device, MIB), Err(GPU_IS_LOST));
    }
    assert_eq!(first.program.control(group, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, &mut vec![1, 0, 0]), Err(GPU_IS_LOST));
    assert_eq!(
        second.program.control(neighbour, NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, &mut vec![0; 4]),
        Err(GPU_IS_LOST)
    );
    let alone = other.program();
    assert_eq!(alone.alloc(alone.client, 0, NV01_DEVICE_0, Some(&mut vec![0; 56])), Err(GPU_IS_LOST));
    // Who comes only now finds it so as well.
    let late = node.machine();
    let program = late.program();
    assert_eq!(program.alloc(program.client, 0, NV01_DEVICE_0, Some(&mut vec![0; 56])), Err(GPU_IS_LOST));
    // The other card is none of its business.
    first.program.memory(elsewhere.0, MIB).unwrap();
    first.program.free(memory).unwrap();

    log(&node, RESET);
    assert!(!first.program.exists(channel) && !first.program.exists(first.device), "its device went with the card");
    assert!(first.program.exists(elsewhere.0));
    assert!(!second.program.exists(neighbour));
    assert_eq!((one.used(0), other.used(0)), (0, 0));
    let new = Worker::new(&other);
    assert_eq!(new.disable(&name, false), Err(Status::INVALID_CHANNEL), "there is no such channel any more");
    let again = new.busy().1;
    node.wait(10);
    assert_eq!(new.executed(again), 10, "alone on the card");
}

#[test]
fn a_loss_and_reset_that_nobody_saw_have_happened_all_the_same() {
    let node = Node::new();
    let machine = node.machine();
    let worker = Worker::new(&machine);
    let channel = worker.busy().1;
    log(&node, LOST);
    log(&node, RESET);
    assert!(!worker.program.exists(channel));
    log(&node, LOST);
    assert_eq!(worker.program.alloc(worker.program.client, 0, NV01_DEVICE_0, Some(&mut vec![0; 56])), Err(GPU_IS_LOST));
}

#[test]
fn firmware_that_does_not_answer_leaves_the_card_as_it_is() {
    let node = Node::new();
    let machine = node.machine();
    let worker = Worker::new(&machine);
    let (group, channel) = worker.busy();
    let name = [(worker.program.client, channel)];
    log(
        &node,
        &format!("119, Timeout after 6s of waiting for RPC response from GPU0 GSP! ({DISABLE_CHANNELS:#x} 0x218)."),
    );
    assert_eq!(worker.disable(&name, true), Err(Status(0x65)));
    worker.program.control(group, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, &mut vec![1, 0, 0]).unwrap();
    node.wait(10);
    assert_eq!(worker.executed(channel), 10);
    log(&node, RESET);
    worker.disable(&name, true).unwrap();
    node.wait(10);
    assert_eq!(worker.executed(channel), 10, "it had not been lost, so nothing of it has gone");
}
