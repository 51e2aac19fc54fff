//! Nothing is taken away while a container uses egpu.

use std::{fs, process::Output};

use integration::{ContainerdRelease, Node};

use super::{CONFIG, SIMULATED, host::Host, programs};
use crate::case::Case;

pub(super) fn cases() -> Vec<Case> {
    vec![Case::egpu("install::uninstall_is_refused_while_containers_use_egpu", refused).needing(programs).once()]
}

/// `egpu uninstall` on a host with the node's state.
fn uninstall(host: &Host, node: &Node) -> Output {
    let config = node.directory().join("egpu.toml");
    let mut command = host.command(&integration::node::shim_directory().join("egpu"));
    command.args(["uninstall", "--host-root"]).arg(host.path("/")).env("EGPU_CONFIG", config);
    command.output().expect("run egpu")
}

/// It says `why`, and has taken nothing away.
#[track_caller]
fn is_refused(host: &Host, node: &Node, why: &[&str]) {
    let listing = host.listing();
    let output = uninstall(host, node);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(why.iter().all(|why| said.contains(why)), "{said}");
    assert_eq!(host.listing(), listing);
}

fn refused(node: &Node) {
    let release = ContainerdRelease::all().pop().unwrap();
    let host = Host::with(&release, &[(CONFIG, "version = 2\n")]);
    host.egpu_ok(&["install", "--config", SIMULATED]);
    host.mount(node.directory());
    let container = node.container("training").envs(&[("EGPU_DEVICES", "0"), ("EGPU_MEMORY", "1GiB")]).start().unwrap();
    is_refused(&host, node, &["containers use egpu", "training"]);
    container.end();
    let container = node.container("web").start().unwrap();
    is_refused(&host, node, &["containers use egpu", "web"]);
    container.end();
    let output = uninstall(&host, node);
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read_dir(host.path("local/bin")).unwrap().flatten().all(|entry| !entry.path().ends_with("egpu")));
}
