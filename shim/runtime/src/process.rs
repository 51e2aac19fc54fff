//! Attributes of the worker's own that the container's process inherits: common to create and exec.

use std::{ffi::CString, io};

use oci_spec::runtime::{LinuxNamespaceType, Process, Spec};

use super::{id_maps::IdMaps, namespaces, stdio::StreamOwner};

/// An attribute that could not be set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttributeError {
    /// The OOM killer's score.
    #[error("cannot set the OOM score adjustment to {value}")]
    OomScore {
        value: i32,
        #[source]
        source: io::Error,
    },
    /// The session keyring.
    #[error("cannot join the session keyring {name:?} (set NoNewKeyring in the runtime options to do without)")]
    Keyring {
        name: String,
        #[source]
        source: io::Error,
    },
    /// Anything else that the kernel refuses to root only when it is confined itself.
    #[error("cannot set {what}")]
    Other {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

/// `KEY_USR_SEARCH`: later processes of the same user may join the keyring.
const KEY_USR_SEARCH: u32 = 0x0008_0000;
/// `KEY_OTH_SEARCH`: so may those of another, as a container's root is in a user namespace.
const KEY_OTH_SEARCH: u32 = 0x0000_0008;

/// Sets the attributes that the container's process inherits, on the calling worker, which is
/// short-lived.
///
/// `oom_score_adj` comes from the container's own spec also for an exec.
pub(crate) fn inherit(
    id: &str,
    spec: &Spec,
    oom_score_adj: Option<i32>,
    new_keyring: bool,
) -> Result<(), AttributeError> {
    if let Some(value) = oom_score_adj {
        std::fs::write("/proc/self/oom_score_adj", value.to_string())
            .map_err(|source| AttributeError::OomScore { value, source })?;
    }
    if new_keyring {
        join_keyring(id, namespaces::of(spec, LinuxNamespaceType::User).is_some())?;
    }
    // Supplementary groups that the spec does not name are the shim's, and libcontainer keeps
    // those.
    nix::unistd::setgroups(&[])
        .map_err(|e| AttributeError::Other { what: "the supplementary groups", source: e.into() })?;
    // So that nobody in a namespace that init joins can look into it.
    nix::sys::prctl::set_dumpable(false)
        .map_err(|e| AttributeError::Other { what: "the dumpable flag", source: e.into() })
}

fn join_keyring(id: &str, others: bool) -> Result<(), AttributeError> {
    let name = format!("_ses.{id}");
    let failed = |source| AttributeError::Keyring { name: name.clone(), source };
    let text = CString::new(name.clone()).map_err(|e| failed(e.into()))?;
    match sys::join_session_keyring(&text) {
        // A kernel without keys has none to protect either.
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        Err(e) => Err(failed(e)),
        Ok(serial) => {
            sys::add_key_permissions(serial, if others { KEY_OTH_SEARCH } else { KEY_USR_SEARCH }).map_err(failed)
        }
    }
}

/// Returns the owner of the process's pipes and terminal, in the host's ids: its user, as under
/// runc, whoever the runtime options name. Their group stays.
pub(crate) fn stream_owner(maps: Option<&IdMaps>, process: &Process, wanted: Option<(u32, u32)>) -> StreamOwner {
    let uid = process.user().uid();
    // Nobody can become a user that is not mapped; init says so.
    let uid = maps.map_or(Some(uid), |maps| maps.host_user(uid)).unwrap_or(uid);
    StreamOwner { uid, gid: wanted.map(|(_, gid)| gid) }
}
