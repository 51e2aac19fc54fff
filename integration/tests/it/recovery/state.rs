//! Foreign hands in the state directory, bad disks, a configuration that broke: nothing is granted
//! twice, and everything can be cleaned up.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
};

use integration::{Node, Setup, egpu::EgpuConfig, eventually, processes::Process};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::stat::Mode,
    unistd::mkfifo,
};

use super::kills::{again, ask, clear};
use crate::{
    case::{Case, Skip},
    events,
};

/// A group that nothing else has.
const GROUP: u32 = 64242;
/// A user without rights.
const NOBODY: u32 = 65534;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("state::a_delete_that_fails_at_any_file_is_gone_on_with", delete_fails_at_any_file),
        Case::egpu("state::a_container_whose_record_is_gone_is_ended", emptied),
        Case::egpu("state::a_container_whose_record_is_gone_is_killed_until_it_has_ended", unkillable)
            .needing(kill_files),
        Case::egpu("state::either_copy_of_a_note_suffices", damaged_notes),
        Case::egpu("state::a_damaged_record_hides_no_other", damaged_record),
        Case::egpu("state::what_a_broken_configuration_leaves_is_cleaned_up", broken_configuration),
        Case::egpu("state::a_log_that_takes_nothing_delays_nobody", log_takes_nothing),
        Case::egpu("state::nobody_but_root_reads_it", nobody_reads),
        Case::egpu("state::the_configured_group_reads_what_commands_show", group_reads)
            .on(|| Setup { egpu: EgpuConfig::with_keys(&format!("state_group = \"{GROUP}\"")), ..Setup::default() }),
    ]
}

fn state_dir(node: &Node) -> PathBuf {
    node.directory().join("egpu")
}

fn share<'node>(node: &'node Node, id: &str) -> integration::Container<'node> {
    node.container(id).env("EGPU_MEMORY", "20GiB").env("EGPU_DEVICES", "0").start().unwrap()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.path()).collect();
    found.sort();
    found
}

