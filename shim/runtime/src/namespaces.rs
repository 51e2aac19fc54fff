//! A spec's namespaces: what libcontainer would take otherwise than runc, and those that are joined
//! before the user namespace.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
};

use nix::{
    errno::Errno,
    sched::{CloneFlags, setns, unshare},
};
use nix_of_libcontainer::unistd::Pid;
use oci_spec::runtime::{LinuxNamespace, LinuxNamespaceType, Spec};
use serde_json::{Map, Value};

use super::refused::Refused;

/// Refuses two of a kind, of which libcontainer takes the last, and takes out a user namespace that
/// is the host's own: whoever is in it cannot join it.
pub(crate) fn check(linux: &mut Map<String, Value>) -> Result<(), Refused> {
    let Some(namespaces) = linux.get_mut("namespaces").and_then(Value::as_array_mut) else { return Ok(()) };
    let mut kinds: Vec<&Value> = namespaces.iter().filter_map(|namespace| namespace.get("type")).collect();
    kinds.sort_unstable_by_key(|kind| kind.to_string());
    if let Some([kind, ..]) = kinds.windows(2).find(|pair| pair.first() == pair.last()) {
        return Err(Refused(format!("linux.namespaces has two of type {kind}; leave one")));
    }
    namespaces.retain(|namespace| {
        let path = namespace.get("path").and_then(Value::as_str).unwrap_or_default();
        namespace.get("type").and_then(Value::as_str) != Some("user") || path.is_empty() || !is_own(path)
    });
    Ok(())
}

/// Refuses a namespace to be joined that is not there, or of another kind: libcontainer's init says
/// neither which nor where.
pub(crate) fn require(spec: &Spec) -> Result<(), Refused> {
    let linux = spec.linux().as_ref();
    for namespace in linux.and_then(|linux| linux.namespaces().as_deref()).unwrap_or_default() {
        let (kind, Some(path)) = (namespace.typ(), namespace.path()) else { continue };
        let found = File::open(path).map(|file| sys::namespace_kind(file.as_fd()));
        let wrong = match found {
            Ok(found) if found == Some(flag(kind).bits()) => continue,
            Ok(_) => format!("it is no {kind} namespace"),
            Err(error) => error.to_string(),
        };
        return Err(Refused(format!(
            "cannot join the {kind} namespace {} (linux.namespaces): {wrong}",
            path.display()
        )));
    }
    Ok(())
}

/// Returns whether it is the user namespace of this process.
fn is_own(path: &str) -> bool {
    inode(path).is_ok_and(|found| inode("/proc/self/ns/user").is_ok_and(|own| own == found))
}

/// Returns whether `process` is in this process's namespace of the kind that `/proc/PID/ns` calls
/// `name`.
pub(super) fn is_shared_with(process: Pid, name: &str) -> io::Result<bool> {
    Ok(inode(&format!("/proc/self/ns/{name}"))? == inode(&format!("/proc/{process}/ns/{name}"))?)
}

fn inode(namespace: &str) -> io::Result<(u64, u64)> {
    fs::metadata(namespace).map(|file| (file.dev(), file.ino()))
}

/// The spec's namespace of this kind.
pub(super) fn of(spec: &Spec, kind: LinuxNamespaceType) -> Option<&LinuxNamespace> {
    all(spec).iter().find(|namespace| namespace.typ() == kind)
}

fn all(spec: &Spec) -> &[LinuxNamespace] {
    spec.linux().as_ref().and_then(|linux| linux.namespaces().as_deref()).unwrap_or_default()
}

/// Joins the namespaces of the spec's kinds that the process of this pidfd is in, all or none. That
/// of pids holds for the next child.
pub(super) fn join_all(spec: &Spec, process: BorrowedFd<'_>) -> io::Result<()> {
    let kinds: CloneFlags = all(spec).iter().map(|namespace| flag(namespace.typ())).collect();
    if kinds.is_empty() { Ok(()) } else { Ok(setns(process, kinds)?) }
}

fn flag(kind: LinuxNamespaceType) -> CloneFlags {
    match kind {
        LinuxNamespaceType::Mount => CloneFlags::CLONE_NEWNS,
        LinuxNamespaceType::Network => CloneFlags::CLONE_NEWNET,
        LinuxNamespaceType::Pid => CloneFlags::CLONE_NEWPID,
        LinuxNamespaceType::Ipc => CloneFlags::CLONE_NEWIPC,
        LinuxNamespaceType::Uts => CloneFlags::CLONE_NEWUTS,
        LinuxNamespaceType::User => CloneFlags::CLONE_NEWUSER,
        LinuxNamespaceType::Cgroup => CloneFlags::CLONE_NEWCGROUP,
        LinuxNamespaceType::Time => CloneFlags::from_bits_retain(libc::CLONE_NEWTIME),
    }
}

