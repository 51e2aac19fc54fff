//! The helper and the workers of a shim that is gone. They die with it, but not at once: one that
//! is in the middle of a mount, or of making a cgroup, finishes that first, behind the back of
//! whoever cleans up.

use std::{fs, os::fd::AsFd, time::Duration};

use procfs_core::{FromRead, process::Stat};

use crate::process_instance::{ProcessInstance, has_ended};

/// A system call that a worker is in ends long before.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// A worker that is killed may have forked just before.
const KILL_PASSES: usize = 20;

/// Ends those that are left, and waits until they have ended. Does nothing while the shim lives.
///
/// They are the members of the process group that the shim led. The kernel gives a group's number
/// to nobody else before its last member is gone. Hooks, which may be in the group as well, are
/// left to themselves.
pub fn kill(shim: &ProcessInstance) {
    if !shim.wait_for_exit(EXIT_TIMEOUT) {
        return;
    }
    for _ in 0..KILL_PASSES {
        let members = members(shim.pid());
        if members.is_empty() {
            return;
        }
        for pid in members {
            let Ok(handle) = sys::pidfd_open(pid) else { continue };
            // Still a member while the handle is held: it is of the right process.
            if is_member(pid, shim.pid()) {
                let _ = sys::pidfd_send_signal(handle.as_fd(), libc::SIGKILL);
                if !has_ended(&handle, EXIT_TIMEOUT) {
                    tracing::warn!(pid, "a worker of a dead shim's helper does not exit");
                }
            }
        }
    }
}

fn members(group: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| pid != group && is_member(pid, group)).collect()
}

fn is_member(pid: i32, group: i32) -> bool {
    Stat::from_file(format!("/proc/{pid}/stat")).is_ok_and(|stat| is_member_by(&stat, group))
}

/// Names: the helper's, which its workers keep, and an init's before it begins a group of its own:
/// ours or libcontainer's.
fn is_member_by(stat: &Stat, group: i32) -> bool {
    let is_alive = !matches!(stat.state, 'Z' | 'X');
    let is_ours = matches!(&*stat.comm, "egpu-helper" | "egpu:init") || stat.comm.starts_with("youki:");
    is_alive && stat.pgrp == group && is_ours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_identified_by_group_and_name() {
        let own = Stat::from_file("/proc/self/stat").unwrap();
        let stat = |name: &str, state, group| {
            let mut stat = own.clone();
            (stat.comm, stat.state, stat.pgrp) = (name.to_owned(), state, group);
            stat
        };
        assert!(is_member_by(&stat("egpu-helper", 'D', 5), 5));
        assert!(is_member_by(&stat("egpu:init", 'S', 5), 5));
        assert!(is_member_by(&stat("youki:[2:INIT]", 'S', 5), 5));
        assert!(!is_member_by(&stat("egpu-helper", 'S', 6), 5));
        assert!(!is_member_by(&stat("egpu-helper", 'Z', 5), 5));
        assert!(!is_member_by(&stat("hook", 'S', 5), 5));
    }
}
