//! Containers that share no card: those that only look at cards (`utility` alone) see all, and can
//! have nothing; those with whole cards have them without a mediator, unless the configuration
//! wants one.

use integration::{ContainerBuilder, EgpuConfig, Node, Setup, eventually, hostile::OUT_OF_MEMORY};

use super::{granted, until_free};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("memory::monitoring_sees_the_cards_and_has_nothing", monitor).only_simulated("four V100 of 32 GiB"),
        Case::egpu("memory::monitoring_shows_the_table_of_cards", table)
            .needing(crate::attacks::rm_client)
            .only_simulated("four V100 of 32 GiB"),
        Case::egpu("memory::monitoring_with_rights_that_no_mediator_survives_is_reported", exempt),
        Case::egpu("memory::a_whole_card_is_mediated_where_that_is_wanted", whole)
            .on(whole_cards_mediated)
            .only_simulated("four V100 of 32 GiB"),
    ]
}

fn monitoring<'node>(node: &'node Node, id: &str) -> ContainerBuilder<'node> {
    node.container(id).armed().envs(&[("NVIDIA_VISIBLE_DEVICES", "all"), ("NVIDIA_DRIVER_CAPABILITIES", "utility")])
}

fn monitor(node: &Node) {
    let neighbour = granted(node, "neighbour", 4096).hostile(&["hold", "1024"]).start().unwrap();
    assert_eq!(neighbour.stdio.value("status"), 0);
    let container = monitoring(node, "monitor").start().unwrap();
    let (code, output) = container.sh("hostile total");
    assert_eq!((code, output.value("status")), (0, 0), "{}", output.stdout());
    let (size, free) = (output.value("size_kib"), output.value("free_kib"));
    assert!(size > 30 << 20, "the whole card: {size} KiB");
    assert!((1024 << 10..1300 << 10).contains(&(size - free)), "what the neighbour has of it: {} KiB", size - free);
    // In pieces, by a channel group, and as managed memory.
    let taken = node.card_used(0);
    let (_, output) = container.sh("hostile fill 1");
    assert_eq!((output.value("got"), output.value("status")), (0, OUT_OF_MEMORY), "{}", output.stdout());
    let group = container.exec("group", &["hostile", "objects", "0xa06c"]).start().unwrap();
    assert_eq!(group.stdio.value("count"), 0);
    assert_ne!(group.stdio.value("status"), 0);
    assert_eq!(node.card_used(0), taken);
    // It holds nothing, and stands in nobody's way.
    assert_eq!((node.usage("monitor").used, node.usage("monitor").limit), (0, 0));
    let whole = node.container("whole").env("NVIDIA_VISIBLE_DEVICES", "1").start().unwrap();
    assert!(node.grant("whole").unwrap().exclusive());
    for container in [whole, neighbour, container] {
        let _ = container.end();
    }
    until_free(node);
}

fn whole_cards_mediated() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("whole_cards = \"mediated\"\n"), ..Setup::default() }
}

/// All of its own card, and nothing of another, whatever open files it is handed: its mediator
/// speaks for it.
fn whole(node: &Node) {
    let neighbour = granted(node, "neighbour", 4096).hostile(&["hold", "1024"]).start().unwrap();
    let container = node.container("whole").armed().env("NVIDIA_VISIBLE_DEVICES", "1").start().unwrap();
    let grant = node.grant("whole").unwrap();
    assert!(grant.exclusive() && grant.0["mediator"].as_u64().is_some());
    let (_, output) = container.sh("hostile total");
    assert_eq!(output.value("status"), 0);
    assert!(output.value("size_kib") > 30 << 20, "{}", output.stdout());
    let taken = node.card_used(0);
    let (_, output) = container.sh("hostile fill 1024");
    assert_eq!(output.value("status"), OUT_OF_MEMORY);
    assert!(output.value("got") > 30 << 30, "{}", output.stdout());
    assert_eq!(node.card_used(0), taken);
    for container in [container, neighbour] {
        container.end();
    }
    until_free(node);
}

fn table(node: &Node) {
    let neighbour = granted(node, "neighbour", 4096).hostile(&["hold", "1024"]).start().unwrap();
    assert_eq!(neighbour.stdio.value("status"), 0);
    let container = monitoring(node, "monitor").start().unwrap();
    let table = container.read("rm-client smi");
    assert_eq!(table.matches("Tesla V100").count(), 4, "{table}");
    let used: Vec<u64> =
        table.lines().filter_map(|line| line.split_once("MiB / 32")?.0.split(' ').next_back()?.parse().ok()).collect();
    assert_eq!(used.len(), 4, "{table}");
    assert!((1024..1300).contains(&used[0]) && used[1..].iter().all(|used| *used < 300), "{table}");
    container.end();
    neighbour.end();
    until_free(node);
}

/// Its calls would be executed with its own rights, which reach all memory: nothing is gained by
/// looking at them.
fn exempt(node: &Node) {
    let held = monitoring(node, "held").start().unwrap();
    let doctor = || String::from_utf8_lossy(&node.egpu(&["doctor"]).stdout).into_owned();
    assert!(!doctor().contains("unmediated"), "{}", doctor());
    let privileged = monitoring(node, "privileged").edit(|spec| {
        for set in ["bounding", "permitted", "effective"] {
            spec["process"]["capabilities"][set].as_array_mut().unwrap().push("CAP_SYS_ADMIN".into());
        }
    });
    let privileged = privileged.start().unwrap();
    let mediator = |id: &str| node.grant(id).unwrap().0["mediator"].as_u64();
    assert!(mediator("held").is_some() && mediator("privileged").is_none());
    let report = doctor();
    assert!(report.contains("privileged monitor cards unmediated") && !report.contains("/held"), "{report}");
    // Nor may the one that is held get such rights later.
    let late = held.exec("late", &["true"]).edit(|process| {
        process["capabilities"]["bounding"].as_array_mut().unwrap().push("CAP_SYS_ADMIN".into());
    });
    assert!(late.start().is_err());
    // The shim's log comes to containerd by a FIFO.
    eventually("that is in the log", || node.containerd_log().contains("monitors its cards unmediated").then_some(()));
    privileged.end();
    held.end();
}
