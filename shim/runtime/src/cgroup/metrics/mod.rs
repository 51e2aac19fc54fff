//! The container's usage, in the messages that containerd decodes.
//!
//! The fields are filled as Go's cgroups library (github.com/containerd/cgroups, `cgroup1` and
//! `cgroup2`) fills them: kubelet, cAdvisor and `ctr metrics` read them with that meaning. A kernel
//! file that is missing or reads oddly leaves its field unset and never fails the whole.

mod v1;
mod v2;

use std::{
    fs,
    path::{Path, PathBuf},
};

use containerd_shim_protos::protobuf::{Message, well_known_types::any::Any};

use super::{Cgroup, Layout};

impl Cgroup {
    /// Metrics of now, or of the end when the processes are gone but the cgroup is not:
    /// `io.containerd.cgroups.v1.Metrics` or `io.containerd.cgroups.v2.Metrics`. Empty when the
    /// cgroup is gone too.
    ///
    /// Reads some thirty small files of the kernel; on a host with many cgroups the kernel may take
    /// milliseconds to sum up memory statistics.
    ///
    /// `more_oom_kills`: kills for want of memory that the kernel does not know of, counted with
    /// its own.
    pub fn metrics(&self, more_oom_kills: u64) -> Any {
        match &self.layout {
            Layout::V1 { .. } => {
                let mut metrics = v1::metrics(self, Path::new("/proc/partitions"));
                if more_oom_kills > 0 {
                    let control = metrics.memory_oom_control.mut_or_insert_default();
                    control.oom_kill = control.oom_kill.saturating_add(more_oom_kills);
                }
                packed("io.containerd.cgroups.v1.Metrics", &metrics)
            }
            Layout::V2 { directory, .. } => {
                let mut metrics = v2::metrics(directory);
                if more_oom_kills > 0 {
                    let events = metrics.memory_events.mut_or_insert_default();
                    events.oom_kill = events.oom_kill.saturating_add(more_oom_kills);
                }
                packed("io.containerd.cgroups.v2.Metrics", &metrics)
            }
        }
    }
}

/// Go's typeurl writes the bare name of the message, with no host before it.
fn packed(type_url: &str, message: &impl Message) -> Any {
    Any {
        type_url: type_url.to_owned(),
        // Serializing fails for messages beyond 2 GiB only.
        value: message.write_to_bytes().unwrap_or_default(),
        ..Any::default()
    }
}

/// A control file's text; `None` when it is not there, not readable or not text.
fn text(directory: &Path, file: &str) -> Option<String> {
    fs::read_to_string(directory.join(file)).ok()
}

/// A file of one number. `max` is `when_max`: 0 in v1's messages, the largest number in v2's.
fn number(directory: &Path, file: &str, when_max: u64) -> Option<u64> {
    parse(text(directory, file)?.trim(), when_max)
}

/// A number of the kernel; a negative one (a counter that ran over) is 0.
fn parse(word: &str, when_max: u64) -> Option<u64> {
    if word == "max" {
        return Some(when_max);
    }
    word.parse().ok().or_else(|| word.parse::<i64>().ok().map(|_negative| 0))
}

/// The pairs of a flat keyed file. Lines of another form are skipped.
fn pairs(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (key, value) = (words.next()?, parse(words.next()?, u64::MAX)?);
        words.next().is_none().then_some((key, value))
    })
}

/// Sizes of huge pages of which the cgroup has files, as they stand in their names: `2MB`, `1GB`.
fn huge_page_sizes(directory: &Path, suffix: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut sizes: Vec<String> = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let size = name.strip_prefix("hugetlb.")?.strip_suffix(suffix)?;
            (!size.contains('.')).then(|| size.to_owned())
        })
        .collect();
    sizes.sort();
    sizes
}

/// One line of `rdma.current` or `rdma.max`: (device, HCA handles, HCA objects).
fn rdma_lines(text: &str) -> impl Iterator<Item = (&str, u32, u32)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let device = words.next()?;
        let (mut handles, mut objects) = (0, 0);
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let value = if value == "max" { u32::MAX } else { value.parse().unwrap_or(0) };
            match key {
                "hca_handle" => handles = value,
                "hca_object" => objects = value,
                _ => {}
            }
        }
        Some((device, handles, objects))
    })
}

