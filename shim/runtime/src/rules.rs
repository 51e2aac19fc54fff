//! Differences of libcontainer 0.7 from runc, each of which is refused, repaired, or warned of.
//!
//! Works on the JSON, before oci-spec's types see it, because those have no room for "absent"
//! everywhere. Nothing here changes the bundle's `config.json`.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{absence::drop_absent, ids, namespaces, refused::Refused, stdio::WindowSize};
use crate::capabilities::CAPABILITIES;

/// Abilities of the host, as far as the rules depend on them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostFacts {
    pub(crate) selinux: bool,
    pub(crate) apparmor: bool,
    pub(crate) cgroup_v2: bool,
    /// The highest capability that the kernel knows.
    pub(crate) last_capability: usize,
}

impl HostFacts {
    /// Reads them.
    pub(crate) fn read() -> Self {
        let first = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        // What cannot be looked at is there: more is refused then, and no device left open.
        let is_there = |path: &str| Path::new(path).try_exists().unwrap_or(true);
        Self {
            selinux: is_there("/sys/fs/selinux/enforce"),
            apparmor: first("/sys/module/apparmor/parameters/enabled").starts_with('Y'),
            cgroup_v2: is_there("/sys/fs/cgroup/cgroup.controllers"),
            last_capability: first("/proc/sys/kernel/cap_last_cap").trim().parse().unwrap_or(CAPABILITIES.len()),
        }
    }
}

/// Findings of the rules in a process besides its own fields.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessNotes {
    /// `consoleSize`, which libcontainer does not set.
    pub(crate) console_size: Option<WindowSize>,
    /// The environment had no HOME, so that one is to be found in the container.
    pub(crate) find_home: bool,
    /// Parts of the request that were left out; for the shim's log.
    pub(crate) warnings: Vec<String>,
}

/// The sets of `process.capabilities`.
const SETS: [&str; 5] = ["bounding", "effective", "inheritable", "permitted", "ambient"];

/// Checks and repairs a `process` object in place.
pub(crate) fn process(process: &mut Value, host: HostFacts) -> Result<ProcessNotes, Refused> {
    drop_absent(process);
    ids::check("process", process)?;
    let process = process.as_object_mut().ok_or_else(|| Refused("process must be an object".into()))?;
    let mut notes = ProcessNotes::default();
    check_strings(process)?;
    // Absent it is root, to runc.
    process.entry("user").or_insert_with(|| json!({}));
    // Written out, `false` makes libcontainer load the seccomp profile after it has dropped what
    // that needs.
    if process.get("noNewPrivileges") == Some(&Value::Bool(false)) {
        process.remove("noNewPrivileges");
    }
    if let Some(priority) = process.get("ioPriority").and_then(|io| io.get("priority")).and_then(Value::as_i64)
        && !(0..=7).contains(&priority)
    {
        return Err(Refused(format!("process.ioPriority.priority is {priority}; it must be 0 to 7")));
    }
    label("process.selinuxLabel", "selinuxLabel", process, host)?;
    apparmor(process, host)?;
    capabilities(process, host, &mut notes);
    if let Some(size) = process.get("consoleSize") {
        let side = |name: &str| size.get(name).and_then(Value::as_u64).and_then(|n| u16::try_from(n).ok());
        if let (Some(rows), Some(columns)) = (side("height"), side("width"))
            && (rows, columns) != (0, 0)
        {
            notes.console_size = Some(WindowSize { rows, columns });
        }
    }
    notes.find_home = home(process);
    Ok(notes)
}

/// Checks and repairs the rest of a spec in place; `process` has its own call. Answers what was
/// left out of it, for the shim's log.
pub(crate) fn spec(spec: &mut Value, host: HostFacts) -> Result<Vec<String>, Refused> {
    drop_absent(spec);
    ids::check("", spec)?;
    let version = spec.get("ociVersion").and_then(Value::as_str).unwrap_or_default();
    if !version.starts_with("1.") {
        return Err(Refused(format!("ociVersion is {version:?}; only 1.x is supported")));
    }
    hooks(spec)?;
    uts_names(spec)?;
    let linux = spec.get_mut("linux").and_then(Value::as_object_mut);
    let linux = linux.ok_or_else(|| Refused("the spec has no linux section; this is a Linux runtime".into()))?;
    // To libcontainer, none are devices as well, for which there must be a namespace.
    linux.retain(|name, value| name != "netDevices" || value.as_object().is_none_or(|devices| !devices.is_empty()));
    namespaces::check(linux)?;
    rootfs_propagation(linux)?;
    seccomp(linux);
    seccomp_arguments(linux)?;
    label("linux.mountLabel", "mountLabel", linux, host)?;
    let warnings = personality_flags(linux).into_iter().collect();
    let unified = linux.get("resources").and_then(|r| r.get("unified")).and_then(Value::as_object);
    if !host.cgroup_v2 && unified.is_some_and(|unified| !unified.is_empty()) {
        return Err(Refused("linux.resources.unified needs cgroup v2; this host has v1".into()));
    }
    deny_devices_first(linux)?;
    Ok(warnings)
}

