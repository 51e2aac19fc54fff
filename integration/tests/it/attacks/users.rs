//! Root of a user namespace of its own, with all capabilities there.

use integration::{
    Node,
    hostile::{PROGRAM, value},
};

use super::{Neighbour, attacker, escapes::assert_held};
use crate::{case::Case, gpu::user_namespaces::administrator, memory::until_free};

pub(super) fn cases() -> Vec<Case> {
    vec![Case::egpu("attacks::an_administrator_of_its_own_users", mounts).only_simulated("there is a card in /dev")]
}

/// Defence: the mediator asks the host's /proc, not the container's; and nothing that is root's on
/// the host can be written or made, whatever is mounted or taken away.
fn mounts(node: &Node) {
    let neighbour = Neighbour::new(node);
    let builder = attacker(node, &[]).user_namespace().args(&[PROGRAM, "users", "16"]).edit(administrator);
    let builder = builder.edit(|spec| {
        // The program is in the root file system.
        spec["mounts"].as_array_mut().unwrap().retain(|mount| mount["destination"] != PROGRAM);
    });
    let mut container = builder.start().unwrap();
    container.wait().unwrap();
    neighbour.is_well();
    container.delete().unwrap();
    let output = container.stdio.finish().stdout();
    for done in ["proc", "sys", "nested"] {
        assert_eq!(value(&output, done), 0, "{output}");
    }
    for refused in ["mknod", "registry", "freezer"] {
        assert!(value(&output, refused) < 0, "{output}");
    }
    assert_held(&output);
    neighbour.container.end();
    until_free(node);
}
