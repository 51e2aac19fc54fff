//! Leftovers of containers: found, shown, removed.

use std::{
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::mount::{MntFlags, umount2};
use sha2::{Digest, Sha256};

use crate::{node::Node, processes};

/// Limit of the last steps of a shim's end. Not a measurement: what is left after it is a leak. A
/// shim that containerd forgot in its own death ends after half a minute, if the machine is not
/// busy.
const GRACE: Duration = Duration::from_secs(180);

/// Panics with a list of everything that the node's containers left.
#[track_caller]
pub fn assert_none(node: &Node, ids: &[String]) {
    let deadline = Instant::now() + GRACE;
    loop {
        let left = find(node, ids);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left behind:\n  {}", left.join("\n  "));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One line for each thing that is left.
pub fn find(node: &Node, ids: &[String]) -> Vec<String> {
    let mut left = Vec::new();
    for process in processes::mentioning(node.directory()) {
        if process.name.starts_with("containerd-shim") || process.name.starts_with("egpu") {
            left.push(format!("process {} {} ({}): {}", process.pid, process.name, process.state, process.command));
        }
    }
    for process in processes::in_cgroup(&node.cgroup_parent()) {
        left.push(format!("process {} {} in a container's cgroup", process.pid, process.name));
    }
    left.extend(task_mounts(node).iter().map(|path| format!("mount {}", path.display())));
    left.extend(cgroups(node).iter().map(|path| format!("cgroup {}", path.display())));
    for id in ids {
        let socket = shim_socket(node, id);
        if socket.exists() {
            left.push(format!("socket of {id}: {}", socket.display()));
        }
    }
    for tree in ["state", "root"] {
        let bundles = node.directory().join(tree).join("io.containerd.runtime.v2.task").join(node.namespace());
        left.extend(entries(&bundles).iter().map(|path| format!("bundle {}", path.display())));
    }
    let state = node.directory().join("egpu");
    left.extend(
        entries(&state.join("ledger"))
            .iter()
            .filter(|path| is_record(path))
            .map(|path| format!("record {}: {}", path.display(), fs::read_to_string(path).unwrap_or_default())),
    );
    // What the shims wrote down about themselves and their containers, and the runtime's state.
    for directory in ["shims", "containers", "runtime", "inject", "released"] {
        left.extend(
            entries(&state.join(directory))
                .iter()
                .map(|path| format!("entry {}: {}", path.display(), fs::read_to_string(path).unwrap_or_default())),
        );
    }
    for id in ids {
        left.extend(named(&state, id).iter().map(|path| format!("file of {id}: {}", path.display())));
        let runc = Path::new("/run/containerd/runc").join(node.namespace()).join(id);
        if runc.exists() {
            left.push(format!("runc's state of {id}"));
        }
    }
    left
}

/// Records, not the ledger's lock.
fn is_record(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// Everything below `directory` whose name contains `id` as a whole word.
fn named(directory: &Path, id: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in entries(directory) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.split(|letter: char| !letter.is_alphanumeric() && letter != '-').any(|word| word == id) {
            found.push(path.clone());
        }
        if path.is_dir() && !path.is_symlink() {
            found.extend(named(&path, id));
        }
    }
    found
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The address that Go's shim library, and every shim after it, gives a container's socket.
pub fn shim_socket(node: &Node, id: &str) -> PathBuf {
    let path = node.socket().join(node.namespace()).join(id);
    let hex: String = Sha256::digest(path.as_os_str().as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    Path::new("/run/containerd/s").join(hex)
}

/// Mounts below the node's directory, deepest first.
fn mounts(node: &Node) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut mounts: Vec<PathBuf> = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from)
        .filter(|path| path.starts_with(node.directory()))
        .collect();
    mounts.sort();
    mounts.reverse();
    mounts
}

fn task_mounts(node: &Node) -> Vec<PathBuf> {
    let own = ["egpu", "state"].map(|name| node.directory().join(name));
    mounts(node).into_iter().filter(|path| !own.contains(path)).collect()
}

/// Directories of the node's containers in every hierarchy, the common parent excepted.
fn cgroups(node: &Node) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for parent in cgroup_parents(node) {
        found.extend(entries(&parent).into_iter().filter(|path| path.is_dir()));
    }
    found
}

/// The parents of the node's cgroups: of those that the harness names, and of those that `ctr`
/// names.
fn cgroup_parents(node: &Node) -> Vec<PathBuf> {
    let mut roots = vec![PathBuf::from("/sys/fs/cgroup")];
    roots.extend(entries(Path::new("/sys/fs/cgroup")).into_iter().filter(|path| path.is_dir()));
    let names = [node.cgroup_parent(), node.namespace().to_owned()];
    let own = names.iter().filter(|name| name.contains("egpu-it-"));
    own.flat_map(|name| roots.iter().map(move |root| root.join(name))).filter(|path| path.is_dir()).collect()
}

/// Prints the state of the node on standard error, to help explain a failure.
pub fn print_evidence(node: &Node) {
    eprintln!("=== evidence: {} on containerd {}", node.runtime(), node.release().version);
    for process in processes::mentioning(node.directory()) {
        eprintln!("process {} <- {} {} {}", process.pid, process.parent, process.state, process.command);
    }
    for process in processes::in_cgroup(&node.cgroup_parent()) {
        eprintln!("container process {} <- {} {} {}", process.pid, process.parent, process.state, process.command);
    }
    for path in mounts(node) {
        eprintln!("mount {}", path.display());
    }
    for path in entries(&node.directory().join("egpu/ledger")) {
        eprintln!("ledger {}: {}", path.display(), fs::read_to_string(&path).unwrap_or_default());
    }
    eprintln!("--- egpu's log\n{}", node.decision_log());
    let log = node.containerd_log();
    let lines: Vec<&str> = log.lines().filter(|line| !line.contains("loading plugin")).collect();
    let start = lines.len().saturating_sub(60);
    eprintln!("--- containerd's log, its end\n{}", lines.get(start..).unwrap_or_default().join("\n"));
}

/// Ends and removes everything that is the node's, whatever state it is in.
pub(crate) fn remove(node: &Node) {
    node.kill_daemon();
    // A process may be forking: look again until there is none.
    for _ in 0..100 {
        let mut left = processes::mentioning(node.directory());
        left.extend(processes::in_cgroup(&node.cgroup_parent()));
        left.retain(|process| process.state != 'Z');
        if left.is_empty() {
            break;
        }
        thaw(node);
        left.iter().for_each(processes::Process::kill);
        std::thread::sleep(Duration::from_millis(10));
    }
    for path in mounts(node) {
        let _ = umount2(&path, MntFlags::MNT_DETACH);
    }
    for parent in cgroup_parents(node) {
        remove_cgroup(&parent);
    }
    for id in node.ids() {
        let _ = fs::remove_file(shim_socket(node, &id));
        let _ = fs::remove_dir_all(Path::new("/run/containerd/runc").join(node.namespace()).join(&id));
    }
    if node.namespace().contains("egpu-it-") {
        let _ = fs::remove_dir(Path::new("/run/containerd/runc").join(node.namespace()));
    }
}

/// A frozen process does not die.
fn thaw(node: &Node) {
    for cgroup in cgroups(node) {
        let _ = fs::write(cgroup.join("freezer.state"), "THAWED");
        let _ = fs::write(cgroup.join("cgroup.freeze"), "0");
    }
}

fn remove_cgroup(directory: &Path) {
    for child in entries(directory).into_iter().filter(|path| path.is_dir()) {
        remove_cgroup(&child);
    }
    let _ = fs::remove_dir(directory);
}
