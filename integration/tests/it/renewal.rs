//! Renewal of egpu under running containers.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use integration::{Node, Setup, egpu::EgpuConfig, eventually};
use nix::sys::signal::Signal;

use crate::case::{Case, Skip};

pub(crate) fn cases() -> Vec<Case> {
    let on_v100 = "it counts on V100 of 32 GiB";
    vec![Case::egpu("renewal::fixtures", fixtures).on(patient).needing(a_folder_for_fixtures).once()]
        .into_iter()
        .map(|case| case.only_simulated(on_v100))
        .collect()
}

fn patient() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("admission_wait = \"100s\"\n"), ..Setup::default() }
}

fn fixtures_folder() -> Option<PathBuf> {
    std::env::var_os("EGPU_TEST_FIXTURES").map(PathBuf::from)
}

fn a_folder_for_fixtures() -> Skip {
    fixtures_folder().map(drop).ok_or_else(|| "EGPU_TEST_FIXTURES names no folder to write fixtures to".to_owned())
}

/// Keeps the files of a node as they stand while containers run, wait and have been changed.
fn fixtures(node: &Node) {
    let folder = fixtures_folder().expect("it was asked for");
    let share = [("EGPU_DEVICES", "0"), ("EGPU_MEMORY", "10GiB"), ("EGPU_COMPUTE", "30%")];
    let one = node.container("one").envs(&share).args(&["rm-client", "spin", "600", "--every", "100ms"]).start();
    let one = one.expect("a container with a share");
    one.stdio.value("working");
    let two = node.container("two").envs(&share).start().expect("a second");
    node.egpu_json(&["set", "two", "--memory", "12GiB", "--compute", "20%", "--priority", "low"]);
    node.egpu_json(&["policy", "0", "fixed", "--period", "50ms"]);
    two.kill(Signal::SIGTERM).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| node.container("three").envs(&[share[0], ("EGPU_MEMORY", "16GiB")]).start());
        eventually("it waits", || (node.waiting() == ["three"]).then_some(()));
        copy(&node.directory().join("egpu"), &folder.join("state"));
        copy(&node.bundle("one"), &folder.join("bundle"));
        two.end();
        waits.join().unwrap().expect("there is room").end();
    });
    one.end();
}

/// Files alone: a bundle has mounts and FIFOs in it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (kind, target) = (entry.file_type().unwrap(), to.join(entry.file_name()));
        if kind.is_dir() && entry.file_name() != "rootfs" {
            copy(&entry.path(), &target);
        } else if kind.is_file() {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
