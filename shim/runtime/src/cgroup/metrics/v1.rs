//! `io.containerd.cgroups.v1.Metrics`.

use std::path::Path;

use containerd_shim_protos::{
    cgroups::metrics::{
        BlkIOEntry, BlkIOStat, CPUStat, CPUUsage, HugetlbStat, MemoryEntry, MemoryOomControl, MemoryStat, Metrics,
        PidsStat, RdmaEntry, RdmaStat, Throttle,
    },
    protobuf::MessageField,
};
use nix::unistd::{SysconfVar, sysconf};

use super::{block_devices, device_number, huge_page_sizes, number, pairs, rdma_lines, text};
use crate::cgroup::Cgroup;

const NANOSECONDS: u64 = 1_000_000_000;

pub(super) fn metrics(cgroup: &Cgroup, partitions: &Path) -> Metrics {
    let controller = |name| cgroup.v1_controller(name).filter(|directory| directory.is_dir());
    let mut metrics = Metrics::new();
    if let Some(directory) = controller("hugetlb") {
        metrics.hugetlb = hugetlb(directory);
    }
    if let Some(directory) = controller("pids") {
        metrics.pids = MessageField::some(pids(directory));
    }
    let (cpu, cpuacct) = (controller("cpu"), controller("cpuacct"));
    if cpu.is_some() || cpuacct.is_some() {
        metrics.cpu = MessageField::some(CPUStat {
            usage: MessageField::some(cpuacct.map(cpu_usage).unwrap_or_default()),
            throttling: MessageField::some(cpu.map(throttling).unwrap_or_default()),
            ..CPUStat::default()
        });
    }
    if let Some(directory) = controller("memory") {
        metrics.memory = MessageField::some(memory(directory));
        metrics.memory_oom_control = MessageField::some(oom_control(directory));
    }
    if let Some(directory) = controller("blkio") {
        metrics.blkio = MessageField::some(blkio(directory, partitions));
    }
    if let Some(directory) = controller("rdma") {
        metrics.rdma = MessageField::some(rdma(directory));
    }
    metrics
}

fn hugetlb(directory: &Path) -> Vec<HugetlbStat> {
    huge_page_sizes(directory, ".usage_in_bytes")
        .into_iter()
        .map(|pagesize| {
            let value = |name| number(directory, &format!("hugetlb.{pagesize}.{name}"), 0).unwrap_or_default();
            HugetlbStat {
                usage: value("usage_in_bytes"),
                max: value("max_usage_in_bytes"),
                failcnt: value("failcnt"),
                pagesize,
                ..HugetlbStat::default()
            }
        })
        .collect()
}

fn pids(directory: &Path) -> PidsStat {
    PidsStat {
        current: number(directory, "pids.current", 0).unwrap_or_default(),
        // No limit is 0 here.
        limit: number(directory, "pids.max", 0).unwrap_or_default(),
        ..PidsStat::default()
    }
}

fn cpu_usage(directory: &Path) -> CPUUsage {
    let mut usage =
        CPUUsage { total: number(directory, "cpuacct.usage", 0).unwrap_or_default(), ..CPUUsage::default() };
    for (key, value) in pairs(&text(directory, "cpuacct.stat").unwrap_or_default()) {
        match key {
            "user" => usage.user = ticks_to_nanoseconds(value),
            "system" => usage.kernel = ticks_to_nanoseconds(value),
            _ => {}
        }
    }
    let per_cpu = text(directory, "cpuacct.usage_percpu").unwrap_or_default();
    usage.per_cpu = per_cpu.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    usage
}

/// `cpuacct.stat` counts in USER_HZ.
fn ticks_to_nanoseconds(ticks: u64) -> u64 {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|value| u64::try_from(value).ok());
    ticks.saturating_mul(NANOSECONDS / per_second.filter(|&value| value > 0).unwrap_or(100))
}

fn throttling(directory: &Path) -> Throttle {
    let mut throttle = Throttle::new();
    for (key, value) in pairs(&text(directory, "cpu.stat").unwrap_or_default()) {
        match key {
            "nr_periods" => throttle.periods = value,
            "nr_throttled" => throttle.throttled_periods = value,
            "throttled_time" => throttle.throttled_time = value,
            _ => {}
        }
    }
    throttle
}

fn memory(directory: &Path) -> MemoryStat {
    let mut stat = MemoryStat::new();
    for (key, value) in pairs(&text(directory, "memory.stat").unwrap_or_default()) {
        if let Some(field) = memory_field(&mut stat, key) {
            *field = value;
        }
    }
    stat.usage = MessageField::some(memory_entry(directory, "memory"));
    stat.swap = MessageField::some(memory_entry(directory, "memory.memsw"));
    stat.kernel = MessageField::some(memory_entry(directory, "memory.kmem"));
    stat.kernel_tcp = MessageField::some(memory_entry(directory, "memory.kmem.tcp"));
    stat
}

