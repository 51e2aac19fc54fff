//! `egpu install` and `egpu uninstall`, on hosts of their own with real containerd.

mod distributions;
mod docker;
mod host;
mod in_use;
mod killed;
mod restart;

use integration::{ContainerdRelease, node::shim_directory};
use libtest_mimic::Trial;

use crate::case::{Case, Skip, trial_of};
use host::Host;

const CONFIG: &str = "/etc/containerd/config.toml";
const DROP_IN: &str = "/etc/containerd/conf.d/99-egpu.toml";
const SIMULATED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/node/simulated.toml");

pub(crate) fn cases() -> Vec<Case> {
    in_use::cases()
}

type Test = fn(&ContainerdRelease);

/// One for each containerd, 1.7 among them, which no other test runs on.
pub(crate) fn trials(releases: &[ContainerdRelease]) -> Vec<Trial> {
    let mut trials = Vec::new();
    for release in releases.iter().cloned().chain(ContainerdRelease::for_install()) {
        let tests: [(&str, Test); 9] = [
            ("install::our_lines_alone", our_lines_alone),
            ("install::changes_of_others_stay", changes_of_others_stay),
            ("install::containerd_goes_back", containerd_goes_back),
            ("install::edits_are_shown", edits_are_shown),
            ("install::what_makes_no_sense_is_refused", what_makes_no_sense_is_refused),
            ("install::distributions", distributions::all),
            ("install::docker", docker::runtime),
            ("install::restart", restart::restart),
            ("install::killed", killed::at_any_step),
        ];
        // Of 1.6 and 1.7, one is enough.
        let has_use = |name: &str| match name {
            "install::killed" => release.version != "1.7",
            "install::containerd_goes_back" => {
                release.major() == "1" && releases.iter().any(|newer| newer.major() == "2")
            }
            _ => true,
        };
        for (name, test) in tests.into_iter().filter(|(name, _)| has_use(name)) {
            let release = release.clone();
            trials.push(trial_of(&release.version.clone(), name, programs, move || test(&release)));
        }
    }
    trials
}

fn programs() -> Skip {
    let program = shim_directory().join("egpu");
    if program.exists() { Ok(()) } else { Err(format!("there is no {}", program.display())) }
}

/// The tables of an administrator: another default runtime, systemd's cgroups, other plugins.
fn administrators(cri: &str, version: u32) -> String {
    format!(
        r#"# Kept by hand.
version = {version}
oom_score = -999

[plugins.'{cri}'.containerd]
  default_runtime_name = "kata"
  [plugins.'{cri}'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins.'{cri}'.containerd.runtimes.kata]
    runtime_type = "io.containerd.kata.v2"   # the guests'
    [plugins.'{cri}'.containerd.runtimes.kata.options]
      SystemdCgroup = true
[plugins."io.containerd.gc.v1.scheduler"]
  startup_delay = "1s""#
    )
}

const V2: &str = "io.containerd.grpc.v1.cri";
const V3: &str = "io.containerd.cri.v1.runtime";

/// Files of containerd that an administrator may have.
fn configurations(release: &ContainerdRelease) -> Vec<Vec<(&'static str, String)>> {
    let debian = "version = 2\n\n[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    [plugins.\"io.containerd.grpc.v1.cri\".cni]\n      bin_dir = \"/usr/lib/cni\"\n".to_owned();
    let imported = |cri: &str, version: u32| {
        format!(
            "version = {version}\n[plugins.'{cri}'.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n\
             [plugins.'{cri}'.containerd.runtimes.other]\nruntime_type = 'io.containerd.other.v1'\n"
        )
    };
    let named = |cri, version| {
        let main = format!("imports = [\"/etc/containerd/one.toml\"]\n{}", administrators(cri, version));
        vec![(CONFIG, main), ("/etc/containerd/one.toml", imported(cri, version))]
    };
    let mut all = vec![
        vec![],
        vec![(CONFIG, debian)],
        vec![(CONFIG, administrators(V2, 2))],
        vec![(CONFIG, "version = 2\n".to_owned())],
        vec![(CONFIG, String::new())],
        vec![(CONFIG, "disabled_plugins = [\"cri\"]\n".to_owned())],
        named(V2, 2),
    ];
    if release.major() == "2" {
        let folder =
            format!("imports = [\n  \"/etc/containerd/more.d/*.toml\", # theirs\n]\n{}", administrators(V3, 3));
        all.push(vec![(CONFIG, administrators(V3, 3))]);
        all.push(vec![(CONFIG, folder), ("/etc/containerd/more.d/one.toml", imported(V3, 3))]);
        all.push(named(V3, 3));
    }
    all
}