/// Removes the personality's flags, as runc does, and returns a warning: only the domain counts.
fn personality_flags(linux: &mut Map<String, Value>) -> Option<String> {
    let flags = linux.get_mut("personality")?.as_object_mut()?.remove("flags")?;
    let is_asked = flags.as_array().is_some_and(|flags| !flags.is_empty());
    is_asked.then(|| format!("linux.personality.flags is not supported and left out: {flags}"))
}

/// libcontainer knows the four words of the OCI spec only, and means all mounts by them; CRI writes
/// `rshared` and `rslave`.
fn rootfs_propagation(linux: &mut Map<String, Value>) -> Result<(), Refused> {
    const NAME: &str = "rootfsPropagation";
    let known = match linux.remove(NAME) {
        None => return Ok(()),
        Some(given) => match given.as_str() {
            Some("shared" | "rshared") => "shared",
            Some("slave" | "rslave") => "slave",
            Some("private" | "rprivate") => "private",
            Some("unbindable" | "runbindable") => "unbindable",
            _ => {
                return Err(Refused(format!(
                    "linux.{NAME} is {given}; it must be shared, slave, private or unbindable, or one of these with an r before"
                )));
            }
        },
    };
    linux.insert(NAME.to_owned(), json!(known));
    Ok(())
}

/// Adds the flag that leaves speculation alone to a profile without flags, as runc since 1.2 (pull
/// request 3588) and crun. The mitigations that kernels before 5.16 else turn on halve what
/// interpreters do. Who wants them writes an empty list. A profile that says nothing at all is
/// none, as in runc.
fn seccomp(linux: &mut Map<String, Value>) {
    let Some(profile) = linux.get_mut("seccomp").and_then(Value::as_object_mut) else { return };
    if !profile.contains_key("defaultAction")
        && profile.get("syscalls").and_then(Value::as_array).is_none_or(Vec::is_empty)
    {
        linux.remove("seccomp");
        return;
    }
    profile.entry("flags").or_insert_with(|| json!(["SECCOMP_FILTER_FLAG_SPEC_ALLOW"]));
}

/// Refuses a condition on an argument that no system call has: libseccomp does not say which.
fn seccomp_arguments(linux: &Map<String, Value>) -> Result<(), Refused> {
    const LAST: u64 = 5;
    let list = |value: &Value, name: &str| value.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    for call in linux.get("seccomp").map(|profile| list(profile, "syscalls")).unwrap_or_default() {
        let indices = list(&call, "args").into_iter().filter_map(|argument| argument.get("index")?.as_u64());
        if let Some(index) = indices.into_iter().find(|index| *index > LAST) {
            let names = call.get("names").cloned().unwrap_or_default();
            return Err(Refused(format!(
                "linux.seccomp: an argument of {names} has index {index}; {LAST} is the last"
            )));
        }
    }
    Ok(())
}

/// Puts a rule that denies every device before the others, as runc does and the spec's own rules
/// assume. libcgroups leaves a v1 cgroup with all that its parent may, and sets nothing at all for
/// a spec without resources.
fn deny_devices_first(linux: &mut Map<String, Value>) -> Result<(), Refused> {
    let not = |what: &str| Refused(format!("linux.{what} is not what the OCI spec describes"));
    let resources = linux.entry("resources").or_insert_with(|| json!({})).as_object_mut();
    let resources = resources.ok_or_else(|| not("resources"))?;
    let devices = resources.entry("devices").or_insert_with(|| json!([])).as_array_mut();
    let devices = devices.ok_or_else(|| not("resources.devices"))?;
    // Nothing to a kernel with v1, and everything to a reader of rules for v2.
    if let Some(at) = devices.iter().position(|rule| rule.get("access").is_none()) {
        return Err(Refused(format!(
            "linux.resources.devices[{at}].access is empty; it must be some of the letters rwm"
        )));
    }
    devices.insert(0, json!({"allow": false, "access": "rwm"}));
    Ok(())
}

