//! `io.containerd.cgroups.v2.Metrics`.

use std::path::Path;

use containerd_shim_protos::{
    cgroups_v2::metrics::{
        CPUStat, HugeTlbStat, IOEntry, IOStat, MemoryEvents, MemoryStat, Metrics, PSIData, PSIStats, PidsStat,
        RdmaEntry, RdmaStat,
    },
    protobuf::MessageField,
};

use super::{device_number, huge_page_sizes, number, pairs, rdma_lines, text};

pub(super) fn metrics(directory: &Path) -> Metrics {
    let mut metrics = Metrics::new();
    if !directory.is_dir() {
        return metrics;
    }
    metrics.pids = MessageField::some(PidsStat {
        current: value(directory, "pids.current"),
        limit: value(directory, "pids.max"),
        ..PidsStat::default()
    });
    metrics.cpu = MessageField::some(cpu(directory));
    metrics.memory = MessageField::some(memory(directory));
    metrics.memory_events = MessageField::some(memory_events(directory));
    metrics.io = MessageField::some(io(directory));
    metrics.rdma = MessageField::some(rdma(directory));
    metrics.hugetlb = hugetlb(directory);
    metrics
}

/// A file of one number; no limit is the largest number here.
fn value(directory: &Path, file: &str) -> u64 {
    number(directory, file, u64::MAX).unwrap_or_default()
}

fn cpu(directory: &Path) -> CPUStat {
    let mut stat = CPUStat::new();
    for (key, value) in pairs(&text(directory, "cpu.stat").unwrap_or_default()) {
        match key {
            "usage_usec" => stat.usage_usec = value,
            "user_usec" => stat.user_usec = value,
            "system_usec" => stat.system_usec = value,
            "nr_periods" => stat.nr_periods = value,
            "nr_throttled" => stat.nr_throttled = value,
            "throttled_usec" => stat.throttled_usec = value,
            "nr_bursts" => stat.nr_bursts = value,
            "burst_usec" => stat.burst_usec = value,
            _ => {}
        }
    }
    stat.psi = pressure(directory, "cpu.pressure").into();
    stat
}

fn memory(directory: &Path) -> MemoryStat {
    let mut stat = MemoryStat::new();
    for (key, value) in pairs(&text(directory, "memory.stat").unwrap_or_default()) {
        if let Some(field) = memory_field(&mut stat, key) {
            *field = value;
        }
    }
    stat.usage = value(directory, "memory.current");
    stat.usage_limit = value(directory, "memory.max");
    stat.max_usage = value(directory, "memory.peak");
    stat.swap_usage = value(directory, "memory.swap.current");
    stat.swap_limit = value(directory, "memory.swap.max");
    stat.swap_max_usage = value(directory, "memory.swap.peak");
    stat.psi = pressure(directory, "memory.pressure").into();
    stat
}

/// The field for a key of `memory.stat`.
fn memory_field<'stat>(stat: &'stat mut MemoryStat, key: &str) -> Option<&'stat mut u64> {
    Some(match key {
        "anon" => &mut stat.anon,
        "file" => &mut stat.file,
        "kernel_stack" => &mut stat.kernel_stack,
        "slab" => &mut stat.slab,
        "sock" => &mut stat.sock,
        "shmem" => &mut stat.shmem,
        "file_mapped" => &mut stat.file_mapped,
        "file_dirty" => &mut stat.file_dirty,
        "file_writeback" => &mut stat.file_writeback,
        "anon_thp" => &mut stat.anon_thp,
        "inactive_anon" => &mut stat.inactive_anon,
        "active_anon" => &mut stat.active_anon,
        "inactive_file" => &mut stat.inactive_file,
        "active_file" => &mut stat.active_file,
        "unevictable" => &mut stat.unevictable,
        "slab_reclaimable" => &mut stat.slab_reclaimable,
        "slab_unreclaimable" => &mut stat.slab_unreclaimable,
        "pgfault" => &mut stat.pgfault,
        "pgmajfault" => &mut stat.pgmajfault,
        "workingset_refault" => &mut stat.workingset_refault,
        "workingset_activate" => &mut stat.workingset_activate,
        "workingset_nodereclaim" => &mut stat.workingset_nodereclaim,
        "pgrefill" => &mut stat.pgrefill,
        "pgscan" => &mut stat.pgscan,
        "pgsteal" => &mut stat.pgsteal,
        "pgactivate" => &mut stat.pgactivate,
        "pgdeactivate" => &mut stat.pgdeactivate,
        "pglazyfree" => &mut stat.pglazyfree,
        "pglazyfreed" => &mut stat.pglazyfreed,
        "thp_fault_alloc" => &mut stat.thp_fault_alloc,
        "thp_collapse_alloc" => &mut stat.thp_collapse_alloc,
        _ => return None,
    })
}

fn memory_events(directory: &Path) -> MemoryEvents {
    let mut events = MemoryEvents::new();
    for (key, value) in pairs(&text(directory, "memory.events").unwrap_or_default()) {
        match key {
            "low" => events.low = value,
            "high" => events.high = value,
            "max" => events.max = value,
            "oom" => events.oom = value,
            "oom_kill" => events.oom_kill = value,
            "oom_group_kill" => events.oom_group_kill = value,
            _ => {}
        }
    }
    events
}

fn io(directory: &Path) -> IOStat {
    IOStat {
        usage: text(directory, "io.stat").unwrap_or_default().lines().filter_map(io_entry).collect(),
        psi: pressure(directory, "io.pressure").into(),
        ..IOStat::default()
    }
}

