//! cgroup v1: each controller in its own hierarchy.

use std::path::Path;

use oci_spec::runtime::{LinuxBlockIo, LinuxCpu, LinuxMemory, LinuxResources};

use super::{
    UpdateError, Write, check_in_use, current, huge_page_size, limit, quota_and_period, rdma, set, set_text, with_burst,
};
use crate::cgroup::{Cgroup, CgroupError};

pub(super) fn plan(cgroup: &Cgroup, resources: &LinuxResources) -> Result<Vec<Write>, UpdateError> {
    if resources.unified().as_ref().is_some_and(|unified| !unified.is_empty()) {
        return Err(UpdateError::NeedsV2 { field: "unified" });
    }
    let controller = |controller| {
        cgroup.v1_controller(controller).ok_or(UpdateError::Cgroup(CgroupError::NoController { controller }))
    };
    let mut plan = Vec::new();
    if let Some(asked) = resources.memory().as_ref().filter(|asked| asks_memory(asked)) {
        plan.extend(memory(controller("memory")?, asked)?);
    }
    if let Some(asked) = resources.cpu() {
        if asks_cpu(asked) {
            plan.extend(cpu(controller("cpu")?, asked)?);
        }
        if set_text(asked.cpus()).is_some() || set_text(asked.mems()).is_some() {
            plan.extend(cpuset(controller("cpuset")?, asked));
        }
    }
    if let Some(asked) = resources.pids().as_ref().and_then(|pids| set(Some(pids.limit()))) {
        plan.push(Write::new(controller("pids")?, "pids.max", &limit("pids.limit", asked, "max")?));
    }
    if let Some(asked) = resources.block_io().as_ref().filter(|asked| **asked != LinuxBlockIo::default()) {
        plan.extend(block_io(controller("blkio")?, asked));
    }
    for asked in resources.hugepage_limits().iter().flatten() {
        let directory = controller("hugetlb")?;
        let size = huge_page_size(asked.page_size())?;
        let value = limit("hugepageLimits.limit", asked.limit(), "-1")?;
        plan.push(Write::new(directory, &format!("hugetlb.{size}.limit_in_bytes"), &value));
        let reserved = format!("hugetlb.{size}.rsvd.limit_in_bytes");
        if directory.join(&reserved).exists() {
            plan.push(Write::new(directory, &reserved, &value));
        }
    }
    if resources.rdma().as_ref().is_some_and(|asked| !asked.is_empty()) {
        plan.extend(rdma(controller("rdma")?, resources));
    }
    Ok(plan)
}

fn asks_memory(asked: &LinuxMemory) -> bool {
    set(asked.limit()).or(set(asked.swap())).or(set(asked.reservation())).is_some() || asked.swappiness().is_some()
}

/// `memory.memsw` counts memory and swap together and must never be below `memory.limit`.
fn memory(directory: &Path, asked: &LinuxMemory) -> Result<Vec<Write>, UpdateError> {
    const LIMIT: &str = "memory.limit_in_bytes";
    const SWAP: &str = "memory.memsw.limit_in_bytes";
    let memory = set(asked.limit());
    let mut swap = set(asked.swap());
    // No limit on memory means none on memory and swap either, where the kernel accounts swap.
    if memory == Some(-1) && swap.is_none() && directory.join(SWAP).exists() {
        swap = Some(-1);
    }
    if let Some(bytes) = memory
        && asked.check_before_update() == Some(true)
    {
        check_in_use(bytes, directory, "memory.usage_in_bytes")?;
    }
    let memory_write =
        memory.map(|bytes| Ok::<_, UpdateError>(Write::new(directory, LIMIT, &limit("memory.limit", bytes, "-1")?)));
    let swap_write =
        swap.map(|bytes| Ok::<_, UpdateError>(Write::new(directory, SWAP, &limit("memory.swap", bytes, "-1")?)));
    let (memory_write, swap_write) = (memory_write.transpose()?, swap_write.transpose()?);
    let swap_first = swap.is_some_and(|swap| {
        let now = current(directory, LIMIT).unwrap_or(u64::MAX);
        swap == -1 || u64::try_from(swap).is_ok_and(|swap| now < swap)
    });
    let writes = if swap_first { [swap_write, memory_write] } else { [memory_write, swap_write] };
    let mut writes: Vec<Write> = writes.into_iter().flatten().collect();
    if let Some(bytes) = set(asked.reservation()) {
        writes.push(Write::new(directory, "memory.soft_limit_in_bytes", &limit("memory.reservation", bytes, "-1")?));
    }
    if let Some(swappiness) = asked.swappiness() {
        if swappiness > 100 {
            return Err(UpdateError::Invalid {
                field: "memory.swappiness",
                value: swappiness.to_string(),
                accepted: "give 0 to 100",
            });
        }
        writes.push(Write::new(directory, "memory.swappiness", &swappiness));
    }
    Ok(writes)
}

