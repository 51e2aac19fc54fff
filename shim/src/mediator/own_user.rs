//! A user of the mediator's and its broker's own.
//!
//! The kernel counts many things by user: descriptors on their way in sockets, inotify instances,
//! pending signals, pages of pipes (the list: docs/threat-model.md). Root in a container without a
//! user namespace is the host's root, and can use up whatever is counted for that. So nothing else
//! on the node has the *real* user id of a mediator and its broker, by which nearly all is counted.
//! The effective one stays 0: by that the driver and file systems judge.
//!
//! No request can name such an id (Kubernetes and Docker allow 31 bits). A container that may set
//! its own (CAP_SETUID) would have to guess it.

use std::{fs::File, io, io::Read};

use nix::unistd::{Uid, setresuid};

const ROOT: Uid = Uid::from_raw(0);
/// The lowest id: Kubernetes and Docker have ids of 31 bits.
const LOWEST: u32 = 1 << 31;
/// The highest are not given: -1 is no id, and -2 somebody's "nobody".
const IDS: u32 = (1 << 31) - (1 << 16);

/// Makes a user that nobody else is the real and effective one of this process, which must have one
/// thread. It is root again with [`OwnUser::act_as_root`].
///
/// Meanwhile it makes what is counted by the effective user id.
pub(super) fn take() -> io::Result<OwnUser> {
    let mut random = [0; 4];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let uid = Uid::from_raw(LOWEST + u32::from_le_bytes(random) % IDS);
    setresuid(uid, uid, ROOT)?;
    Ok(OwnUser(uid))
}

/// The user of this process.
#[derive(Debug)]
pub(super) struct OwnUser(Uid);

impl OwnUser {
    /// Makes root the effective user. The saved one is the own, too: who is root and may not signal
    /// others (CAP_KILL) may not signal this process.
    pub(super) fn act_as_root(self) -> io::Result<()> {
        Ok(setresuid(self.0, ROOT, self.0)?)
    }
}