/// `8:0` as (major, minor).
fn device_number(word: &str) -> Option<(u64, u64)> {
    let (major, minor) = word.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Names of the block devices, from `/proc/partitions`; the first name of a number wins.
fn block_devices(partitions: &Path) -> Vec<((u64, u64), PathBuf)> {
    let text = fs::read_to_string(partitions).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let number = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some((number, Path::new("/dev").join(words.nth(1)?)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use containerd_shim_protos::{cgroups, cgroups_v2};
    use proptest::prelude::*;

    use super::*;
    use crate::cgroup::testing::{self, RealCgroup};

    #[test]
    fn a_real_v1_container_has_figures() {
        let Some(mut real) = RealCgroup::v1("metrics", &["cpu", "cpuacct", "memory", "pids", "freezer"]) else {
            return;
        };
        // One process: what it started would outlive it.
        let pid = real.spawn("", "x=x; while [ ${#x} -lt 1000000 ]; do x=$x$x; done; while :; do :; done");
        let decode = |metrics: &Any| cgroups::metrics::Metrics::parse_from_bytes(&metrics.value).unwrap();
        // The kernel counts user and kernel time in ticks, at each of which some other process may
        // be running.
        testing::until("it has used the processor", || {
            let metrics = decode(&real.cgroup.metrics(0));
            metrics.cpu.usage.user > 0 || metrics.cpu.usage.kernel > 0
        });
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        real.wait();
        // The process has ended; the figures are those of its end. It is waited for before the
        // kernel has counted its last steps.
        let sums_up = |usage: &cgroups::metrics::CPUUsage| usage.per_cpu.iter().sum::<u64>() == usage.total;
        testing::until("the processors' times sum up to the whole, and nobody is left", || {
            let metrics = decode(&real.cgroup.metrics(0));
            sums_up(&metrics.cpu.usage) && metrics.pids.current == 0
        });
        let metrics = decode(&real.cgroup.metrics(0));
        assert!(metrics.cpu.usage.total > 0);
        assert!(metrics.cpu.usage.user > 0 || metrics.cpu.usage.kernel > 0);
        assert!(metrics.memory.usage.max > 0 && metrics.memory.usage.limit > 0);
        assert_eq!((metrics.pids.current, metrics.pids.limit), (0, 0));
        assert_eq!(metrics.memory_oom_control.oom_kill, 0);
    }

    #[test]
    fn a_cgroup_that_is_gone_has_an_empty_message() {
        let gone = Path::new("/nowhere/at/all");
        let packed = testing::v2(gone).metrics(0);
        assert_eq!((packed.type_url.as_str(), packed.value.len()), ("io.containerd.cgroups.v2.Metrics", 0));
        let packed = testing::v1(&[(&["memory", "cpu"], gone)]).metrics(0);
        assert_eq!((packed.type_url.as_str(), packed.value.len()), ("io.containerd.cgroups.v1.Metrics", 0));
    }

    /// The kernel knows nothing of kills for the want of a card's memory.
    #[test]
    fn kills_for_want_of_a_cards_memory_count_with_the_kernels() {
        let v2 = |files: &[(&str, &str)], more| {
            let packed = testing::v2(testing::directory(files).path()).metrics(more);
            assert_eq!(packed.type_url, "io.containerd.cgroups.v2.Metrics");
            cgroups_v2::metrics::Metrics::parse_from_bytes(&packed.value).unwrap().memory_events.oom_kill
        };
        let v1 = |files: &[(&str, &str)], more| {
            let directory = testing::directory(files);
            let packed = testing::v1(&[(&["memory"], directory.path())]).metrics(more);
            assert_eq!(packed.type_url, "io.containerd.cgroups.v1.Metrics");
            cgroups::metrics::Metrics::parse_from_bytes(&packed.value).unwrap().memory_oom_control.oom_kill
        };
        let events = [("memory.events", "low 0\nmax 9\noom 3\noom_kill 4\noom_group_kill 1\n")];
        let control = [("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")];
        assert_eq!((v2(&events, 0), v2(&events, 2)), (4, 6));
        assert_eq!((v1(&control, 0), v1(&control, 2)), (4, 6));
        // A cgroup whose memory nobody accounts for, as a hybrid host's unified one.
        assert_eq!((v2(&[("pids.current", "1\n")], 2), v1(&[], 2)), (2, 2));
    }

    const FILES: [&str; 24] = [
        "cpu.stat",
        "cpuacct.usage",
        "cpuacct.stat",
        "cpuacct.usage_percpu",
        "memory.stat",
        "memory.events",
        "memory.current",
        "memory.usage_in_bytes",
        "memory.oom_control",
        "memory.max",
        "memory.pressure",
        "cpu.pressure",
        "io.stat",
        "io.pressure",
        "pids.current",
        "pids.max",
        "blkio.throttle.io_serviced",
        "blkio.sectors_recursive",
        "rdma.current",
        "rdma.max",
        "hugetlb.2MB.current",
        "hugetlb.2MB.events",
        "hugetlb.2MB.usage_in_bytes",
        "hugetlb..current",
    ];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        /// An odd kernel file never fails the call.
        #[test]
        fn odd_files_never_fail_the_call(texts in prop::collection::vec("\\PC*|([a-z_]{1,8}[ =:]-?[0-9]{1,25}[\n ]?){0,4}", FILES.len())) {
            let files: Vec<(&str, &str)> = FILES.iter().zip(&texts).map(|(name, text)| (*name, text.as_str())).collect();
            let directory = testing::directory(&files);
            let packed = testing::v2(directory.path()).metrics(0);
            prop_assert!(cgroups_v2::metrics::Metrics::parse_from_bytes(&packed.value).is_ok());
            let all = ["cpu", "cpuacct", "memory", "pids", "blkio", "hugetlb", "rdma"];
            let packed = testing::v1(&[(&all, directory.path())]).metrics(0);
            prop_assert!(cgroups::metrics::Metrics::parse_from_bytes(&packed.value).is_ok());
        }
    }
}
