//! Renewal of egpu under running containers: two builds, of which the newer one writes newer
//! formats (the feature `next-format`), share a node, and the older one comes back.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use integration::{
    Container, Node, Setup,
    egpu::EgpuConfig,
    eventually,
    node::{PROGRAMS, shim_directory, target_directory},
    processes::Process,
};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    attacks::rm_client,
    case::{Case, Skip},
    compute::{SPIN, planned, until_shares},
    gpu::refused,
};

pub(crate) fn cases() -> Vec<Case> {
    let replaced = Case::egpu("renewal::a_shim_goes_on_without_its_program", a_shim_goes_on_without_its_program);
    vec![
        Case::egpu("renewal::two_versions_share_a_node", two_versions_share_a_node)
            .on(own_programs)
            .needing(the_next_version)
            .one_at_a_time(),
        replaced.on(own_programs),
        Case::egpu("renewal::fixtures", fixtures).on(patient).needing(a_folder_for_fixtures).once(),
    ]
    .into_iter()
    .map(|case| case.also_needing(rm_client).only_simulated("it counts on V100 of 32 GiB"))
    .collect()
}

fn own_programs() -> Setup {
    Setup { own_programs: true, ..Setup::default() }
}

/// Folder of the build with the next formats: `EGPU_TEST_NEXT_BIN`, else where `make next-build`
/// makes it.
fn next_programs() -> Option<PathBuf> {
    let named = std::env::var_os("EGPU_TEST_NEXT_BIN").map(PathBuf::from);
    let folder = named.or_else(|| Some(target_directory()?.join("next/debug")))?;
    folder.join(PROGRAMS[0]).exists().then_some(folder)
}

fn the_next_version() -> Skip {
    next_programs().map(drop).ok_or_else(|| "there is no build of the next version: make next-build".to_owned())
}

/// One build of egpu.
struct Build {
    programs: PathBuf,
    /// As `egpu ps` shows it.
    version: String,
}

impl Build {
    fn new(node: &Node, programs: PathBuf) -> Self {
        let said = node.egpu_command_of(&programs, &["--version"]).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        Self { programs, version: said.trim().strip_prefix("egpu ").expect("a version").to_owned() }
    }
}

fn two_versions_share_a_node(node: &Node) {
    let old = Build::new(node, shim_directory());
    let next = Build::new(node, next_programs().expect("it is there"));
    assert_ne!(old.version, next.version);
    renewal(node, &old, &next);
    renewal(node, &next, &old);
}

/// Containers of `before` run on while `after` is installed, and share card 0 with its containers.
fn renewal(node: &Node, before: &Build, after: &Build) {
    let (stays, orphan) = (share(node, "stays", "10GiB", "30%"), share(node, "orphan", "1GiB", "5%"));
    let plain = node.container("plain").start().unwrap();
    // Killed between its two renames, an installation leaves the older shim beside the newer
    // `egpu`.
    node.install(&after.programs, &PROGRAMS[1..]);
    share(node, "between", "1GiB", "10%").end();
    node.install(&after.programs, &PROGRAMS[..1]);
    node.stop_containerd(Signal::SIGTERM);
    node.start_containerd();

    let member = member_of(node, "stays");
    let comes = share(node, "comes", "20GiB", "20%");
    let text = refused(node.container("late").envs(&[("EGPU_DEVICES", "0"), ("EGPU_MEMORY", "1025MiB")]));
    assert!(text.contains("1GiB of 32GiB free"), "to the byte: {text}");
    node.container("exact").envs(&[("EGPU_DEVICES", "0"), ("EGPU_MEMORY", "1GiB")]).start().expect("the rest").end();
    until_shares("windows of both", &[(&stays.stdio, 30.0), (&comes.stdio, 20.0)]);
    planned(node, &[("stays", 30.0), ("orphan", 5.0), ("comes", 20.0)]);
    let versions = [("stays", before), ("orphan", before), ("member", before), ("comes", after)];
    looked_at_by_both(node, [before, after], &versions);

    let set = |build: &Build, id: &str, percent: &str| {
        node.egpu_json_of(&build.programs, &["set", id, "--compute", percent, "--wait"]);
    };
    set(before, "comes", "40%");
    set(after, "stays", "10%");
    for build in [before, after] {
        node.egpu_json_of(&build.programs, &["policy", "0", "fixed", "--period", "80ms", "--wait"]);
    }
    until_shares("as changed by the other's", &[(&stays.stdio, 10.0), (&comes.stdio, 40.0)]);
    planned(node, &[("stays", 10.0), ("orphan", 5.0), ("comes", 40.0)]);
    next_fields_are_kept(node);

    for container in [&stays, &plain, &member, &comes] {
        let (status, output) = container.exec("again", &["echo", "again"]).run().unwrap();
        assert_eq!((status, output.stdout().trim()), (0, "again"));
    }
    // The newer `delete` cleans up after the older shim.
    let record = node.egpu_json(&["inspect", "orphan"]);
    pid_of(&record["shim"]).kill();
    eventually("its grant is given back", || (!node.granted().contains(&"orphan".to_owned())).then_some(()));
    orphan.forget();
    // The older shim ends a container whose mediator is gone.
    pid_of(&node.egpu_json(&["inspect", "stays"])["mediator"]).kill();
    assert_ne!(stays.wait().unwrap(), 0, "killed, or its program's calls failed before that");
    for container in [stays, member, plain, comes] {
        container.end();
    }
    assert!(node.granted().is_empty());
}