/// The field for a key of `memory.stat`.
fn memory_field<'stat>(stat: &'stat mut MemoryStat, key: &str) -> Option<&'stat mut u64> {
    Some(match key {
        "cache" => &mut stat.cache,
        "rss" => &mut stat.rss,
        "rss_huge" => &mut stat.rss_huge,
        "mapped_file" => &mut stat.mapped_file,
        "dirty" => &mut stat.dirty,
        "writeback" => &mut stat.writeback,
        "pgpgin" => &mut stat.pg_pg_in,
        "pgpgout" => &mut stat.pg_pg_out,
        "pgfault" => &mut stat.pg_fault,
        "pgmajfault" => &mut stat.pg_maj_fault,
        "inactive_anon" => &mut stat.inactive_anon,
        "active_anon" => &mut stat.active_anon,
        "inactive_file" => &mut stat.inactive_file,
        "active_file" => &mut stat.active_file,
        "unevictable" => &mut stat.unevictable,
        "hierarchical_memory_limit" => &mut stat.hierarchical_memory_limit,
        "hierarchical_memsw_limit" => &mut stat.hierarchical_swap_limit,
        "total_cache" => &mut stat.total_cache,
        "total_rss" => &mut stat.total_rss,
        "total_rss_huge" => &mut stat.total_rss_huge,
        "total_mapped_file" => &mut stat.total_mapped_file,
        "total_dirty" => &mut stat.total_dirty,
        "total_writeback" => &mut stat.total_writeback,
        "total_pgpgin" => &mut stat.total_pg_pg_in,
        "total_pgpgout" => &mut stat.total_pg_pg_out,
        "total_pgfault" => &mut stat.total_pg_fault,
        "total_pgmajfault" => &mut stat.total_pg_maj_fault,
        "total_inactive_anon" => &mut stat.total_inactive_anon,
        "total_active_anon" => &mut stat.total_active_anon,
        "total_inactive_file" => &mut stat.total_inactive_file,
        "total_active_file" => &mut stat.total_active_file,
        "total_unevictable" => &mut stat.total_unevictable,
        _ => return None,
    })
}

/// `memsw` counts memory and swap together; without swap accounting its files are missing.
fn memory_entry(directory: &Path, prefix: &str) -> MemoryEntry {
    let value = |name| number(directory, &format!("{prefix}.{name}"), 0).unwrap_or_default();
    MemoryEntry {
        usage: value("usage_in_bytes"),
        max: value("max_usage_in_bytes"),
        failcnt: value("failcnt"),
        limit: value("limit_in_bytes"),
        ..MemoryEntry::default()
    }
}

fn oom_control(directory: &Path) -> MemoryOomControl {
    let mut control = MemoryOomControl::new();
    for (key, value) in pairs(&text(directory, "memory.oom_control").unwrap_or_default()) {
        match key {
            "oom_kill_disable" => control.oom_kill_disable = value,
            "under_oom" => control.under_oom = value,
            "oom_kill" => control.oom_kill = value,
            _ => {}
        }
    }
    control
}

fn blkio(directory: &Path, partitions: &Path) -> BlkIOStat {
    let devices = block_devices(partitions);
    let entries = |file| blkio_entries(&text(directory, file).unwrap_or_default(), &devices);
    let mut stat = BlkIOStat {
        io_service_bytes_recursive: entries("blkio.io_service_bytes_recursive"),
        io_serviced_recursive: entries("blkio.io_serviced_recursive"),
        io_queued_recursive: entries("blkio.io_queued_recursive"),
        io_service_time_recursive: entries("blkio.io_service_time_recursive"),
        io_wait_time_recursive: entries("blkio.io_wait_time_recursive"),
        io_merged_recursive: entries("blkio.io_merged_recursive"),
        io_time_recursive: entries("blkio.time_recursive"),
        sectors_recursive: entries("blkio.sectors_recursive"),
        ..BlkIOStat::default()
    };
    // The files above are those of the CFQ scheduler, which newer kernels lack and devices need not
    // use.
    if stat == BlkIOStat::default() {
        stat.io_serviced_recursive = entries("blkio.throttle.io_serviced");
        stat.io_service_bytes_recursive = entries("blkio.throttle.io_service_bytes");
    }
    stat
}

