//! Discovery against a library that answers as a machine with all kinds of cards would.

use std::{fs, path::Path, process::Command};

use base::Bytes;
use runtime_config::config::{Config, Driver, DriverKind};
use testing::FakeNode;

use super::*;
use crate::{
    Distance,
    discover::{cached_in, refresh_in},
};

/// Puts the library below `root`. `false`: there is no C compiler here.
fn install(root: &Path) -> bool {
    install_with(root, "-DNOW")
}

fn install_with(root: &Path, define: &str) -> bool {
    let directory = root.join("usr/lib64");
    fs::create_dir_all(&directory).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/nvidia/fake_nvml.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wall", "-Werror", define, "-o"]);
    compiler.arg(directory.join("libnvidia-ml.so.1")).arg(source);
    match testing::fork(|| compiler.spawn()).and_then(|mut compiler| compiler.wait()) {
        Ok(status) => {
            assert!(status.success(), "{source} does not compile");
            true
        }
        Err(error) => {
            testing::skipped(format_args!("no C compiler: {error}"));
            false
        }
    }
}

fn reason(card: &Card) -> &str {
    match &card.health {
        Health::Ok => "",
        Health::Unusable { reason } => reason,
    }
}

#[test]
fn every_card_is_listed_as_it_is() {
    let node = FakeNode::new();
    let root = node.tree.path().join("driver");
    if !install(&root) {
        return;
    }
    node.gpu("0000:12:00.0", "Model: NVIDIA H200\nGPU UUID: GPU-known-to-the-module\nDevice Minor: 4\n");
    node.sys("bus/pci/devices/0000:10:00.0/numa_node", "1\n");
    let Survey { inventory, sound } = survey(&node.roots, &root).unwrap().unwrap();
    assert_eq!((inventory.driver_version.as_str(), inventory.cuda_version.as_str()), ("580.159.04", "13.0"));
    let cards = &inventory.cards;
    assert_eq!(cards.iter().map(|card| card.index).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(cards.iter().map(|card| card.minor).collect::<Vec<_>>(), [6, 5, 4, 3, 2, 1, 0]);

    let first = &cards[0];
    assert_eq!(first.uuid, "GPU-00000000-0000-0000-0000-000000000000");
    assert_eq!((first.brand.as_str(), first.compute_capability, first.numa_node), ("Nvidia", (9, 0), Some(1)));
    assert_eq!((first.memory, first.pci.to_string().as_str()), (Bytes(141 << 30), "0000:10:00.0"));
    assert_eq!((reason(first), first.mig_enabled), ("", false));

    assert_eq!(cards[2].uuid, "GPU-known-to-the-module");
    assert!(reason(&cards[2]).starts_with("NVML cannot open it: device fell off the bus"), "{}", reason(&cards[2]));
    assert_eq!(reason(&cards[4]), "the driver asks for recovery: reset the card");
    assert!(reason(&cards[6]).starts_with("NVML does not tell its memory"), "{}", reason(&cards[6]));

    let bare = &cards[5];
    assert_eq!((bare.brand.as_str(), bare.compute_capability, reason(bare)), ("Unknown", (0, 0), ""));
    assert_eq!(bare.model, "NVIDIA GPU");
    assert_eq!(
        cards.iter().map(|card| card.hard_caps).collect::<Vec<_>>(),
        [true, true, false, false, false, false, false]
    );

    // Card 5 has no opinion on its recovery, so it forgives nothing.
    let indices: Vec<u32> = sound.iter().filter_map(|uuid| inventory.by_uuid(uuid)).map(|card| card.index).collect();
    assert_eq!(indices, [0, 1, 3]);
}

#[test]
fn an_old_driver_reports_memory_in_its_own_way() {
    let node = FakeNode::new();
    if !install_with(node.tree.path(), "-DBEFORE_510") {
        return;
    }
    let inventory = survey(&node.roots, node.tree.path()).unwrap().unwrap().inventory;
    assert_eq!((inventory.cards[0].memory, reason(&inventory.cards[0])), (Bytes(141 << 30), ""));
    assert_eq!(inventory.cards[3].mig_devices.len(), 2);
    assert!(reason(&inventory.cards[6]).starts_with("NVML does not tell its memory"));
}

#[test]
fn mig_devices_are_those_in_their_slots_that_can_be_handed_out() {
    let node = FakeNode::new();
    if !install(node.tree.path()) {
        return;
    }
    let inventory = survey(&node.roots, node.tree.path()).unwrap().unwrap().inventory;
    let parent = &inventory.cards[3];
    assert!(parent.mig_enabled && parent.health == Health::Ok);
    let found: Vec<_> = parent
        .mig_devices
        .iter()
        .map(|device| (device.index, device.gpu_instance, device.compute_instance, device.memory))
        .collect();
    assert_eq!(found, [(1, 7, 0, Bytes(18 << 30)), (4, 10, 1, Bytes(18 << 30))]);
    assert_eq!(parent.mig_devices[1].uuid, "MIG-00000000-0000-0000-0000-000000000004");
}

#[test]
fn links_are_nvlink_then_pcie_and_only_between_cards_that_work() {
    let node = FakeNode::new();
    if !install(node.tree.path()) {
        return;
    }
    let inventory = survey(&node.roots, node.tree.path()).unwrap().unwrap().inventory;
    let links = |index: usize| inventory.cards[index].links.clone();
    assert_eq!(links(0), [(1, Distance::NvLink), (5, Distance::PcieSwitch)]);
    assert_eq!(links(1), [(0, Distance::NvLink), (5, Distance::NumaNode)]);
    assert_eq!(links(5), [(0, Distance::PcieSwitch), (1, Distance::NumaNode)]);
    assert_eq!((links(2), links(4)), (vec![], vec![]));
    assert_eq!(inventory.distance(3, 5), Distance::System);
}

#[test]
fn processes_and_persistence() {
    let node = FakeNode::new();
    if !install(node.tree.path()) {
        return;
    }
    let found = processes(&node.roots, node.tree.path()).unwrap().unwrap();
    let summary: Vec<_> = found.iter().map(|process| (process.card.as_str(), process.pid, process.bytes)).collect();
    let first = "GPU-00000000-0000-0000-0000-000000000000";
    assert_eq!(summary, [(first, 100, Some(Bytes(7 << 20))), (first, 200, None)]);
    let modes = persistence(&node.roots, node.tree.path()).unwrap().unwrap();
    assert_eq!(modes.iter().map(|(_, on)| *on).collect::<Vec<_>>(), [true, false, false, false, false]);
}

#[test]
fn sensors_report_what_a_card_has() {
    let node = FakeNode::new();
    if !install(node.tree.path()) {
        return;
    }
    let sensors = Sensors::open(&node.roots, node.tree.path()).unwrap().unwrap();
    let readings = sensors.read();
    assert_eq!(readings.len(), 6, "the lost card does not answer");
    let first = &readings[0];
    assert_eq!(first.card, "GPU-00000000-0000-0000-0000-000000000000");
    assert_eq!((first.temperature_celsius, first.uncorrected_ecc_errors), (Some(40), Some(0)));
    assert_eq!((first.power_mw, first.power_limit_mw), (Some(120_000), Some(700_000)));
    let bare = SensorReading { card: "GPU-00000000-0000-0000-0000-000000000005".into(), ..SensorReading::default() };
    assert_eq!(readings[4], bare);
    assert_eq!(sensors.processes(), processes(&node.roots, node.tree.path()).unwrap().unwrap());
}

/// A card that is gone keeps nothing; one that does not tell may.
#[test]
fn nothing_is_in_use_of_a_card_that_is_lost_or_taken_out() {
    let node = FakeNode::new();
    if !install(node.tree.path()) {
        return;
    }
    let memory = |card: &str| {
        let listed = kernel_module::gpus(&node.roots);
        let sensors = Sensors::open(&node.roots, node.tree.path()).unwrap().unwrap();
        let found = sensors.memory(&[card], &listed).into_iter().find(|memory| memory.card == card)?;
        Some((found.used, found.processes.len()))
    };
    assert_eq!(memory("GPU-taken-out"), None, "the kernel module lists no card, so it says nothing");
    let silent = "GPU-00000000-0000-0000-0000-000000000006";
    node.gpu("0000:12:00.0", "GPU UUID: GPU-lost\n");
    node.gpu("0000:16:00.0", &format!("GPU UUID: {silent}\n"));
    assert_eq!(memory("GPU-00000000-0000-0000-0000-000000000000"), Some((Bytes(0), 2)));
    assert_eq!(memory("GPU-lost"), Some((Bytes(0), 0)));
    assert_eq!(memory(silent), None, "it is there, and does not tell");
    assert_eq!(memory("GPU-taken-out"), Some((Bytes(0), 0)));
    node.gpu("0000:19:00.0", "GPU UUID: GPU-????????-????\n");
    assert_eq!(memory("GPU-taken-out"), None, "it may be the one that nobody has opened yet");
}

/// The whole way: NVML asked, health from the kernel's log, stored and found again.
#[test]
fn what_the_driver_calls_sound_is_forgiven_and_the_rest_is_not() {
    let node = FakeNode::new();
    let root = node.tree.path().join("driver");
    if !install(&root) {
        return;
    }
    let fallen =
        |record, bus| format!("3,{record},0,-;NVRM: Xid (PCI:0000:{bus}:00): 79, GPU has fallen off the bus.\n");
    node.dev("kmsg", &format!("{}{}", fallen(1, "10"), fallen(2, "15")));
    let driver = Driver { kind: DriverKind::Nvidia, root, simulated: Vec::new() };
    let config = Config { state_dir: node.tree.path().join("state"), driver, ..Config::default() };
    let inventory = refresh_in(&node.roots, &config).unwrap();
    assert_eq!(reason(&inventory.cards[0]), "", "NVML says that it needs no recovery");
    assert_eq!(reason(&inventory.cards[5]), "Xid 79 (GPU has fallen off the bus) since boot", "NVML says nothing");
    assert_eq!(cached_in(&node.roots, &config), Some(inventory));
}
