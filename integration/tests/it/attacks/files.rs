//! Files of the driver in hands that they were not given to.

use std::path::Path;

use integration::{
    Container, ContainerBuilder, Node,
    hostile::{INVALID_CLIENT, MIB, OUT_OF_MEMORY, value},
    processes::Process,
};
use serde_json::json;

use super::{QUOTA, attacker, run};
use crate::{
    case::Case,
    memory::{granted, until_free},
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("attacks::a_file_lent_to_another_container", lent),
        Case::egpu("attacks::a_file_lent_to_a_container_without_a_grant", lent_to_nobody),
        Case::egpu("attacks::memory_left_in_a_file_that_a_sidecar_has", left_behind),
        Case::egpu("attacks::memory_left_by_a_killed_mediator", left_by_a_killed_mediator),
        Case::egpu("attacks::memory_left_on_a_card_that_is_lost", left_on_a_lost_card)
            .only_simulated("it loses the card"),
        Case::egpu("attacks::memory_left_without_a_broker", left_without_a_broker),
        Case::egpu("attacks::memory_left_to_the_next_process_in_a_file_that_a_sidecar_has", left_to_the_next_process),
        Case::egpu("attacks::the_node_of_another_card", another_card),
    ]
}

/// With a directory that two containers see.
fn sharing<'node>(builder: ContainerBuilder<'node>, directory: &Path) -> ContainerBuilder<'node> {
    let directory = directory.to_owned();
    builder.edit(move |spec| {
        let mount = json!({ "destination": "/shared", "type": "bind", "source": directory, "options": ["bind", "rw"] });
        spec["mounts"].as_array_mut().unwrap().push(mount);
    })
}

/// Checks that a container that borrows another's files gets all that is its own, and nothing in
/// the owner's name. It is the mediator that refuses: a simulated driver is its mediator's own, has
/// never heard of the client, and would answer that there is no such object.
#[track_caller]
pub(super) fn assert_only_its_own(value: impl Fn(&str) -> i64) {
    assert_eq!(value("as_them"), INVALID_CLIENT, "no memory in the owner's name");
    assert_eq!((value("begin"), value("status")), (0, OUT_OF_MEMORY), "a client of its own, with a quota");
    let got = value("got").cast_unsigned();
    assert!(got <= QUOTA * MIB && got + 64 * MIB >= QUOTA * MIB, "{got}");
    assert_eq!(value("dup"), INVALID_CLIENT, "none of the owner's objects");
    assert_eq!(value("free"), INVALID_CLIENT, "nor can it end the owner's client");
}

/// Defence: a call counts for the container whose filter stopped it; clients of others are refused.
fn lent(node: &Node) {
    let directory = tempfile::tempdir().unwrap();
    let owner =
        sharing(granted(node, "owner", 1024).hostile(&["lend", "/shared/s"]), directory.path()).start().unwrap();
    owner.stdio.value("listening");
    let thief = sharing(attacker(node, &["borrow", "/shared/s"]), directory.path()).start().unwrap();
    assert_only_its_own(|name| thief.stdio.value(name));
    let usage = node.usage("owner");
    assert!(usage.used < 64 * MIB, "the owner pays for nothing: {usage:?}");
    assert!(node.card_used(0) <= (QUOTA + 64) * MIB);
    thief.end();
    owner.end();
    until_free(node);
}

/// Defence: the filter of containers without a request refuses every driver call, whatever file it
/// is made on.
fn lent_to_nobody(node: &Node) {
    let directory = tempfile::tempdir().unwrap();
    let owner =
        sharing(granted(node, "owner", 1024).hostile(&["lend", "/shared/s"]), directory.path()).start().unwrap();
    owner.stdio.value("listening");
    let thief = sharing(node.container("thief").hostile(&["borrow", "/shared/s"]), directory.path()).start().unwrap();
    let refused = -i64::from(libc::ENOTTY);
    assert_eq!((thief.stdio.value("as_them"), thief.stdio.value("begin")), (refused, refused));
    // The nodes of simulated cards say so as well; the filter says it without any file, which
    // otherwise is EBADF.
    assert_eq!(thief.stdio.value("nowhere"), refused);
    assert_eq!(thief.stdio.value("got"), 0);
    thief.end();
    owner.end();
    until_free(node);
}

