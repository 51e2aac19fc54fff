//! Faults as they come and go in the kernel's log.

use std::fs;

use proptest::prelude::*;

use super::*;
use crate::simulated::tests::inventory_of;

const FALLEN: &str = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.";
const DOUBLE_BIT: &str = "NVRM: Xid (PCI:0000:01:00): 48, pid=5, DBE (double bit error) on page 0";
const CONTAINED: &str = "NVRM: Xid (PCI:0000:01:00): 94, pid=5, Contained: SM";
const UNCONTAINED: &str = "NVRM: Xid (PCI:0000:01:00): 95, pid=5, Uncontained: LTC";
const RESET_WANTED: &str =
    "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)";
const RECOVERED: &str =
    "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)";
const LOADED: &str = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build";
const OTHER_CARD: &str = "NVRM: Xid (PCI:0000:02:00): 119, Timeout after 6s of waiting for RPC response from GPU1 GSP!";

fn faults(messages: &[&str]) -> Faults {
    let mut faults = Faults::default();
    for (sequence, message) in (0u64..).zip(messages) {
        faults.observe(Record { sequence, message });
        faults.next = sequence + 1;
    }
    faults
}

/// Health of a node's two cards after these messages.
fn health(messages: &[&str], forgiven: &BTreeMap<String, u64>) -> Vec<Option<String>> {
    let mut inventory = inventory_of(2);
    faults(messages).apply(&mut inventory, forgiven);
    let reason = |card: &Card| match &card.health {
        Health::Ok => None,
        Health::Unusable { reason } => Some(reason.clone()),
    };
    inventory.cards.iter().map(reason).collect()
}

#[test]
fn what_ends_a_fault_and_what_does_not() {
    let fallen = Some("Xid 79 (GPU has fallen off the bus) since boot".to_owned());
    let nobody = BTreeMap::new();
    for (messages, expected) in [
        (&[][..], None),
        (&[FALLEN], fallen.clone()),
        (&[FALLEN, RESET_WANTED], fallen.clone()),
        (&[FALLEN, RESET_WANTED, RECOVERED], None),
        (&[FALLEN, LOADED], None),
        (&[LOADED, FALLEN], fallen.clone()),
        (&[FALLEN, CONTAINED], fallen),
        (&[DOUBLE_BIT], Some("Xid 48 (double bit ECC error) since boot".into())),
        (&[DOUBLE_BIT, CONTAINED], None),
        (&[DOUBLE_BIT, UNCONTAINED, CONTAINED], Some("Xid 48 (double bit ECC error) since boot".into())),
        (&[RECOVERED], None),
        (&[OTHER_CARD], None),
        (&["Xid 79", "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus."], None),
    ] {
        assert_eq!(health(messages, &nobody)[0], expected, "{messages:?}");
    }
    assert_eq!(health(&[OTHER_CARD, FALLEN], &nobody)[1].as_deref(), Some("Xid 119 (GSP RPC timeout) since boot"));
}

#[test]
fn what_nvml_has_forgiven_counts_no_more_until_it_happens_again() {
    let uuid = inventory_of(1).cards[0].uuid.clone();
    let forgiven = BTreeMap::from([(uuid, 1)]);
    assert_eq!(health(&[FALLEN], &forgiven)[0], None);
    assert!(health(&[FALLEN, FALLEN], &forgiven)[0].is_some());
}

#[test]
fn a_reason_that_nvml_gave_is_kept() {
    let mut inventory = inventory_of(1);
    inventory.cards[0].health = Health::Unusable { reason: "lost".into() };
    faults(&[FALLEN]).apply(&mut inventory, &BTreeMap::new());
    assert_eq!(inventory.cards[0].health, Health::Unusable { reason: "lost".into() });
}

struct Node {
    tree: tempfile::TempDir,
    roots: Roots,
}

impl Node {
    fn new() -> Self {
        let tree = tempfile::tempdir().unwrap();
        let roots = Roots::under(tree.path());
        fs::create_dir_all(roots.proc.join("sys/kernel/random")).unwrap();
        fs::create_dir_all(&roots.dev).unwrap();
        let node = Self { tree, roots };
        node.boot("1111");
        node.log("");
        node
    }

