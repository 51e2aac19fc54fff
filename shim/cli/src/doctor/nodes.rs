//! The driver's device nodes and the `/dev/char` links to them.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
};

use base::Roots;
use cards::{Inventory, kernel_module};

use super::Check;

const NODES: &str = "device nodes";
const UVM: &str = "unified memory";
const LINKS: &str = "/dev/char links";

/// Minor number of `/dev/nvidiactl`.
const CONTROL_MINOR: u32 = 255;

/// A node that ought to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    name: String,
    major: u32,
    minor: u32,
}

/// File in the node's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    NoDevice,
    Device(u32, u32),
}

pub(super) fn checks(roots: &Roots, inventory: Option<&Inventory>) -> Vec<Check> {
    // Without the module the numbers are not known, and its absence is reported already. Before
    // 550.40 the name was another.
    let named = |name| kernel_module::device_major(roots, name);
    let Some(major) = named("nvidia").or_else(|| named("nvidia-frontend")) else { return Vec::new() };
    let minors = inventory.into_iter().flat_map(|inventory| &inventory.cards).map(|card| card.minor);
    let mut nodes: Vec<Node> =
        minors.filter(|minor| *minor < 248).map(|minor| node(format!("nvidia{minor}"), major, minor)).collect();
    nodes.push(node("nvidiactl".to_owned(), major, CONTROL_MINOR));
    let uvm = named("nvidia-uvm");
    let uvm_nodes =
        uvm.map(|major| [node("nvidia-uvm".to_owned(), major, 0), node("nvidia-uvm-tools".to_owned(), major, 1)]);
    let look = |node: &Node| found(roots, &node.name);
    let mut checks = vec![check_nodes(NODES, &nodes, look, "nvidia-modprobe -c 0")];
    checks.push(match &uvm_nodes {
        Some(nodes) => check_nodes(UVM, nodes, look, "nvidia-modprobe -u -c 0"),
        None => Check::warning(
            UVM,
            "the nvidia-uvm module is not loaded, as often after a start of the machine; CUDA needs it",
            "`nvidia-modprobe -u -c 0`, or `modprobe nvidia-uvm` at boot (a file in /etc/modules-load.d)",
        ),
    });
    nodes.extend(uvm_nodes.into_iter().flatten());
    checks.push(links(roots, &nodes));
    checks
}

fn node(name: String, major: u32, minor: u32) -> Node {
    Node { name, major, minor }
}

fn found(roots: &Roots, name: &str) -> Found {
    match fs::metadata(roots.dev.join(name)) {
        Err(_) => Found::Nothing,
        Ok(file) if file.file_type().is_char_device() => {
            let (major, minor) = (nix::sys::stat::major(file.rdev()), nix::sys::stat::minor(file.rdev()));
            // The kernel's numbers have 12 and 20 bits.
            Found::Device(u32::try_from(major).unwrap_or(u32::MAX), u32::try_from(minor).unwrap_or(u32::MAX))
        }
        Ok(_) => Found::NoDevice,
    }
}

fn check_nodes(what: &str, nodes: &[Node], look: impl Fn(&Node) -> Found, make: &str) -> Check {
    let wrong: Vec<String> = nodes
        .iter()
        .filter_map(|node| match look(node) {
            Found::Device(major, minor) if (major, minor) == (node.major, node.minor) => None,
            Found::Device(major, minor) => {
                Some(format!("/dev/{} is {major}:{minor} and should be {}:{}", node.name, node.major, node.minor))
            }
            Found::NoDevice => Some(format!("/dev/{} is not a device", node.name)),
            Found::Nothing => Some(format!("/dev/{} is missing", node.name)),
        })
        .collect();
    if wrong.is_empty() {
        let names: Vec<String> = nodes.iter().map(|node| format!("/dev/{}", node.name)).collect();
        return Check::ok(what, names.join(", "));
    }
    Check::failure(what, wrong.join("; "), format!("remove what is wrong, then `{make}` makes the nodes"))
}

/// systemd allows a unit the devices that it finds under `/dev/char`; the driver makes no links
/// there.
fn links(roots: &Roots, nodes: &[Node]) -> Check {
    let missing: Vec<String> = nodes
        .iter()
        .map(|node| format!("{}:{}", node.major, node.minor))
        .filter(|numbers| fs::symlink_metadata(roots.dev.join("char").join(numbers)).is_err())
        .collect();
    if missing.is_empty() {
        return Check::ok(LINKS, "present for all of the driver's nodes");
    }
    Check::warning(
        LINKS,
        format!(
            "missing for {}; with systemd's cgroup driver before systemd 240, containers may lose their cards at \
                 `systemctl daemon-reload`",
            missing.join(", ")
        ),
        "`nvidia-ctk system create-dev-char-symlinks --create-all` and its udev rule",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn nodes_are_judged_by_kind_and_number() {
        let nodes = [node("nvidia0".into(), 195, 0), node("nvidiactl".into(), 195, 255)];
        let with = |first, second| {
            let look = move |node: &Node| if node.minor == 0 { first } else { second };
            check_nodes(NODES, &nodes, look, "make")
        };
        let good = Found::Device(195, 255);
        assert_eq!(with(Found::Device(195, 0), good), Check::ok(NODES, "/dev/nvidia0, /dev/nvidiactl"));
        for (first, says) in [
            (Found::Nothing, "/dev/nvidia0 is missing"),
            (Found::NoDevice, "/dev/nvidia0 is not a device"),
            (Found::Device(195, 1), "/dev/nvidia0 is 195:1 and should be 195:0"),
        ] {
            let check = with(first, good);
            assert_eq!((check.level, check.detail.as_str()), (Level::Failure, says));
        }
    }
}