fn host_of(release: &ContainerdRelease, files: &[(&'static str, String)]) -> Host {
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    Host::with(release, &files)
}

fn our_lines_alone(release: &ContainerdRelease) {
    for files in configurations(release) {
        let host = host_of(release, &files);
        let (before, listing) = (host.dump(), host.listing());
        host.egpu_ok(&["install", "--dry-run", "--config", SIMULATED]);
        assert_eq!(host.listing(), listing, "a dry run has changed something: {files:?}");
        let installed = host.egpu(&["install", "--config", SIMULATED]);
        assert!(installed.status.success(), "{files:?}: {installed:#?}");
        let with = host.dump();
        let is_off = files.iter().any(|(_, text)| text.contains("disabled_plugins"));
        let (added, removed) = difference(&before, &with);
        assert_eq!(removed, Vec::<String>::new(), "{files:?}");
        assert_eq!(added.is_empty(), is_off, "{files:?}");
        let kata = files.iter().any(|(_, text)| text.contains("kata"));
        if release.version != "1.6" && !is_off {
            let text = added.concat();
            assert!(text.contains("/usr/local/bin/containerd-shim-egpu-v1"), "{text}");
            // As the default runtime has it: in one.toml, on 1.x, that is no longer kata.
            assert!(!kata || text.contains("SystemdCgroup = true") || files.len() > 1, "{files:?}: {text}");
        }
        host.has_nothing_to_change(&["install"]);
        let removed = host.egpu_ok(&["uninstall"]);
        assert_eq!(host.dump(), before, "{files:?}: {removed}");
        assert_eq!(host.listing(), listing, "{files:?}: {removed}");
        host.egpu_ok(&["uninstall"]);
    }
}

/// Lines of the second text that the first has not, and the other way round: those between, which
/// both have, are in the same order.
fn difference(before: &str, after: &str) -> (Vec<String>, Vec<String>) {
    let (mut added, mut rest) = (Vec::new(), before.lines().peekable());
    for line in after.lines() {
        if rest.peek() == Some(&line) {
            rest.next();
        } else {
            added.push(format!("{line}\n"));
        }
    }
    (added, rest.map(str::to_owned).collect())
}

fn changes_of_others_stay(release: &ContainerdRelease) {
    let cri = if release.major() == "2" { V3 } else { V2 };
    let version = if release.major() == "2" { 3 } else { 2 };
    let host = Host::with(release, &[(CONFIG, &format!("version = {version}\n"))]);
    host.egpu_ok(&["install", "--config", SIMULATED]);
    // Another installer adds its runtime, and its folder of drop-ins is the same; egpu's
    // configuration is edited.
    let others = format!("[plugins.'{cri}'.containerd.runtimes.other]\nruntime_type = 'io.containerd.other.v1'\n");
    if version == 3 {
        host.write("/etc/containerd/conf.d/50-other.toml", &format!("version = 3\n{others}"));
    } else {
        host.write(CONFIG, &(host.read(CONFIG) + &others));
    }
    host.write("/etc/egpu/config.toml", &(host.read("/etc/egpu/config.toml") + "# mine\n"));
    // Without it, CRI would not start.
    let (default, main) = (format!("[plugins.'{cri}'.containerd]\ndefault_runtime_name = 'egpu'\n"), host.read(CONFIG));
    host.write(CONFIG, &(main.clone() + &default));
    let refused = host.egpu(&["uninstall"]);
    assert_eq!(refused.status.code(), Some(5), "{refused:#?}");
    host.write(CONFIG, &main);
    let said = host.egpu_ok(&["uninstall"]);
    assert!(said.contains("kept /etc/egpu/config.toml"), "{said}");
    let dump = host.dump();
    assert!(
        !dump.contains("egpu") && dump.contains("io.containerd.other.v1") && dump.contains("runtimes.runc"),
        "{dump}"
    );
}

/// containerd goes back from 2.x to 1.x, which would take the drop-in's table for all of CRI's.
fn containerd_goes_back(release: &ContainerdRelease) {
    let newer = ContainerdRelease::all().into_iter().find(|newer| newer.major() == "2").expect("a containerd 2.x");
    let files = [(CONFIG, administrators(V2, 2))];
    let host = host_of(&newer, &files);
    host.egpu_ok(&["install", "--config", SIMULATED]);
    let (main, drop_in) = (host.read(CONFIG), host.read(DROP_IN));
    let before = host_of(release, &files).dump();
    let host = host_of(release, &[(CONFIG, main), (DROP_IN, drop_in)]);
    host.egpu_ok(&["install", "--config", SIMULATED]);
    let (added, removed) = difference(&before, &host.dump());
    assert!(!added.is_empty() && removed.is_empty(), "{added:?}, {removed:?}");
    host.egpu_ok(&["uninstall"]);
    assert_eq!(host.dump(), before);
    assert!(!host.path(DROP_IN).exists());
}

fn edits_are_shown(release: &ContainerdRelease) {
    let host = Host::with(release, &[(CONFIG, "version = 2\n")]);
    host.egpu_ok(&["install", "--config", SIMULATED]);
    // Copies may hold passwords of registries.
    let backups = std::fs::metadata(host.path("/var/lib/egpu/backup")).unwrap().permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&backups) & 0o777, 0o700);
    let path = if release.major() == "2" { DROP_IN } else { CONFIG };
    let (installed, before) = (host.read(path), "container_annotations = [\"egpu.io/*\"]");
    let edited = installed.replace(before, "container_annotations = [\"*\"]");
    host.write(path, &edited);
    for command in ["install", "uninstall"] {
        let output = host.egpu(&[command]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(5), "{said}");
        assert!(said.contains("--force") && said.contains("+  container_annotations = [\"*\"]"), "{said}");
        assert_eq!(host.read(path), edited);
    }
    host.egpu_ok(&["install", "--force"]);
    assert_eq!(host.read(path), installed);
    // A program that writes the file anew has no use for comments.
    let unmarked: String =
        edited.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    host.write(path, &unmarked);
    let said = host.egpu_ok(&["install"]);
    assert!(said.contains("made by hand"), "{said}");
    let refused = host.egpu(&["uninstall"]);
    assert_eq!(refused.status.code(), Some(5), "{refused:#?}");
    host.egpu_ok(&["uninstall", "--force"]);
    assert!(!host.dump().contains("egpu"));
    assert_eq!(
        host.read(CONFIG).contains("runtimes.runc"),
        release.major() == "1",
        "a built-in one without marks stays"
    );
    assert!(!host.path(DROP_IN).exists() && !host.read(CONFIG).contains("imports"));
    // Nobody but the administrator has made this one.
    host.write(path, &unmarked);
    let said = host.egpu_ok(&["uninstall"]);
    assert!(said.contains("made by hand") || release.major() == "2", "{said}");
    assert_eq!(host.read(path), unmarked);
    // A file that was named at the install alone.
    host.write("/opt/c.toml", "version = 2\n");
    host.egpu_ok(&["install", "--config", SIMULATED, "--containerd-config", "/opt/c.toml"]);
    assert_ne!(host.read("/opt/c.toml"), "version = 2\n");
    host.egpu_ok(&["uninstall", "--force"]);
    assert_eq!(host.read("/opt/c.toml"), "version = 2\n");
    // What others have broken is in nobody's way.
    host.write(CONFIG, "= 1");
    host.egpu_ok(&["uninstall"]);
}