/// A mount on a file of the runtime's state stands for a disk that fails there.
fn delete_fails_at_any_file(node: &Node) {
    let runtime = |id: &str| {
        let containerds = entries(&state_dir(node).join("runtime"));
        containerds.iter().map(|path| path.join(node.namespace()).join(id)).find(|path| path.exists())
    };
    let mut files: Option<Vec<PathBuf>> = None;
    let mut at = 0;
    loop {
        let mut container = ask(node, "a").start().unwrap();
        let directory = runtime("a").unwrap();
        let names = files.get_or_insert_with(|| entries(&directory));
        let Some(file) = names.get(at).map(|path| directory.join(path.file_name().unwrap())) else {
            // An earlier build's removal was killed here.
            fs::remove_file(directory.join("egpu.json")).unwrap();
            container.kill(nix::sys::signal::Signal::SIGKILL).unwrap();
            container.wait().unwrap();
            container.delete().unwrap();
            break;
        };
        container.kill(nix::sys::signal::Signal::SIGKILL).unwrap();
        container.wait().unwrap();
        mount(Some(&file), &file, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        let failed = container.delete();
        umount2(&file, MntFlags::MNT_DETACH).unwrap();
        assert!(failed.is_err(), "{} could not be removed", file.display());
        container.delete().unwrap_or_else(|error| panic!("after {}: {error}", file.display()));
        at += 1;
    }
    assert!(at >= 4, "files of the state: {files:?}");
    again(node);
}

fn emptied(node: &Node) {
    let container = share(node, "a");
    for path in entries(&state_dir(node)) {
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
    let doctor = String::from_utf8(node.egpu(&["doctor"]).stdout).unwrap();
    assert!(doctor.contains("no record of the containers of the mediators"), "{doctor}");
    assert_eq!(container.wait().unwrap(), 137);
    let events = String::from_utf8(node.egpu(&["events"]).stdout).unwrap();
    assert!(events.contains("its record is gone from the ledger"), "{events}");
    container.end();
    again(node);
}

/// Finds a cgroup's `cgroup.kill`, by its path below the hierarchies.
fn kill_file(cgroup: &str) -> Option<PathBuf> {
    let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    roots.map(|root| PathBuf::from(format!("{root}{cgroup}/cgroup.kill"))).into_iter().find(|file| file.exists())
}

/// The root has none, on any kernel.
fn kill_files() -> Skip {
    let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
    let root = roots.into_iter().find(|root| root.join("cgroup.controllers").exists());
    let probe = root.ok_or("no cgroup v2")?.join(format!("egpu-it-probe-{}", std::process::id()));
    fs::create_dir(&probe).map_err(|error| error.to_string())?;
    let is_there = probe.join("cgroup.kill").exists();
    fs::remove_dir(&probe).map_err(|error| error.to_string())?;
    is_there.then_some(()).ok_or_else(|| "the kernel has no cgroup.kill".to_owned())
}

/// A file that takes nothing stands for a kernel that cannot kill the container for a while.
fn unkillable(node: &Node) {
    let container = share(node, "a");
    let file = kill_file(&node.cgroup_path("a")).unwrap();
    mount(Some("/dev/full"), &file, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    for record in entries(&state_dir(node).join("ledger")) {
        fs::remove_file(record).unwrap();
    }
    eventually("it is killed a second time", || {
        let killed = events::events(node, "a").into_iter().filter(|event| event["kind"] == "killed");
        (killed.count() > 1).then_some(())
    });
    umount2(&file, MntFlags::MNT_DETACH).unwrap();
    assert_eq!(container.wait().unwrap(), 137);
    container.end();
    again(node);
}

fn damaged_notes(node: &Node) {
    let registered = || entries(&state_dir(node).join("containers")).remove(0);
    for (id, note) in [("a", None), ("b", Some("egpu.json"))] {
        let container = ask(node, id).start().unwrap();
        let init = container.pid().cast_signed();
        let note = note.map_or_else(registered, |name| node.bundle(id).join(name));
        let text = fs::read(&note).unwrap();
        fs::write(&note, &text[..text.len() / 2]).unwrap();
        let doctor = String::from_utf8(node.egpu(&["doctor"]).stdout).unwrap();
        let is_named = doctor.contains(&note.display().to_string());
        assert_eq!(is_named, note.starts_with(state_dir(node)), "{doctor}");
        node.shim().kill();
        eventually("init is dead", || Process::read(init).is_none().then_some(()));
        container.forget();
        clear(node, id);
        again(node);
    }
}

fn damaged_record(node: &Node) {
    let share = |id: &str| node.container(id).env("EGPU_MEMORY", "4GiB").env("EGPU_DEVICES", "0").start().unwrap();
    let containers = [share("a"), share("b")];
    let record = entries(&state_dir(node).join("ledger")).remove(0);
    let whole = fs::read(&record).unwrap();
    fs::write(&record, "{").unwrap();
    for arguments in [&["ps"][..], &["cards"], &["inspect", "b"], &["top", "--count", "1"], &["metrics"]] {
        let output = node.egpu(arguments);
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "egpu {arguments:?}: {}\n{stdout}{stderr}", output.status);
        assert!(stderr.contains(&record.display().to_string()), "egpu {arguments:?}: {stderr}");
    }
    let shown = node.egpu_json(&["ps"]);
    assert_eq!(shown.as_array().map(Vec::len), Some(1), "{shown}");
    fs::write(&record, whole).unwrap();
    drop(containers);
}

fn broken_configuration(node: &Node) {
    let configuration = node.directory().join("egpu.toml");
    let good = fs::read(&configuration).unwrap();
    let container = ask(node, "a").start().unwrap();
    let init = container.pid().cast_signed();
    // Of the default state directory, which is not this node's.
    let default = || fs::metadata("/run/egpu/shims").and_then(|found| found.modified()).ok();
    let before = default();
    fs::write(&configuration, "garbage = [").unwrap();
    let refusal = crate::gpu::refused(ask(node, "b"));
    assert!(refusal.contains("egpu.toml"), "{refusal}");
    node.shim().kill();
    eventually("init is dead", || Process::read(init).is_none().then_some(()));
    container.forget();
    clear(node, "a");
    assert_eq!(default(), before, "nothing is put where nobody looks for it");
    fs::write(&configuration, good).unwrap();
    again(node);
}

fn nobody_reads(node: &Node) {
    let container = share(node, "a");
    check_modes(&state_dir(node), 0);
    assert!(!egpu_as(node, NOBODY, &["ps"]));
    container.end();
}

fn group_reads(node: &Node) {
    let container = share(node, "a");
    check_modes(&state_dir(node), GROUP);
    for command in [&["ps"][..], &["top", "-n", "1"], &["metrics"]] {
        assert!(egpu_as(node, GROUP, command), "{command:?}");
        assert!(!egpu_as(node, NOBODY, command), "{command:?} of another group");
    }
    container.end();
}

fn log_takes_nothing(node: &Node) {
    mkfifo(&node.directory().join("egpu.log"), Mode::S_IRWXU).unwrap();
    let container = share(node, "a");
    assert!(node.egpu(&["set", "a", "--namespace", node.namespace(), "--memory", "10GiB"]).status.success());
    container.end();
    again(node);
    fs::remove_file(node.directory().join("egpu.log")).unwrap();
    again(node);
    let released = node.decisions("a").into_iter().filter(|decision| decision.event == "release").count();
    assert_eq!(released, 3, "each end is logged once that can be");
}

/// Checks that no user without rights reads or writes anything of the state directory but what is
/// mounted into containers, and that `group` owns what is for it.
fn check_modes(state_dir: &Path, group: u32) {
    let mut modes = BTreeMap::new();
    list(state_dir, &mut modes);
    let is_mounted = |path: &Path| path.components().any(|part| part.as_os_str() == "proc-driver-nvidia");
    // They stand for /dev.
    let is_device = |path: &Path| path.starts_with(state_dir.join("simulated"));
    for (path, (mode, gid)) in modes.iter().filter(|(path, _)| !is_device(path)) {
        let (shown, others) = (path.display(), mode & 0o7);
        assert_eq!(mode & 0o022, 0, "{shown} is written by others: {mode:o}");
        assert!(others == 0 || (path.is_dir() && others == 1) || is_mounted(path), "{shown}: {mode:o}");
        let is_readable = mode & 0o040 != 0 && !is_mounted(path);
        assert!(!is_readable || *gid == group, "{shown} of group {gid}: {mode:o}");
    }
    for (path, wanted) in [("", 0o711), ("inject", 0o711), ("ledger", 0o750), ("ledger.lock", 0o600), ("events", 0o750)]
    {
        assert_eq!(modes[&state_dir.join(path)].0 & 0o777, wanted, "{path:?}");
    }
    let readable = |name: &str| modes.iter().any(|(path, (mode, _))| path.ends_with(name) && mode & 0o777 == 0o640);
    assert!(readable("usage") && readable("schedule"), "{modes:?}");
}

/// Modes that a user other than root comes to.
fn list(path: &Path, modes: &mut BTreeMap<PathBuf, (u32, u32)>) {
    let metadata = fs::symlink_metadata(path).unwrap();
    modes.insert(path.to_owned(), (metadata.permissions().mode() & 0o7777, metadata.gid()));
    if metadata.is_dir() && metadata.permissions().mode() & 0o011 != 0 {
        entries(path).iter().for_each(|path| list(path, modes));
    }
}

/// Runs `egpu` as a user without rights, in one group; whether it succeeds.
fn egpu_as(node: &Node, group: u32, arguments: &[&str]) -> bool {
    fs::set_permissions(node.directory(), fs::Permissions::from_mode(0o711)).unwrap();
    let output = node.egpu_command(arguments).uid(NOBODY).gid(group).output().unwrap();
    println!("{arguments:?} of group {group}: {}", String::from_utf8_lossy(&output.stderr));
    output.status.success()
}
