//! Pids of a process: one in each pid namespace from that of this procfs down to its own.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::Path,
};

use mediator::Number;

/// Parses `/proc/TID/status`: the pid of the process here, and those in its namespaces from this
/// procfs's inwards.
pub(super) fn pids(status: &str) -> Option<(i32, Vec<i32>)> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let pid = field("Tgid")?.trim().parse().ok()?;
    let inwards = field("NStgid").map_or(Ok(vec![pid]), |list| list.split_ascii_whitespace().map(str::parse).collect());
    Some((pid, inwards.ok()?))
}

/// Reads the pids with their namespaces from a directory of `/proc`.
///
/// Those of a process never change; a namespace that it sets (`unshare`, `setns`) is its
/// children's.
pub(super) fn numbers(directory: &Path, inwards: &[i32]) -> io::Result<Vec<Number>> {
    let mut numbers = Vec::with_capacity(inwards.len());
    let mut namespace = File::open(directory.join("ns/pid"))?;
    for (above, pid) in inwards.iter().enumerate().rev() {
        numbers.push(Number { namespace: namespace.metadata()?.ino(), pid: *pid });
        if above > 0 {
            namespace = sys::parent_namespace(namespace.as_fd())?.into();
        }
    }
    numbers.reverse();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use mediator::Numbers;

    use super::*;

    #[test]
    fn a_process_has_a_number_in_each_namespace() {
        let status =
            "Name:\ta) Tgid:\t1\nTgid:\t4711\nNgid:\t0\nPid:\t4712\nNStgid:\t4711\t23\t7\nNSpid:\t4712\t24\t8\n";
        assert_eq!(pids(status), Some((4711, vec![4711, 23, 7])));
        assert_eq!(pids("Tgid:\t4711\nPid:\t4711\n"), Some((4711, vec![4711])));
        assert_eq!(pids("Pid:\t1\n"), None);
        assert_eq!(pids("Tgid:\t4711\nNStgid:\t4711\tx\n"), None);
    }

    /// The first child of a process, once there is one.
    fn child_of(pid: u32) -> i32 {
        (0..500)
            .find_map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
                children.split_whitespace().next().map(|child| child.parse().unwrap())
            })
            .unwrap()
    }

    #[test]
    fn processes_in_nested_namespaces_are_distinguished() {
        let nested = || {
            let unshare = ["--pid", "--fork", "--kill-child", "sleep", "60"];
            std::process::Command::new("unshare").args(unshare).stderr(std::process::Stdio::null()).spawn()
        };
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: processes_in_nested_namespaces_are_distinguished: needs root");
            return;
        }
        let mut parents = [nested().unwrap(), nested().unwrap()];
        let numbers_of = |pid: i32| {
            let directory = Path::new("/proc").join(pid.to_string());
            let status = fs::read_to_string(directory.join("status")).unwrap();
            Numbers::new(numbers(&directory, &pids(&status).unwrap().1).unwrap())
        };
        let inner = [0, 1].map(|at: usize| child_of(parents[at].id()));
        let [one, other] = inner.map(numbers_of);
        let outside = numbers_of(nix::unistd::getpid().as_raw());
        for parent in &mut parents {
            parent.kill().unwrap();
            parent.wait().unwrap();
        }
        assert_eq!((one.seen_by(&one), other.seen_by(&other)), (Some(1), Some(1)));
        assert_eq!((one.seen_by(&other), outside.seen_by(&one)), (None, None), "of others they know nothing");
        let seen = |numbers: &Numbers| numbers.seen_by(&outside);
        assert_eq!([seen(&one), seen(&other)], inner.map(Some), "out here each has a number of its own");
        assert_eq!(one.in_container(), 1);
    }
}
