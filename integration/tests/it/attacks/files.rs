//! Files of the driver in hands that they were not given to.

use std::path::Path;

use integration::{ContainerBuilder, Node, hostile::MIB};
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

/// Defence: a call counts for the container whose filter stopped it; clients of others are refused.
fn lent(node: &Node) {
    let directory = tempfile::tempdir().unwrap();
    let owner =
        sharing(granted(node, "owner", 1024).hostile(&["lend", "/shared/s"]), directory.path()).start().unwrap();
    owner.stdio.value("listening");
    let thief = sharing(attacker(node, &["borrow", "/shared/s"]), directory.path()).start().unwrap();
    assert_ne!(thief.stdio.value("as_them"), 0, "no memory in the owner's name");
    assert_ne!(thief.stdio.value("dup"), 0, "and none of the owner's objects");
    let got = thief.stdio.value("got").cast_unsigned();
    assert!(got <= QUOTA * MIB, "{got}");
    let usage = node.usage("owner");
    assert!(usage.used < 64 * MIB, "the owner pays for nothing: {usage:?}");
    assert!(node.card_used(0) <= (QUOTA + 64) * MIB);
    thief.end();
    owner.end();
    until_free(node);
}

/// Defence: the filter of containers without a request refuses every driver call, whatever file it is made on.
fn lent_to_nobody(node: &Node) {
    let directory = tempfile::tempdir().unwrap();
    let owner =
        sharing(granted(node, "owner", 1024).hostile(&["lend", "/shared/s"]), directory.path()).start().unwrap();
    owner.stdio.value("listening");
    let thief = sharing(node.container("thief").hostile(&["borrow", "/shared/s"]), directory.path()).start().unwrap();
    let refused = -i64::from(libc::ENOTTY);
    assert_eq!((thief.stdio.value("as_them"), thief.stdio.value("begin")), (refused, refused));
    // The nodes of simulated cards say so as well; the filter says it without any file, which otherwise is EBADF.
    assert_eq!(thief.stdio.value("nowhere"), refused);
    assert_eq!(thief.stdio.value("got"), 0);
    thief.end();
    owner.end();
    until_free(node);
}

/// Defence: the container's device rules.
fn another_card(node: &Node) {
    let output = run(node, &["mknod", "1"]);
    let opened = integration::hostile::value(&output, "open");
    assert!(
        [-i64::from(libc::EPERM), -i64::from(libc::EACCES), -i64::from(libc::ENOENT)].contains(&opened),
        "not even ENXIO, which would mean that only the driver is missing: {output}"
    );
}