fn asks_cpu(asked: &LinuxCpu) -> bool {
    set(asked.shares()).or(set(asked.period())).or(set(asked.realtime_period())).is_some()
        || set(asked.quota()).or(set(asked.realtime_runtime())).is_some()
        || asked.burst().is_some()
        || asked.idle().is_some()
}

fn cpu(directory: &Path, asked: &LinuxCpu) -> Result<Vec<Write>, UpdateError> {
    let mut writes: Vec<Write> =
        set(asked.shares()).map(|shares| Write::new(directory, "cpu.shares", &shares)).into_iter().collect();
    let quota = set(asked.quota())
        .map(|quota| limit("cpu.quota", quota, "-1").map(|quota| Write::new(directory, "cpu.cfs_quota_us", &quota)))
        .transpose()?;
    let period = set(asked.period()).map(|period| Write::new(directory, "cpu.cfs_period_us", &period));
    let bandwidth = quota_and_period(quota, period, current(directory, "cpu.cfs_period_us"));
    let burst = asked.burst().map(|burst| Write::new(directory, "cpu.cfs_burst_us", &burst));
    writes.extend(with_burst(bandwidth, burst, current(directory, "cpu.cfs_burst_us")));
    let runtime = set(asked.realtime_runtime()).map(|runtime| Write::new(directory, "cpu.rt_runtime_us", &runtime));
    let period = set(asked.realtime_period()).map(|period| Write::new(directory, "cpu.rt_period_us", &period));
    writes.extend(quota_and_period(runtime, period, current(directory, "cpu.rt_period_us")));
    writes.extend(asked.idle().map(|idle| Write::new(directory, "cpu.idle", &idle)));
    Ok(writes)
}

fn cpuset(directory: &Path, asked: &LinuxCpu) -> Vec<Write> {
    let cpus = set_text(asked.cpus()).map(|cpus| Write::new(directory, "cpuset.cpus", cpus));
    let mems = set_text(asked.mems()).map(|mems| Write::new(directory, "cpuset.mems", mems));
    cpus.into_iter().chain(mems).collect()
}

fn block_io(directory: &Path, asked: &LinuxBlockIo) -> Vec<Write> {
    // The BFQ scheduler has files of its own for what CFQ, gone since 5.0, called the same.
    let scheduler = if directory.join("blkio.bfq.weight").exists() { "blkio.bfq" } else { "blkio" };
    let mut writes = Vec::new();
    if let Some(weight) = set(asked.weight()) {
        writes.push(Write::new(directory, &format!("{scheduler}.weight"), &weight));
    }
    if let Some(weight) = set(asked.leaf_weight()) {
        writes.push(Write::new(directory, "blkio.leaf_weight", &weight));
    }
    for asked in asked.weight_device().iter().flatten() {
        let device = format!("{}:{}", asked.major(), asked.minor());
        let mut keyed = |file: &str, weight: u16| {
            writes.push(Write::keyed(directory, file, &device, &weight.to_string(), "0"));
        };
        if let Some(weight) = set(asked.weight()) {
            keyed(&format!("{scheduler}.weight_device"), weight);
        }
        if let Some(weight) = set(asked.leaf_weight()) {
            keyed("blkio.leaf_weight_device", weight);
        }
    }
    for (file, devices) in [
        ("blkio.throttle.read_bps_device", asked.throttle_read_bps_device()),
        ("blkio.throttle.write_bps_device", asked.throttle_write_bps_device()),
        ("blkio.throttle.read_iops_device", asked.throttle_read_iops_device()),
        ("blkio.throttle.write_iops_device", asked.throttle_write_iops_device()),
    ] {
        writes.extend(devices.iter().flatten().map(|throttle| {
            let device = format!("{}:{}", throttle.major(), throttle.minor());
            Write::keyed(directory, file, &device, &throttle.rate().to_string(), "0")
        }));
    }
    writes
}