/// Lines of `8:0 Read 4096` or `8:0 4096`; the line `Total 4096` is no entry.
fn blkio_entries(text: &str, devices: &[((u64, u64), std::path::PathBuf)]) -> Vec<BlkIOEntry> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (major, minor) = device_number(words.next()?)?;
            let (op, value) = match (words.next()?, words.next()) {
                (op, Some(value)) => (op, value),
                (value, None) => ("", value),
            };
            let device = devices.iter().find(|(number, _)| *number == (major, minor));
            Some(BlkIOEntry {
                op: op.to_owned(),
                device: device.map(|(_, path)| path.to_string_lossy().into_owned()).unwrap_or_default(),
                major,
                minor,
                value: value.parse().ok()?,
                ..BlkIOEntry::default()
            })
        })
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::testing;

    #[test]
    fn fields_are_those_of_gos_library() {
        let host = testing::directory(&[
            ("cpuacct/cpuacct.usage", "123456789\n"),
            ("cpuacct/cpuacct.stat", "user 3\nsystem 2\n"),
            ("cpuacct/cpuacct.usage_percpu", "100 200 \n"),
            ("cpu/cpu.stat", "nr_periods 9\nnr_throttled 4\nthrottled_time 5000\nnr_bursts 0\n"),
            (
                "memory/memory.stat",
                "cache 1\nrss 2\npgpgin 3\nhierarchical_memsw_limit 4\ntotal_inactive_file 5\nfuture 6\n",
            ),
            ("memory/memory.usage_in_bytes", "10\n"),
            ("memory/memory.max_usage_in_bytes", "11\n"),
            ("memory/memory.failcnt", "12\n"),
            ("memory/memory.limit_in_bytes", "13\n"),
            ("memory/memory.kmem.usage_in_bytes", "14\n"),
            ("memory/memory.kmem.tcp.usage_in_bytes", "-5\n"),
            ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 1\noom_kill 7\n"),
            ("pids/pids.current", "3\n"),
            ("pids/pids.max", "max\n"),
            ("blkio/blkio.throttle.io_service_bytes", "8:0 Read 4096\n8:0 Write 1\n259:1 Read 2\nTotal 4099\n"),
            ("blkio/blkio.throttle.io_serviced", ""),
            ("hugetlb/hugetlb.2MB.usage_in_bytes", "2\n"),
            ("hugetlb/hugetlb.2MB.max_usage_in_bytes", "4\n"),
            ("hugetlb/hugetlb.2MB.failcnt", "1\n"),
            ("hugetlb/hugetlb.2MB.rsvd.usage_in_bytes", "9\n"),
            ("rdma/rdma.current", "mlx5_0 hca_handle=1 hca_object=20\n"),
            ("rdma/rdma.max", "mlx5_0 hca_handle=max hca_object=max\n"),
            ("partitions", "major minor  #blocks  name\n\n   8        0   10 sda\n   8  0  10 sda-again\n"),
        ]);
        let at = |name: &str| host.path().join(name);
        let names = ["cpu", "cpuacct", "memory", "pids", "blkio", "hugetlb", "rdma"];
        let directories: Vec<_> = names.iter().map(|name| ([*name], at(name))).collect();
        let hierarchies: Vec<(&[&str], &Path)> =
            directories.iter().map(|(name, path)| (name.as_slice(), path.as_path())).collect();
        let metrics = metrics(&testing::v1(&hierarchies), &at("partitions"));

        let usage = &metrics.cpu.usage;
        assert_eq!((usage.total, usage.user, usage.kernel), (123_456_789, 30_000_000, 20_000_000));
        assert_eq!(usage.per_cpu, [100, 200]);
        let throttling = &metrics.cpu.throttling;
        assert_eq!((throttling.periods, throttling.throttled_periods, throttling.throttled_time), (9, 4, 5000));
        let memory = &metrics.memory;
        assert_eq!((memory.cache, memory.rss, memory.pg_pg_in), (1, 2, 3));
        assert_eq!((memory.hierarchical_swap_limit, memory.total_inactive_file), (4, 5));
        let entry = &memory.usage;
        assert_eq!((entry.usage, entry.max, entry.failcnt, entry.limit), (10, 11, 12, 13));
        assert_eq!(memory.kernel.usage, 14);
        // Readers expect the entry even where the kernel does not account swap, and no wrapped
        // number.
        assert_eq!(memory.swap.as_ref().unwrap(), &MemoryEntry::default());
        assert_eq!(memory.kernel_tcp.usage, 0);
        let oom = &metrics.memory_oom_control;
        assert_eq!((oom.oom_kill_disable, oom.under_oom, oom.oom_kill), (0, 1, 7));
        assert_eq!((metrics.pids.current, metrics.pids.limit), (3, 0));
        let bytes: Vec<_> = metrics
            .blkio
            .io_service_bytes_recursive
            .iter()
            .map(|entry| (entry.device.as_str(), entry.major, entry.minor, entry.op.as_str(), entry.value))
            .collect();
        assert_eq!(bytes, [("/dev/sda", 8, 0, "Read", 4096), ("/dev/sda", 8, 0, "Write", 1), ("", 259, 1, "Read", 2)]);
        let pages: Vec<_> =
            metrics.hugetlb.iter().map(|stat| (stat.pagesize.as_str(), stat.usage, stat.max, stat.failcnt)).collect();
        assert_eq!(pages, [("2MB", 2, 4, 1)]);
        assert_eq!(metrics.rdma.current.first().map(|entry| (entry.hca_handles, entry.hca_objects)), Some((1, 20)));
        assert_eq!(metrics.rdma.limit.first().map(|entry| entry.hca_handles), Some(u32::MAX));
    }

    #[test]
    fn schedulers_own_counters_are_preferred() {
        let blkio_directory = testing::directory(&[
            ("blkio.sectors_recursive", "8:0 77\n"),
            ("blkio.throttle.io_serviced", "8:0 Read 1\n"),
        ]);
        let stat = blkio(blkio_directory.path(), Path::new("/nowhere"));
        assert_eq!(stat.sectors_recursive.first().map(|entry| entry.value), Some(77));
        assert!(stat.io_serviced_recursive.is_empty());
    }
}
