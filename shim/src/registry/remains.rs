//! The helper and the workers of a shim that is gone. They die with it, but not at once: one that is in the middle of a
//! mount, or of making a cgroup, finishes that first, behind the back of whoever cleans up.

use std::{fs, os::fd::AsFd, time::Duration};

use super::{Life, life::has_ended};
use crate::sys;

/// A system call that a worker is in ends long before.
const PATIENCE: Duration = Duration::from_secs(10);
/// A worker that is killed may have forked just before.
const PASSES: usize = 20;

/// Ends those that are left, and waits until they have ended. Does nothing while the shim lives.
///
/// They are the members of the process group that the shim led. The kernel gives a group's number to nobody else before
/// its last member is gone. Hooks, which may be in the group as well, are left to themselves.
pub fn end(shim: &Life) {
    if !shim.has_met_its_end(PATIENCE) {
        return;
    }
    for _ in 0..PASSES {
        let members = members(shim.pid());
        if members.is_empty() {
            return;
        }
        for pid in members {
            let Ok(handle) = sys::pidfd_open(pid) else { continue };
            // Still a member while the handle is held: it is of the right process.
            if is_member(pid, shim.pid()) {
                let _ = sys::pidfd_send_signal(handle.as_fd(), libc::SIGKILL);
                if !has_ended(&handle, PATIENCE) {
                    tracing::warn!(pid, "a process of a dead shim's helper does not end");
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
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| is_member_by(&stat, group))
}

/// proc(5): the name, in parentheses; state, parent, process group. Names: the helper's, which its workers keep, and those
/// that libcontainer gives to what it forks.
fn is_member_by(stat: &str, group: i32) -> bool {
    let Some((name, rest)) = stat.split_once(" (").and_then(|(_, rest)| rest.rsplit_once(") ")) else { return false };
    let mut fields = rest.split(' ');
    let alive = fields.next().is_some_and(|state| !matches!(state, "Z" | "X"));
    let own = fields.nth(1).and_then(|field| field.parse().ok());
    alive && own == Some(group) && (name == "egpu-helper" || name.starts_with("youki:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_told_by_group_and_name() {
        let stat = |name: &str, state: char, group: i32| format!("7 ({name}) {state} 1 {group} 7 0 -1\n");
        assert!(is_member_by(&stat("egpu-helper", 'D', 5), 5));
        assert!(is_member_by(&stat("youki:[2:INIT]", 'S', 5), 5));
        assert!(!is_member_by(&stat("egpu-helper", 'S', 6), 5));
        assert!(!is_member_by(&stat("egpu-helper", 'Z', 5), 5));
        assert!(!is_member_by(&stat("sh) S 1 5 (egpu-helper", 'S', 6), 5));
        assert!(!is_member_by(&stat("hook", 'S', 5), 5));
        assert!(!is_member_by("", 5));
    }
}