/// Works on card 0 without end.
fn share<'node>(node: &'node Node, id: &str, memory: &str, compute: &str) -> Container<'node> {
    let wanted = [("EGPU_DEVICES", "0"), ("EGPU_MEMORY", memory), ("EGPU_COMPUTE", compute)];
    let builder = node.container(id).annotation(GROUP, id).envs(&wanted).args(SPIN);
    let container = builder.start().expect("a container with a share");
    container.stdio.value("working");
    container
}

/// Containers that say the same here have one shim, as those of a pod.
const GROUP: &str = "io.containerd.runc.v2.group";

/// Another container of a pod, on card 1.
fn member_of<'node>(node: &'node Node, group: &str) -> Container<'node> {
    let builder = node.container("member").annotation(GROUP, group);
    builder.envs(&[("EGPU_DEVICES", "1"), ("EGPU_MEMORY", "1GiB")]).start().expect("a second container in the same pod")
}

/// Both builds tell the same of the node, and who runs what.
#[track_caller]
fn looked_at_by_both(node: &Node, builds: [&Build; 2], expected: &[(&str, &Build)]) {
    for build in builds {
        let listing = node.egpu_json_of(&build.programs, &["ps"]);
        let version = |id: &str| {
            let mut containers = listing.as_array().expect("an array").iter();
            containers.find(|container| container["id"] == id).unwrap_or_else(|| panic!("{id}: {listing}"))["version"]
                .clone()
        };
        for (id, runs_it) in expected {
            assert_eq!(version(id), runs_it.version, "{id} as {} shows it", build.version);
        }
        let text = |arguments: &[&str]| {
            let output = node.egpu_command_of(&build.programs, arguments).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let refusal = node.egpu_command_of(&build.programs, &["uninstall", "--dry-run"]).output().unwrap();
        let named = String::from_utf8_lossy(&refusal.stderr);
        assert_eq!(refusal.status.code(), Some(5), "{refusal:?}");
        assert!(["stays", "comes", "plain"].iter().all(|id| named.contains(id)), "{named}");
        let (table, doctor) = (text(&["ps"]), text(&["doctor"]));
        assert!(table.lines().next().is_some_and(|titles| titles.contains("VERSION")), "{table}");
        assert!(builds.iter().all(|build| doctor.contains(&format!(" on {}", build.version))), "{doctor}");
    }
    let events = builds.map(|build| node.egpu_json_of(&build.programs, &["events"]));
    assert_eq!(events[0], events[1]);
    assert!(events[0].as_array().is_some_and(|all| all.iter().any(|event| event["kind"] == "next-format")));
}

/// Each build has rewritten what the other wrote, and lost nothing of it.
#[track_caller]
fn next_fields_are_kept(node: &Node) {
    let state = node.directory().join("egpu");
    let read = |path: &Path| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let records = fs::read_dir(state.join("ledger")).unwrap().map(|entry| read(&entry.unwrap().path()));
    let (of_next, of_this): (Vec<Value>, Vec<Value>) =
        records.partition(|record| record["egpu_version"].as_str().unwrap().contains(NEXT));
    let format = of_this[0]["format"].as_u64().unwrap();
    assert!(!of_next.is_empty());
    for record in of_next {
        assert_eq!(
            (&record["next_format"], &record["cards"][0]["next_format"]),
            (&true.into(), &true.into()),
            "{record}"
        );
        assert_eq!((&record["version"], &record["format"]), (&format.into(), &(format + 1).into()));
    }
    assert_eq!(read(&state.join("settings.json"))["next_format"], true);
}

/// In the version of the second build, as the Makefile makes it.
const NEXT: &str = "(next)";

fn pid_of(process: &Value) -> Process {
    let pid = process["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a pid");
    Process::read(pid).expect("it lives")
}

/// A shim whose program was replaced, or is gone, is the one that it was: for an exec, a mediator,
/// another container of its pod, and its own end.
fn a_shim_goes_on_without_its_program(node: &Node) {
    let mut stays = share(node, "stays", "10GiB", "30%");
    for program in PROGRAMS {
        fs::remove_file(node.programs().join(program)).unwrap();
    }
    let shim = node.shim().pid;
    assert_eq!(stays.read("echo again"), "again");
    // Its helper is made anew from the running program.
    node.helpers().iter().for_each(Process::kill);
    assert_eq!(eventually("an exec after that", || stays.exec("later", &["true"]).run().ok()).0, 0);
    node.install(&shim_directory(), &PROGRAMS);
    let member = member_of(node, "stays");
    assert_eq!(node.shim().pid, shim);
    assert_eq!(node.egpu_json(&["inspect", "member"])["shim"]["pid"], shim);
    pid_of(&node.egpu_json(&["inspect", "stays"])["mediator"]).kill();
    assert_ne!(stays.wait().unwrap(), 0, "killed, or its program's calls failed before that");
    stays.delete().unwrap();
    member.end();
    assert!(node.granted().is_empty());
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