/// Joins, before a user namespace, the namespaces that are not its own, which its root may not
/// join; as runc, it lets those wait that only that root may. Leaves what is left to do. What
/// makes or joins mounts and cgroups stays with libcontainer.
pub(crate) fn join_outer(spec: &mut Spec) -> io::Result<()> {
    if of(spec, LinuxNamespaceType::User).is_none() {
        return Ok(());
    }
    let mut left = Vec::new();
    for namespace in all(spec) {
        if !join(namespace)? {
            left.push(namespace.clone());
        }
    }
    set(spec, left);
    Ok(())
}

fn set(spec: &mut Spec, namespaces: Vec<LinuxNamespace>) {
    if let Some(linux) = spec.linux_mut() {
        linux.set_namespaces(Some(namespaces));
    }
}

/// Leaves, before init appears in another container's pid namespace, the host's namespaces for
/// those of the spec, as runc. Leaves what is left to do: of the mounts and cgroups libcontainer
/// must know that they are the container's, and the host name is its to set.
pub(crate) fn leave_host(spec: &mut Spec) -> io::Result<()> {
    let mut left = Vec::new();
    for namespace in all(spec) {
        let mut own = namespace.clone();
        match (namespace.typ(), namespace.path()) {
            // Entered already, that of pids for the next process; or joined by libcontainer, last.
            (LinuxNamespaceType::User | LinuxNamespaceType::Time | LinuxNamespaceType::Pid, _)
            | (LinuxNamespaceType::Mount | LinuxNamespaceType::Cgroup, Some(_)) => {
                left.push(own);
                continue;
            }
            (_, Some(path)) => {
                setns(File::open(path)?, flag(namespace.typ()))?;
                continue;
            }
            (_, None) => unshare(flag(namespace.typ()))?,
        }
        match namespace.typ() {
            LinuxNamespaceType::Mount => left.push(own.set_path(Some("/proc/self/ns/mnt".into())).clone()),
            LinuxNamespaceType::Cgroup => left.push(own.set_path(Some("/proc/self/ns/cgroup".into())).clone()),
            // libcontainer makes another: only then does it name the host.
            LinuxNamespaceType::Uts => left.push(own),
            LinuxNamespaceType::Network
            | LinuxNamespaceType::Ipc
            | LinuxNamespaceType::User
            | LinuxNamespaceType::Time
            | LinuxNamespaceType::Pid => {}
        }
    }
    set(spec, left);
    Ok(())
}

/// False: it is not joined now.
fn join(namespace: &LinuxNamespace) -> io::Result<bool> {
    match namespace.typ() {
        LinuxNamespaceType::Network | LinuxNamespaceType::Ipc | LinuxNamespaceType::Uts | LinuxNamespaceType::Pid => {}
        LinuxNamespaceType::User
        | LinuxNamespaceType::Time
        | LinuxNamespaceType::Cgroup
        | LinuxNamespaceType::Mount => return Ok(false),
    }
    let Some(path) = namespace.path() else { return Ok(false) };
    match setns(File::open(path)?, flag(namespace.typ())) {
        Ok(()) => Ok(true),
        Err(Errno::EPERM) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_of_each_kind_and_no_user_namespace_that_is_the_hosts() {
        let checked = |namespaces: Value| {
            let mut linux = json!({ "namespaces": namespaces });
            check(linux.as_object_mut().unwrap()).map(|()| linux["namespaces"].clone())
        };
        let both = json!([{ "type": "pid" }, { "type": "user", "path": "" }]);
        assert_eq!(checked(both.clone()).unwrap(), both);
        let host =
            json!([{ "type": "user", "path": "/proc/self/ns/user" }, { "type": "pid", "path": "/proc/self/ns/pid" }]);
        assert_eq!(checked(host.clone()).unwrap(), json!([host[1]]));
        let gone = json!([{ "type": "user", "path": "/nonexistent" }]);
        assert_eq!(checked(gone.clone()).unwrap(), gone);
        let twice =
            checked(json!([{ "type": "user" }, { "type": "pid" }, { "type": "user", "path": "/x" }])).unwrap_err();
        assert_eq!(twice.to_string(), "linux.namespaces has two of type \"user\"; leave one");
    }
}
