//! `make uninstall`: nothing is taken away while a container needs it.

use std::{
    fs,
    io::Write as _,
    os::unix::{fs::symlink, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use integration::{Node, node::shim_directory};

use crate::case::{Case, Skip};

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::egpu("uninstall::is_refused_while_containers_use_egpu", refused).needing(the_script).once()]
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/uninstall.sh")
}

/// A binary that was carried to another machine has left it behind.
fn the_script() -> Skip {
    if script().is_file() { Ok(()) } else { Err("the repository's scripts are not on this machine".to_owned()) }
}

const PROGRAMS: [&str; 2] = ["containerd-shim-egpu-v1", "egpu"];

fn uninstall(node: &Node, prefix: &Path) -> Output {
    let mut command = Command::new("bash");
    command.arg(script()).env("PREFIX", prefix).env_remove("DESTDIR");
    command.env("EGPU_CONFIG", node.directory().join("egpu.toml")).output().expect("run the script")
}

/// It says `why`, and has taken nothing away.
#[track_caller]
fn is_refused(node: &Node, prefix: &Path, why: &[&str]) {
    let output = uninstall(node, prefix);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && why.iter().all(|why| said.contains(why)), "{output:?}");
    assert!(PROGRAMS.iter().all(|program| prefix.join("bin").join(program).exists()));
}

fn refused(node: &Node) {
    let prefix = node.directory().join("prefix");
    fs::create_dir_all(prefix.join("bin")).unwrap();
    for program in PROGRAMS {
        symlink(shim_directory().join(program), prefix.join("bin").join(program)).unwrap();
    }
    let container = node.container("training").envs(&[("EGPU_DEVICES", "0"), ("EGPU_MEMORY", "1GiB")]).start().unwrap();
    is_refused(node, &prefix, &["containers use egpu", "training"]);
    container.end();
    // One without a GPU has no grant: its shim is known by its arguments.
    let mut shim = Command::new("sh")
        .arg0(prefix.join("bin").join(PROGRAMS[0]))
        .args(["-c", "read line", "-id", "web"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    is_refused(node, &prefix, &["containers run on egpu", "web"]);
    shim.stdin.take().unwrap().write_all(b"end\n").unwrap();
    shim.wait().unwrap();
    let output = uninstall(node, &prefix);
    assert!(output.status.success(), "{output:?}");
    assert!(PROGRAMS.iter().all(|program| fs::symlink_metadata(prefix.join("bin").join(program)).is_err()));
}