fn what_makes_no_sense_is_refused(release: &ContainerdRelease) {
    let inline = format!(
        "version = 2\n[plugins.'{V2}'.containerd]\nruntimes = {{ runc = {{ runtime_type = 'io.containerd.runc.v2' }} }}\n"
    );
    let foreign =
        format!("version = 2\n[plugins.'{V2}'.containerd.runtimes.egpu]\nruntime_type = 'io.containerd.kata.v2'\n");
    let missing = "version = 2\nimports = ['/etc/containerd/missing.toml']\n".to_owned();
    let mut wrong = vec![("= 1".to_owned(), "is not TOML"), (foreign, "that is not egpu"), (missing, "missing.toml")];
    if release.major() == "1" {
        wrong.push((inline, "within braces"));
        wrong.push(("version = 3\n".to_owned(), ""));
    }
    for (text, why) in wrong {
        let host = Host::with(release, &[(CONFIG, &text)]);
        let listing = host.listing();
        let output = host.egpu(&["install"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{text}: {said}");
        assert_eq!(host.listing(), listing, "{text}");
    }
    other_settings_change(release);
}

/// A containerd that reads something else otherwise, as soon as the runtime is there.
fn other_settings_change(release: &ContainerdRelease) {
    const CONTAINERD: &str = r#"#!/bin/sh
/usr/local/bin/containerd "$@" >/tmp/out || exit
if grep -q runtimes.egpu /tmp/out; then sed 's/^oom_score = 0/oom_score = 1/' /tmp/out; else cat /tmp/out; fi
"#;
    let rendered =
        format!("version = 2\n[plugins.'{V2}'.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n");
    let host = Host::with(release, &[("/var/lib/rancher/k3s/agent/etc/containerd/config.toml", &rendered)]);
    let program = "/var/lib/rancher/k3s/data/current/bin/containerd";
    host.write(program, CONTAINERD);
    std::fs::set_permissions(host.path(program), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let listing = host.listing();
    let output = host.egpu(&["install", "--only", "k3s"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("+oom_score = 1"), "{said}");
    assert_eq!(host.listing(), listing);
}