fn check_strings(process: &Map<String, Value>) -> Result<(), Refused> {
    let list = |name: &str| process.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if list("args").is_empty() {
        return Err(Refused("process.args is empty; it must name a program".into()));
    }
    for entry in list("args").iter().chain(list("env")).filter_map(Value::as_str) {
        if entry.contains('\0') {
            return Err(Refused(format!("process.args and process.env must not contain NUL bytes: {entry:?}")));
        }
    }
    for entry in list("env").iter().filter_map(Value::as_str) {
        if entry.find('=').is_none_or(|at| at == 0) {
            return Err(Refused(format!("invalid environment variable {entry:?} in process.env; write NAME=value")));
        }
    }
    let cwd = process.get("cwd").and_then(Value::as_str).unwrap_or_default();
    if !cwd.starts_with('/') {
        return Err(Refused(format!("process.cwd is {cwd:?}; it must be an absolute path")));
    }
    Ok(())
}

/// Removes an SELinux label, or refuses it: it is ignored where SELinux is off, as runc does; where
/// it is on, a container without it would be less confined.
fn label(full: &str, name: &str, object: &mut Map<String, Value>, host: HostFacts) -> Result<(), Refused> {
    match object.remove(name) {
        Some(Value::String(label)) if host.selinux => Err(Refused(format!(
            "{full} is {label:?}, and this runtime cannot set SELinux labels; run the container without one, \
             or use another runtime for it"
        ))),
        _ => Ok(()),
    }
}

fn apparmor(process: &mut Map<String, Value>, host: HostFacts) -> Result<(), Refused> {
    match process.get("apparmorProfile").and_then(Value::as_str) {
        Some(profile) if !host.apparmor => {
            Err(Refused(format!("process.apparmorProfile is {profile:?}, and AppArmor is off on this host")))
        }
        _ => Ok(()),
    }
}

/// Fills in empty sets for absent ones, and leaves out, with a warning, names that the kernel or
/// oci-spec does not know, as runc does.
fn capabilities(process: &mut Map<String, Value>, host: HostFacts, notes: &mut ProcessNotes) {
    let given = process.remove("capabilities").unwrap_or_default();
    let mut unknown: Vec<String> = Vec::new();
    let mut sets = Map::new();
    for set in SETS {
        let names = given.get(set).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let (known, strange): (Vec<&Value>, Vec<&Value>) = names.iter().partition(|name| {
            let position = name.as_str().and_then(|name| CAPABILITIES.iter().position(|known| *known == name));
            position.is_some_and(|position| position <= host.last_capability)
        });
        unknown.extend(strange.iter().map(|name| name.to_string()));
        sets.insert(set.to_owned(), known.into_iter().cloned().collect());
    }
    if !unknown.is_empty() {
        unknown.sort();
        unknown.dedup();
        notes.warnings.push(format!("capabilities unknown to this host are left out: {}", unknown.join(", ")));
    }
    process.insert("capabilities".to_owned(), Value::Object(sets));
}

/// Makes sure that the environment has a HOME; true when it is only a placeholder.
fn home(process: &mut Map<String, Value>) -> bool {
    let env = process.entry("env").or_insert_with(|| json!([]));
    let Some(env) = env.as_array_mut() else { return false };
    let is_home = |entry: &&Value| entry.as_str().is_some_and(|entry| entry.starts_with("HOME="));
    match env.iter().rev().find(is_home) {
        Some(home) => home == "HOME=",
        None => {
            env.push(json!("HOME=/"));
            true
        }
    }
}

/// Refuses names that the kernel has no room for.
fn uts_names(spec: &Value) -> Result<(), Refused> {
    const LONGEST: usize = 64;
    for field in ["hostname", "domainname"] {
        let name = spec.get(field).and_then(Value::as_str).unwrap_or_default();
        if name.len() > LONGEST {
            return Err(Refused(format!("{field} is {name:?}, of {} bytes; {LONGEST} is the most", name.len())));
        }
    }
    Ok(())
}

