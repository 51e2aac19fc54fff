//! The cache, and discovery on made-up machines.

use std::{fs, path::PathBuf};

use runtime_config::{
    config::{Config, Driver, DriverKind},
    request::DeviceSelector,
};

use testing::FakeNode;

use super::{
    cache,
    discover::{cached_in, refresh_in},
    simulated::tests::{inventory_of, v100},
    *,
};

/// A node with a driver and two cards, as far as `/proc` shows.
fn node() -> FakeNode {
    let node = FakeNode::new();
    node.proc(
        "driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release\n",
    );
    node.proc("devices", "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n509 nvidia-caps\n");
    node.gpu("0000:01:00.0", "");
    node.gpu("0000:02:00.0", "");
    node
}

fn config(node: &FakeNode, kind: DriverKind, simulated: u32) -> Config {
    let simulated = if simulated == 0 { Vec::new() } else { vec![v100(simulated)] };
    let state_dir = node.tree.path().join("run/egpu");
    // Below this root there is no library, so that the tests do not depend on the machine's own
    // driver.
    let driver = Driver { kind, root: node.tree.path().join("driver"), simulated };
    Config { state_dir, driver, ..Config::default() }
}

/// Two cards as NVML might report them.
fn two_cards() -> Inventory {
    Inventory { source: Source::Nvidia, ..inventory_of(2) }
}

fn store(node: &FakeNode, config: &Config) {
    let key = cache::key(&node.roots, config).unwrap();
    cache::store(config, key, two_cards(), cache::Notes::default()).unwrap();
}

fn cache_file(config: &Config) -> PathBuf {
    config.state_dir.join("inventory.json")
}

#[test]
fn what_was_stored_is_found_again() {
    let node = node();
    let config = config(&node, DriverKind::Auto, 0);
    assert_eq!(cached_in(&node.roots, &config), None);
    store(&node, &config);
    assert_eq!(cached_in(&node.roots, &config), Some(two_cards()));
}

#[test]
fn whatever_changes_with_the_cards_makes_it_a_miss() {
    let mig = "driver/nvidia/capabilities/gpu0/mig/gi1";
    type Change = fn(&FakeNode, &mut Config);
    let changes: [(&str, Change); 8] = [
        ("boot", |node, _| node.proc("sys/kernel/random/boot_id", "another\n")),
        ("driver", |node, _| {
            node.proc("driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.1\n");
        }),
        ("device numbers", |node, _| node.proc("devices", "Character devices:\n195 nvidia\n510 nvidia-caps\n")),
        ("a card more", |node, _| node.gpu("0000:03:00.0", "")),
        ("a card less", |node, _| fs::remove_dir_all(node.roots.proc.join("driver/nvidia/gpus/0000:02:00.0")).unwrap()),
        ("GPU instance", |node, _| node.proc("driver/nvidia/capabilities/gpu0/mig/gi2/access", "")),
        ("compute instance", |node, _| node.proc("driver/nvidia/capabilities/gpu0/mig/gi1/ci1/access", "")),
        ("configuration", |_, config| config.driver.simulated = vec![v100(1)]),
    ];
    for (what, change) in changes {
        let node = node();
        let mut config = config(&node, DriverKind::Auto, 0);
        node.proc(&format!("{mig}/ci0/access"), "");
        store(&node, &config);
        assert!(cached_in(&node.roots, &config).is_some(), "{what}: before");
        change(&node, &mut config);
        assert_eq!(cached_in(&node.roots, &config), None, "{what}: after");
    }
}

#[test]
fn what_does_not_concern_the_cards_changes_nothing() {
    let node = node();
    let config = config(&node, DriverKind::Auto, 0);
    store(&node, &config);
    node.proc("devices", "Character devices:\n195 nvidia\n195 nvidiactl\n509 nvidia-caps\n511 nvidia-uvm\n 90 mtd\n");
    node.gpu("0000:01:00.0", "GPU UUID: GPU-now-known\n");
    assert!(cached_in(&node.roots, &config).is_some());
}