/// Defence: the mediator frees its container's clients before it ends, on duplicates of their
/// files. A real driver would free them at the last close, which is the sidecar's.
fn left_behind(node: &Node) {
    let directory = tempfile::tempdir().unwrap();
    let mut sidecars = Vec::new();
    for round in ["one", "two", "three"] {
        let lend = ["lend", "/shared/s", "384"];
        let owner = sharing(attacker(node, &lend), directory.path()).start().unwrap();
        owner.stdio.value("listening");
        assert_eq!(owner.stdio.value("status"), 0, "what the one before had is to be had again");
        let sidecar = sharing(node.container(round).hostile(&["keep", "/shared/s"]), directory.path()).start().unwrap();
        assert_eq!(sidecar.stdio.value("kept"), 1);
        sidecars.push(sidecar);
        owner.end();
        std::fs::remove_file(directory.path().join("s")).unwrap();
        assert!(node.card_used(0) < 64 * MIB, "{} MiB are left of {round}", node.card_used(0) / MIB);
    }
    for sidecar in sidecars {
        sidecar.end();
    }
    until_free(node);
}

/// Defence: a mediator that was killed has freed nothing, so the grant is kept as long as its
/// memory is in use.
fn left_by_a_killed_mediator(node: &Node) {
    let directory = tempfile::tempdir().unwrap();
    let (mut owner, sidecar) = with_a_sidecar(node, directory.path());
    mediator(node).kill();
    owner.wait().unwrap();
    let kept = owner.delete().unwrap_err();
    assert!(kept.message().contains("are in use that no container"), "{kept}");
    assert_eq!(node.granted(), ["attacker"]);
    sidecar.end();
    owner.delete().unwrap();
    until_free(node);
}

/// A lost card comes back without what was there, so that nobody has to end for its sake.
fn left_on_a_lost_card(node: &Node) {
    let directory = tempfile::tempdir().unwrap();
    let (mut owner, sidecar) = with_a_sidecar(node, directory.path());
    mediator(node).kill();
    owner.wait().unwrap();
    owner.delete().unwrap_err();
    node.card_error(0, "79, GPU has fallen off the bus.");
    owner.delete().unwrap();
    assert_eq!(node.granted(), Vec::<String>::new());
    sidecar.end();
}

/// Defence: a mediator that has lost its broker frees everything before it ends.
fn left_without_a_broker(node: &Node) {
    let directory = tempfile::tempdir().unwrap();
    let (mut owner, sidecar) = with_a_sidecar(node, directory.path());
    let mediator = mediator(node).pid;
    let children = std::fs::read_to_string(format!("/proc/{mediator}/task/{mediator}/children")).unwrap();
    Process::read(children.trim().parse().unwrap()).unwrap().kill();
    owner.wait().unwrap();
    owner.delete().unwrap();
    assert!(node.card_used(0) < 64 * MIB);
    assert_eq!(node.granted(), Vec::<String>::new());
    sidecar.end();
    until_free(node);
}

/// A container that has memory, and another one that has its files.
fn with_a_sidecar<'node>(node: &'node Node, directory: &Path) -> (Container<'node>, Container<'node>) {
    let owner = sharing(attacker(node, &["lend", "/shared/s", "384"]), directory).start().unwrap();
    owner.stdio.value("listening");
    let sidecar = sharing(node.container("sidecar").hostile(&["keep", "/shared/s"]), directory).start().unwrap();
    assert_eq!(sidecar.stdio.value("kept"), 1);
    (owner, sidecar)
}

fn mediator(node: &Node) -> Process {
    let pid = node.grant("attacker").unwrap().0["mediator"].as_i64().unwrap();
    Process::read(i32::try_from(pid).unwrap()).unwrap()
}

/// Defence: the same for each process that ends, and whenever its memory is needed.
fn left_to_the_next_process(node: &Node) {
    let directory = tempfile::tempdir().unwrap();
    let script = "hostile lend /shared/s 384 & until test -e /shared/kept; do sleep 0.05; done; kill -9 $!; wait; hostile fill 16";
    let owner = granted(node, "attacker", QUOTA).armed().script(script);
    let owner = sharing(owner, directory.path()).start().unwrap();
    owner.stdio.value("listening");
    let sidecar = sharing(node.container("sidecar").hostile(&["keep", "/shared/s"]), directory.path()).start().unwrap();
    assert_eq!(sidecar.stdio.value("kept"), 1);
    std::fs::write(directory.path().join("kept"), "").unwrap();
    let got = owner.stdio.value("got").cast_unsigned();
    assert!(got + 48 * MIB >= QUOTA * MIB, "the dead process's memory was to be had: {} MiB", got / MIB);
    owner.end();
    sidecar.end();
    until_free(node);
}

/// Defence: the container's device rules. Without them it would be ENXIO where there is no such
/// card, or the card.
fn another_card(node: &Node) {
    let output = run(node, &["mknod", "1"]);
    assert_eq!(value(&output, "mknod"), 0, "whoever may make nodes may make this one");
    assert_eq!(value(&output, "open"), -i64::from(libc::EPERM), "{output}");
}
