//! Ids of a container's user namespace, as the host knows them.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use nix::sched::{CloneFlags, setns};
use oci_spec::runtime::{LinuxIdMapping, LinuxNamespaceType, Spec};
use sys::Forked;

use super::namespaces;

/// Id maps that cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdMapsError {
    /// The namespace that is joined.
    #[error("cannot read the id maps of the user namespace {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The namespace that is joined has others than the spec says.
    #[error(
        "linux.uidMappings and linux.gidMappings are not those of the user namespace {}, which the spec joins; leave them \
         out",
        path.display()
    )]
    Mismatch { path: PathBuf },
}

/// A stretch of ids that the namespace and the host count differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Mapping {
    inside: u32,
    host: u32,
    length: u32,
}

/// The maps of a user namespace that is not the host's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IdMaps {
    users: Vec<Mapping>,
    groups: Vec<Mapping>,
}

impl IdMaps {
    /// Returns the maps of the namespace that the spec makes or joins; `None` where it does
    /// neither. containerd writes mappings beside the path of one that is joined: they must be the
    /// same, as under runc.
    pub(crate) fn of(spec: &Spec) -> Result<Option<Self>, IdMapsError> {
        let (Some(linux), Some(namespace)) = (spec.linux(), namespaces::of(spec, LinuxNamespaceType::User)) else {
            return Ok(None);
        };
        let written = Self { users: written(linux.uid_mappings()), groups: written(linux.gid_mappings()) };
        let Some(path) = namespace.path() else { return Ok(Some(written)) };
        let joined = Self::of_namespace(path).map_err(|source| IdMapsError::Read { path: path.clone(), source })?;
        let has_written = !written.users.is_empty() || !written.groups.is_empty();
        if has_written && written != joined {
            return Err(IdMapsError::Mismatch { path: path.clone() });
        }
        Ok(Some(joined))
    }

    /// The kernel shows them for a process only: here a child that joins it.
    fn of_namespace(path: &Path) -> io::Result<Self> {
        let namespace = File::open(path)?;
        let (mut entered, entering) = io::pipe()?;
        let (waiting, release) = io::pipe()?;
        let pid = match sys::fork()? {
            Forked::Parent { pid } => pid,
            Forked::Child => {
                drop(release);
                // Nobody in there may look into it. It says with its end that it has failed.
                let joined =
                    nix::sys::prctl::set_dumpable(false).and_then(|()| setns(&namespace, CloneFlags::CLONE_NEWUSER));
                if joined.is_ok() && io::Write::write_all(&mut &entering, b"+").is_ok() {
                    let _ = (&waiting).read(&mut [0]);
                }
                sys::exit_now(joined.map_or_else(|errno| errno as i32, |()| 0))
            }
        };
        drop((entering, waiting));
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}"));
        let read_maps = entered.read_exact(&mut [0]).and_then(|()| Ok((read("uid_map")?, read("gid_map")?)));
        drop(release);
        let status = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None)?;
        match (read_maps, status) {
            (Ok((users, groups)), _) => Ok(Self { users: parse(&users)?, groups: parse(&groups)? }),
            (Err(_), nix::sys::wait::WaitStatus::Exited(_, errno)) if errno > 0 => {
                Err(io::Error::from_raw_os_error(errno))
            }
            (Err(error), _) => Err(error),
        }
    }

    /// The host's number of a user of the namespace; `None`: there is none.
    pub(crate) fn host_user(&self, id: u32) -> Option<u32> {
        to_host(&self.users, id)
    }
}

fn to_host(mappings: &[Mapping], id: u32) -> Option<u32> {
    mappings.iter().find_map(|mapping| {
        let offset = id.checked_sub(mapping.inside)?;
        (offset < mapping.length).then(|| mapping.host.checked_add(offset)).flatten()
    })
}

fn written(mappings: &Option<Vec<LinuxIdMapping>>) -> Vec<Mapping> {
    let mapping = |mapping: &LinuxIdMapping| Mapping {
        inside: mapping.container_id(),
        host: mapping.host_id(),
        length: mapping.size(),
    };
    sorted(mappings.iter().flatten().map(mapping).collect())
}

/// `inside host length`, a line each.
fn parse(map: &str) -> io::Result<Vec<Mapping>> {
    let line = |line: &str| {
        let numbers: Vec<u32> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let [inside, host, length] = numbers[..] else { return None };
        Some(Mapping { inside, host, length })
    };
    let mappings = map.lines().map(line).collect::<Option<Vec<_>>>();
    mappings.map(sorted).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn sorted(mut mappings: Vec<Mapping>) -> Vec<Mapping> {
    mappings.sort_unstable();
    mappings
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(namespace: &Value, mappings: &Value) -> Spec {
        let linux = json!({ "namespaces": [namespace], "uidMappings": mappings, "gidMappings": mappings });
        serde_json::from_value(json!({ "ociVersion": "1.1.0", "linux": linux })).unwrap()
    }

    #[test]
    fn ids_of_a_new_namespace() {
        let mappings = json!([
            { "containerID": 1000, "hostID": 5, "size": 1 }, { "containerID": 0, "hostID": 100_000, "size": 1000 }
        ]);
        let maps = IdMaps::of(&spec(&json!({ "type": "user" }), &mappings)).unwrap().unwrap();
        for (id, host) in [(0, Some(100_000)), (999, Some(100_999)), (1000, Some(5)), (1001, None)] {
            assert_eq!(maps.host_user(id), host);
        }
        assert_eq!(IdMaps::of(&spec(&json!({ "type": "pid" }), &json!([]))).unwrap(), None);
    }

    #[test]
    fn maps_are_read_as_the_kernel_writes_them() {
        let map = parse("         0     100000      65536\n     65536          7          1\n").unwrap();
        assert_eq!(
            (to_host(&map, 65_535), to_host(&map, 65_536), to_host(&map, 65_537)),
            (Some(165_535), Some(7), None)
        );
        assert_eq!(parse("").unwrap(), []);
        assert!(parse("0 1").is_err() && parse("0 -1 1").is_err());
    }
}