#[test]
fn a_driver_that_was_loaded_anew_is_queried_anew() {
    let node = node();
    let config = config(&node, DriverKind::Auto, 0);
    store(&node, &config);
    node.dev("kmsg", "4,7,0,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release\n");
    assert_eq!(cached_in(&node.roots, &config), None);
}

#[test]
fn who_waited_for_another_look_takes_its_outcome() {
    let node = node();
    let config = config(&node, DriverKind::Nvidia, 0);
    // There is no library below this root, so that asking NVML would be an error.
    store(&node, &config);
    assert_eq!(cache::load(&node.roots, &config, 0), Some(two_cards()));
    assert_eq!(cache::load(&node.roots, &config, u64::MAX), None, "stored before it was asked for");
}

#[test]
fn a_spoilt_cache_is_a_miss() {
    let node = node();
    let config = config(&node, DriverKind::Auto, 0);
    store(&node, &config);
    let good = fs::read_to_string(cache_file(&config)).unwrap();
    let other_format = good.replacen("\"format\":2", "\"format\":3", 1);
    let other_order = good.replacen("\"index\":1", "\"index\":7", 1);
    assert!(other_format != good && other_order != good);
    for spoilt in ["", "{}", "null", &good[..good.len() / 2], &other_format, &other_order, "\u{0}\u{1}"] {
        fs::write(cache_file(&config), spoilt).unwrap();
        assert_eq!(cached_in(&node.roots, &config), None, "{spoilt:.40}");
    }
    fs::write(cache_file(&config), good).unwrap();
    assert!(cached_in(&node.roots, &config).is_some());
}

#[test]
fn without_a_boot_id_nothing_is_believed() {
    let node = node();
    let config = config(&node, DriverKind::Auto, 0);
    store(&node, &config);
    node.proc("sys/kernel/random/boot_id", "");
    assert_eq!(cached_in(&node.roots, &config), None);
}

#[test]
fn an_error_since_then_shows_and_after_a_while_the_driver_is_queried_again() {
    let node = node();
    let config = config(&node, DriverKind::Auto, 0);
    store(&node, &config);
    node.dev("kmsg", "3,1,0,-;NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n");
    let inventory = cached_in(&node.roots, &config).unwrap();
    assert_eq!(inventory.cards[0].health, Health::Ok);
    assert_eq!(
        inventory.cards[1].health,
        Health::Unusable { reason: "Xid 79 (GPU has fallen off the bus) since boot".into() }
    );
    let text = fs::read_to_string(cache_file(&config)).unwrap();
    let mut file: serde_json::Value = serde_json::from_str(&text).unwrap();
    file["stored_at_ms"] = 0.into();
    fs::write(cache_file(&config), file.to_string()).unwrap();
    let uptime: f64 = fs::read_to_string("/proc/uptime").unwrap().split(' ').next().unwrap().parse().unwrap();
    if uptime < 120.0 {
        testing::skipped("the machine has not been up for long enough for a file of its boot to be old");
        return;
    }
    assert_eq!(cached_in(&node.roots, &config), None);
}

#[test]
fn simulated_cards_need_no_cache_and_fail_as_real_ones_do() {
    let node = FakeNode::new();
    let config = config(&node, DriverKind::Simulated, 2);
    let inventory = cached_in(&node.roots, &config).unwrap();
    assert_eq!(inventory, refresh_in(&node.roots, &config).unwrap());
    assert_eq!(inventory.cards.len(), 2);
    fs::create_dir_all(config.state_dir.join("simulated")).unwrap();
    let log = "3,1,0,-;NVRM: Xid (PCI:0000:01:00): 95, pid=1, Uncontained\n";
    fs::write(config.state_dir.join("simulated/kmsg"), log).unwrap();
    assert_ne!(cached_in(&node.roots, &config).unwrap().cards[0].health, Health::Ok);
}