/// `8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0`.
fn io_entry(line: &str) -> Option<IOEntry> {
    let mut words = line.split_ascii_whitespace();
    let (major, minor) = device_number(words.next()?)?;
    let mut entry = IOEntry { major, minor, ..IOEntry::default() };
    let mut any = false;
    for (key, value) in words.filter_map(|word| word.split_once('=')) {
        let Ok(value) = value.parse() else { continue };
        any = true;
        match key {
            "rbytes" => entry.rbytes = value,
            "wbytes" => entry.wbytes = value,
            "rios" => entry.rios = value,
            "wios" => entry.wios = value,
            _ => {}
        }
    }
    any.then_some(entry)
}

fn rdma(directory: &Path) -> RdmaStat {
    let entries = |file| {
        rdma_lines(&text(directory, file).unwrap_or_default())
            .map(|(device, hca_handles, hca_objects)| RdmaEntry {
                device: device.to_owned(),
                hca_handles,
                hca_objects,
                ..RdmaEntry::default()
            })
            .collect()
    };
    RdmaStat { current: entries("rdma.current"), limit: entries("rdma.max"), ..RdmaStat::default() }
}

fn hugetlb(directory: &Path) -> Vec<HugeTlbStat> {
    huge_page_sizes(directory, ".current")
        .into_iter()
        .map(|pagesize| {
            let events = text(directory, &format!("hugetlb.{pagesize}.events")).unwrap_or_default();
            HugeTlbStat {
                current: value(directory, &format!("hugetlb.{pagesize}.current")),
                max: value(directory, &format!("hugetlb.{pagesize}.max")),
                failcnt: pairs(&events).find(|(key, _)| *key == "max").map(|(_, value)| value).unwrap_or_default(),
                pagesize,
                ..HugeTlbStat::default()
            }
        })
        .collect()
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0` and the same for `full`; `None` without
/// pressure accounting.
fn pressure(directory: &Path, file: &str) -> Option<PSIStats> {
    let text = text(directory, file)?;
    let mut stats = PSIStats::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let field = match words.next() {
            Some("some") => &mut stats.some,
            Some("full") => &mut stats.full,
            _ => continue,
        };
        let mut data = PSIData::new();
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            match key {
                "avg10" => data.avg10 = value.parse().unwrap_or_default(),
                "avg60" => data.avg60 = value.parse().unwrap_or_default(),
                "avg300" => data.avg300 = value.parse().unwrap_or_default(),
                "total" => data.total = value.parse().unwrap_or_default(),
                _ => {}
            }
        }
        *field = MessageField::some(data);
    }
    Some(stats)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::testing;

    #[test]
    fn fields_are_those_of_gos_library() {
        let cgroup = testing::directory(&[
            ("cpu.stat", "usage_usec 11\nuser_usec 6\nsystem_usec 5\nnice_usec 0\nnr_throttled 2\nthrottled_usec 3\n"),
            (
                "cpu.pressure",
                "some avg10=1.50 avg60=0.25 avg300=0.00 total=99\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
            ),
            ("memory.stat", "anon 1\nfile 2\nkernel_stack 3\nworkingset_refault_anon 9\nthp_collapse_alloc 4\n"),
            ("memory.current", "1000\n"),
            ("memory.max", "max\n"),
            ("memory.peak", "2000\n"),
            ("memory.swap.max", "0\n"),
            ("memory.events", "low 0\nhigh 1\nmax 2\noom 3\noom_kill 4\noom_group_kill 5\n"),
            ("pids.current", "3\n"),
            ("pids.max", "100\n"),
            ("io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n253:0 \n259:0 rbytes=9\n"),
            ("hugetlb.2MB.current", "2\n"),
            ("hugetlb.2MB.max", "max\n"),
            ("hugetlb.2MB.events", "max 6\n"),
            ("hugetlb.2MB.rsvd.current", "1\n"),
        ]);
        let metrics = metrics(cgroup.path());
        let cpu = &metrics.cpu;
        assert_eq!((cpu.usage_usec, cpu.user_usec, cpu.system_usec), (11, 6, 5));
        assert_eq!((cpu.nr_throttled, cpu.throttled_usec), (2, 3));
        assert_eq!(
            (cpu.psi.some.avg10, cpu.psi.some.avg60, cpu.psi.some.total, cpu.psi.full.total),
            (1.5, 0.25, 99, 7)
        );
        let memory = &metrics.memory;
        assert_eq!((memory.anon, memory.file, memory.kernel_stack, memory.thp_collapse_alloc), (1, 2, 3, 4));
        assert_eq!((memory.usage, memory.usage_limit, memory.max_usage), (1000, u64::MAX, 2000));
        assert_eq!((memory.swap_limit, memory.swap_usage), (0, 0));
        assert!(memory.psi.is_none());
        let events = &metrics.memory_events;
        assert_eq!((events.high, events.max, events.oom, events.oom_kill, events.oom_group_kill), (1, 2, 3, 4, 5));
        assert_eq!((metrics.pids.current, metrics.pids.limit), (3, 100));
        let io: Vec<_> = metrics
            .io
            .usage
            .iter()
            .map(|entry| (entry.major, entry.rbytes, entry.wbytes, entry.rios, entry.wios))
            .collect();
        assert_eq!(io, [(8, 1, 2, 3, 4), (259, 9, 0, 0, 0)]);
        let pages: Vec<_> =
            metrics.hugetlb.iter().map(|stat| (stat.pagesize.as_str(), stat.current, stat.max, stat.failcnt)).collect();
        assert_eq!(pages, [("2MB", 2, u64::MAX, 6)]);
    }
}