fn hooks(spec: &Value) -> Result<(), Refused> {
    let Some(hooks) = spec.get("hooks").and_then(Value::as_object) else { return Ok(()) };
    for (kind, list) in hooks {
        for hook in list.as_array().map(Vec::as_slice).unwrap_or_default() {
            let path = hook.get("path").and_then(Value::as_str).unwrap_or_default();
            if !path.starts_with('/') {
                return Err(Refused(format!("hooks.{kind}: path is {path:?}; it must be absolute")));
            }
            if hook.get("timeout").is_some_and(|timeout| timeout.as_i64().is_none_or(|seconds| seconds <= 0)) {
                return Err(Refused(format!("hooks.{kind}: timeout must be a number of seconds above zero")));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostFacts = HostFacts { selinux: false, apparmor: false, cgroup_v2: false, last_capability: 40 };

    fn run(mut value: Value) -> Result<(Value, ProcessNotes), Refused> {
        process(&mut value, HOST).map(|notes| (value, notes))
    }

    #[test]
    fn a_plain_process_gets_what_libcontainer_would_otherwise_guess() {
        let (process, notes) =
            run(json!({"args": ["true"], "cwd": "/", "noNewPrivileges": false, "rlimits": null})).unwrap();
        assert_eq!(process["env"], json!(["HOME=/"]));
        assert!(notes.find_home);
        assert!(process.get("noNewPrivileges").is_none() && process.get("rlimits").is_none());
        for set in SETS {
            assert_eq!(process["capabilities"][set], json!([]), "{set}");
        }
    }

    #[test]
    fn unknown_capabilities_are_left_out_and_reported() {
        let (process, notes) = run(json!({
            "args": ["true"], "cwd": "/", "env": ["HOME=/x"],
            "capabilities": {"bounding": ["CAP_KILL", "CAP_NEW_AND_SHINY"]},
        }))
        .unwrap();
        assert_eq!(process["capabilities"]["bounding"], json!(["CAP_KILL"]));
        assert_eq!(notes.warnings, ["capabilities unknown to this host are left out: \"CAP_NEW_AND_SHINY\""]);
        assert!(!notes.find_home);
        let old = HostFacts { last_capability: 4, ..HOST };
        let mut value = json!({"args": ["x"], "cwd": "/", "capabilities": {"bounding": ["CAP_KILL"]}});
        super::process(&mut value, old).unwrap();
        assert_eq!(value["capabilities"]["bounding"], json!([]));
    }

    #[test]
    fn the_console_size_is_noted() {
        let size = |value: Value| run(json!({"args": ["x"], "cwd": "/", "consoleSize": value})).unwrap().1.console_size;
        assert_eq!(size(json!({"height": 40, "width": 120})), Some(WindowSize { rows: 40, columns: 120 }));
        assert_eq!(size(json!({"height": 0, "width": 0})), None);
        assert_eq!(size(json!({"height": 70000, "width": 1})), None);
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_the_value() {
        for (bad, wanted) in [
            (json!({"args": [], "cwd": "/"}), "process.args is empty"),
            (json!({"args": ["a\0b"], "cwd": "/"}), "NUL"),
            (json!({"args": ["a"], "cwd": "/", "env": ["A"]}), "\"A\""),
            (json!({"args": ["a"], "cwd": "/", "env": ["=A"]}), "\"=A\""),
            (json!({"args": ["a"], "cwd": "x"}), "\"x\""),
            (json!({"args": ["a"], "cwd": "/", "ioPriority": {"priority": 8}}), "priority is 8"),
            (json!({"args": ["a"], "cwd": "/", "apparmorProfile": "tight"}), "tight"),
            (json!({"args": ["a"], "cwd": "/", "user": {"gid": u32::MAX}}), "process.user.gid"),
            (json!(7), "object"),
        ] {
            let refused = run(bad.clone()).unwrap_err().to_string();
            assert!(refused.contains(wanted), "{bad}: {refused}");
        }
    }

    #[test]
    fn rootfs_propagation_is_written_as_libcontainer_reads_it() {
        for (given, wanted) in [
            (json!("rshared"), json!("shared")),
            (json!("shared"), json!("shared")),
            (json!("rslave"), json!("slave")),
            (json!("rprivate"), json!("private")),
            (json!("runbindable"), json!("unbindable")),
            (json!(""), Value::Null),
            (Value::Null, Value::Null),
        ] {
            let mut asked = json!({"ociVersion": "1.1.0", "linux": {"rootfsPropagation": given}});
            spec(&mut asked, HOST).unwrap();
            assert_eq!(asked["linux"]["rootfsPropagation"], wanted, "{given}");
        }
    }

    #[test]
    fn a_seccomp_profile_leaves_speculation_alone_unless_it_says_otherwise() {
        const SPEC_ALLOW: &str = "SECCOMP_FILTER_FLAG_SPEC_ALLOW";
        for (given, wanted) in [
            (json!({"defaultAction": "SCMP_ACT_ALLOW"}), json!([SPEC_ALLOW])),
            (json!({"defaultAction": "SCMP_ACT_ALLOW", "flags": null}), json!([SPEC_ALLOW])),
            (json!({"defaultAction": "SCMP_ACT_ALLOW", "flags": []}), json!([])),
            (
                json!({"defaultAction": "SCMP_ACT_ALLOW", "flags": ["SECCOMP_FILTER_FLAG_LOG"]}),
                json!(["SECCOMP_FILTER_FLAG_LOG"]),
            ),
        ] {
            let mut asked = json!({"ociVersion": "1.1.0", "linux": {"seccomp": given}});
            spec(&mut asked, HOST).unwrap();
            assert_eq!(asked["linux"]["seccomp"]["flags"], wanted, "{given}");
            let linux: oci_spec::runtime::Linux = serde_json::from_value(asked["linux"].take()).unwrap();
            assert_eq!(
                linux.seccomp().as_ref().unwrap().flags().as_ref().unwrap().len(),
                wanted.as_array().unwrap().len()
            );
        }
        let mut without = json!({"ociVersion": "1.1.0", "linux": {}});
        spec(&mut without, HOST).unwrap();
        assert!(without["linux"].get("seccomp").is_none());
    }

    #[test]
    fn personality_flags_are_left_out_and_reported() {
        for (flags, expected) in [
            (json!(["ADDR_NO_RANDOMIZE"]), Some(r#"left out: ["ADDR_NO_RANDOMIZE"]"#)),
            (json!([]), None),
            (Value::Null, None),
        ] {
            let mut asked =
                json!({"ociVersion": "1.1.0", "linux": {"personality": {"domain": "LINUX32", "flags": flags}}});
            let warnings = spec(&mut asked, HOST).unwrap();
            assert_eq!(asked["linux"]["personality"], json!({"domain": "LINUX32"}));
            assert_eq!(warnings.len(), expected.iter().count(), "{flags}");
            assert!(expected.is_none_or(|expected| warnings[0].ends_with(expected)), "{warnings:?}");
        }
    }

    #[test]
    fn a_spec_that_would_run_otherwise_than_asked_is_refused() {
        let base = || json!({"ociVersion": "1.1.0", "linux": {}});
        assert_eq!(spec(&mut base(), HOST), Ok(vec![]));
        let with = |pointer: &str, value: Value| {
            let mut spec = base();
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            spec.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(name.to_owned(), value);
            spec
        };
        for (mut bad, wanted) in [
            (with("/ociVersion", json!("2.0")), "2.0"),
            (with("/linux", json!(null)), "linux section"),
            (with("/linux/rootfsPropagation", json!("everywhere")), "everywhere"),
            (with("/linux/resources", json!({"unified": {"a": "b"}})), "unified"),
            (
                with("/linux/resources", json!({"devices": [{"allow": true, "access": ""}]})),
                "devices[0].access is empty",
            ),
            (with("/process", json!({"user": {"uid": u32::MAX}})), "process.user.uid"),
            (with("/hooks", json!({"poststop": [{"path": "x"}]})), "poststop: path is \"x\""),
            (with("/hostname", json!("x".repeat(65))), "65 bytes"),
            (with("/hooks", json!({"poststart": [{"path": "/x", "timeout": 0}]})), "timeout"),
        ] {
            let refused = spec(&mut bad, HOST).unwrap_err().to_string();
            assert!(refused.contains(wanted), "{bad}: {refused}");
        }
        let labelled = || with("/linux/mountLabel", json!("system_u:object_r:x"));
        assert!(spec(&mut labelled(), HostFacts { selinux: true, ..HOST }).is_err());
        let mut unlabelled = labelled();
        spec(&mut unlabelled, HOST).unwrap();
        assert!(unlabelled["linux"].get("mountLabel").is_none());
    }
}
