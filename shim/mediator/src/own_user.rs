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

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::{fd::AsFd, unix::process::CommandExt},
        process::{Command, Stdio},
    };

    use nix::{
        errno::Errno,
        sys::inotify::{InitFlags, Inotify},
        unistd::geteuid,
    };
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use sys::frame::{self, FrameError};
    use testing::skipped;

    use super::*;

    const NAME: &str = "own_user::tests::what_is_counted_by_user_is_nobody_elses";
    const IN_CHILD: &str = "EGPU_TEST_TAKES_A_USER";
    const ROOT_OF_NAMESPACE: u32 = 1_000_000;

    /// Root of a user namespace of its own uses up what it may have, so that nobody else on the
    /// machine lacks it.
    #[test]
    fn what_is_counted_by_user_is_nobody_elses() {
        if std::env::var_os(IN_CHILD).is_some() {
            return has_its_own();
        }
        if !geteuid().is_root() {
            return skipped("needs root: who has no rights cannot have another user");
        }
        // The namespace's root can open what everybody can, and reaches no path that is root's.
        let line = "until grep -q . /proc/self/uid_map; do sleep 0.01; done; exec /proc/self/fd/0 \"$@\"";
        let mut child = Command::new("unshare");
        child.args(["--user", "sh", "-c", line, "sh", "--exact", NAME, "--nocapture", "--test-threads", "1"]);
        child.env(IN_CHILD, "1").uid(ROOT_OF_NAMESPACE).current_dir("/").stdin(File::open("/proc/self/exe").unwrap());
        let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
        let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).unwrap();
        let (own, pid) = (namespace("self"), child.id().to_string());
        while namespace(&pid) == own {
            if child.try_wait().unwrap().is_some() {
                return skipped("this machine gives no user namespaces");
            }
            std::thread::yield_now();
        }
        fs::write(format!("/proc/{pid}/uid_map"), format!("0 {ROOT_OF_NAMESPACE} 1\n{LOWEST} {LOWEST} {IDS}\n"))
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.contains("1 passed"), "{}: {printed}", output.status);
    }

    fn has_its_own() {
        fs::write("/proc/sys/user/max_inotify_instances", "1").unwrap();
        let instance = || Inotify::init(InitFlags::IN_CLOEXEC);
        let _of_root = instance().unwrap();
        assert_eq!(instance().unwrap_err(), Errno::EMFILE);
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
        let file = File::open("/dev/null").unwrap().into();
        let (sender, _receiver) = frame::pair().unwrap();
        let send = || frame::send(sender.as_fd(), &file, &[]);
        let refused = (0..=65).find_map(|_| send().err()).unwrap();
        let is_of_user = |error: &io::Error| error.raw_os_error() == Some(libc::ETOOMANYREFS);
        assert!(matches!(&refused, FrameError::Socket(error) if is_of_user(error)), "{refused:?}");

        let user = take().unwrap();
        let _own = instance().unwrap();
        user.act_as_root().unwrap();
        assert!(geteuid().is_root());
        assert_eq!(instance().unwrap_err(), Errno::EMFILE, "root's again");
        send().unwrap();
    }
}