    fn boot(&self, id: &str) {
        fs::write(self.roots.proc.join("sys/kernel/random/boot_id"), format!("{id}\n")).unwrap();
    }

    fn log(&self, text: &str) {
        fs::write(&self.roots.kernel_log, text).unwrap();
    }

    fn look(&self, now: u64) -> Faults {
        look_at_kernel(&self.roots, self.tree.path(), now).unwrap()
    }
}

#[test]
fn a_look_goes_on_where_the_last_one_stopped() {
    let node = Node::new();
    node.log(&format!("3,5,0,-;{FALLEN}\n"));
    assert_eq!(node.look(5000).cards.len(), 1);
    // The record is gone from the ring buffer, what it said is not.
    node.log(&format!("3,9,0,-;{OTHER_CARD}\n"));
    assert_eq!(node.look(5000 + FRESH_MS - 1).cards.len(), 1, "a fresh look is not repeated");
    let faults = node.look(5000 + FRESH_MS);
    assert_eq!((faults.cards.len(), faults.next), (2, 10));
    node.log(&format!("3,9,0,-;{LOADED}\n3,10,0,-;harmless\n"));
    assert_eq!(node.look(9000).cards.len(), 2, "record 9 was looked at before");
    node.log(&format!("3,11,0,-;{LOADED}\n"));
    assert_eq!(node.look(100).cards.len(), 0, "a look of a time to come is not fresh");
}

#[test]
fn another_boot_or_a_spoilt_state_starts_over() {
    let node = Node::new();
    node.log(&format!("3,5,0,-;{FALLEN}\n"));
    node.look(0);
    node.boot("2222");
    node.log("");
    assert_eq!(node.look(0), Faults::default());
    for spoilt in ["", "{", "null", "[1,2]", "{\"boot_id\":\"2222\"}"] {
        fs::write(node.tree.path().join(STATE_FILE), spoilt).unwrap();
        node.log(&format!("3,5,0,-;{FALLEN}\n"));
        assert_eq!(node.look(0).cards.len(), 1, "{spoilt}");
    }
}

#[test]
fn a_log_that_cannot_be_read_is_an_error_that_names_it() {
    let node = Node::new();
    fs::remove_file(&node.roots.kernel_log).unwrap();
    let error = look(&node.roots, node.tree.path(), Source::Nvidia).unwrap_err();
    assert!(error.to_string().contains("dev/kmsg"), "{error}");
}

#[test]
fn simulated_cards_have_a_log_of_their_own() {
    let state = tempfile::tempdir().unwrap();
    let roots = Roots::under("/nonexistent");
    assert_eq!(look(&roots, state.path(), Source::Simulated).unwrap(), Faults::default());
    fs::create_dir(state.path().join("simulated")).unwrap();
    fs::write(state.path().join(SIMULATED_LOG), format!("3,1,0,-;{FALLEN}\n")).unwrap();
    let mut inventory = inventory_of(2);
    look(&roots, state.path(), Source::Simulated).unwrap().apply(&mut inventory, &BTreeMap::new());
    assert_ne!(inventory.cards[0].health, Health::Ok);
    assert_eq!(inventory.cards[1].health, Health::Ok);
}

proptest! {
    #[test]
    fn the_state_is_the_same_however_the_log_is_cut(choice in proptest::collection::vec(0usize..8, 0..30), cut in 0usize..30) {
        let all = [FALLEN, DOUBLE_BIT, CONTAINED, UNCONTAINED, RESET_WANTED, RECOVERED, LOADED, OTHER_CARD];
        let messages: Vec<&str> = choice.iter().map(|index| all[*index]).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |upto: usize| {
            let lines = messages.iter().take(upto).enumerate();
            fs::write(&file, lines.map(|(n, line)| format!("3,{n},0,-;{line}\n")).collect::<String>()).unwrap();
        };
        write(messages.len());
        let at_once = read_on(file.path(), Faults::default()).unwrap();
        write(cut.min(messages.len()));
        let first = read_on(file.path(), Faults::default()).unwrap();
        write(messages.len());
        prop_assert_eq!(read_on(file.path(), first).unwrap(), at_once);
    }
}