#[test]
fn auto_takes_simulated_cards_where_there_is_no_driver_and_none_where_there_are_none() {
    if this_machine_has_nvml() {
        testing::skipped("this machine has an NVIDIA driver");
        return;
    }
    let node = FakeNode::new();
    let simulated = refresh_in(&node.roots, &config(&node, DriverKind::Auto, 3)).unwrap();
    assert_eq!((simulated.source, simulated.cards.len()), (Source::Simulated, 3));
    for kind in [DriverKind::Auto, DriverKind::Nvidia] {
        let config = config(&node, kind, 0);
        let empty = refresh_in(&node.roots, &config).unwrap();
        assert!(!empty.has_driver() && empty.cards.is_empty());
        assert_eq!(cached_in(&node.roots, &config), Some(empty));
    }
    let only_nvidia = refresh_in(&node.roots, &config(&node, DriverKind::Nvidia, 3)).unwrap();
    assert!(only_nvidia.cards.is_empty());
}

#[test]
fn many_at_once_find_the_same() {
    if this_machine_has_nvml() {
        testing::skipped("this machine has an NVIDIA driver");
        return;
    }
    let node = FakeNode::new();
    let config = config(&node, DriverKind::Auto, 2);
    let found: Vec<Inventory> = std::thread::scope(|scope| {
        let looks: Vec<_> = (0..16).map(|_| scope.spawn(|| refresh_in(&node.roots, &config).unwrap())).collect();
        looks.into_iter().map(|look| look.join().unwrap()).collect()
    });
    assert!(found.iter().all(|inventory| *inventory == found[0] && inventory.cards.len() == 2));
    assert_eq!(cached_in(&node.roots, &config).as_ref(), found.first());
    let left: Vec<_> = fs::read_dir(&config.state_dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("new")), "{left:?}");
}

#[test]
fn a_loaded_driver_without_library_is_an_error_not_simulated_cards() {
    if this_machine_has_nvml() {
        testing::skipped("this machine has an NVIDIA driver");
        return;
    }
    let node = node();
    let error = refresh_in(&node.roots, &config(&node, DriverKind::Auto, 3)).unwrap_err();
    assert!(matches!(error, DiscoverError::Driver(DriverError::NoLibrary { .. })), "{error:?}");
}

/// On a machine with a driver: `cargo test -p nvidia-glue real_cards -- --nocapture` shows what was
/// found.
#[test]
fn real_cards_hold_what_an_inventory_promises() {
    let state = tempfile::tempdir().unwrap();
    let driver = Driver { kind: DriverKind::Nvidia, ..Config::default().driver };
    let config = Config { state_dir: state.path().into(), driver, ..Config::default() };
    let inventory = discover(&config).unwrap();
    if !inventory.has_driver() {
        testing::skipped("this machine has no NVIDIA driver");
        return;
    }
    println!("{}", serde_json::to_string_pretty(&inventory).unwrap());
    if let Some(module) = kernel_module::loaded(&Roots::host()) {
        assert_eq!(inventory.driver_version, module.version);
    }
    for (index, card) in (0..).zip(&inventory.cards) {
        assert_eq!(card.index, index);
        assert_eq!(inventory.resolve(&DeviceSelector::Uuid(card.uuid.clone())), Ok(CardOrMig::Card(card)));
        assert_eq!(inventory.resolve(&DeviceSelector::Pci(card.pci)), Ok(CardOrMig::Card(card)));
        if card.health == Health::Ok {
            assert!(card.uuid.starts_with("GPU-") && card.compute_capability.0 > 0 && card.minor < 248, "{card:?}");
            assert!(card.mig_enabled || card.memory.0 > 0, "{card:?}");
        }
    }
    let refreshed = refresh(&config).unwrap();
    assert_eq!(refreshed, inventory, "two looks differ");
    assert_eq!(cached(&config), Some(refreshed));
    for process in processes(&config).unwrap() {
        println!("{process:?}");
        assert!(inventory.by_uuid(&process.card).is_some());
    }
}

fn this_machine_has_nvml() -> bool {
    !matches!(nvml_wrapper::Nvml::init(), Err(nvml_wrapper::error::NvmlError::LibloadingError(_)))
}
