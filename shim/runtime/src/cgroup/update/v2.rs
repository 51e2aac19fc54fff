//! cgroup v2: the OCI fields keep v1's meaning and are converted, as runc and crun do.

use std::path::Path;

use oci_spec::runtime::{LinuxBlockIo, LinuxCpu, LinuxMemory, LinuxResources};

use super::{UpdateError, Write, check_in_use, current, huge_page_size, limit, rdma, set, set_text, with_burst};
use crate::cgroup::files;

/// The kernel's own period, microseconds.
const DEFAULT_PERIOD: &str = "100000";

pub(super) fn plan(directory: &Path, resources: &LinuxResources) -> Result<Vec<Write>, UpdateError> {
    let mut plan = Vec::new();
    if let Some(asked) = resources.memory() {
        plan.extend(memory(directory, asked)?);
    }
    if let Some(asked) = resources.cpu() {
        plan.extend(cpu(directory, asked)?);
    }
    if let Some(asked) = resources.pids().as_ref().and_then(|pids| set(Some(pids.limit()))) {
        plan.push(Write::new(directory, "pids.max", &limit("pids.limit", asked, "max")?));
    }
    if let Some(asked) = resources.block_io() {
        plan.extend(block_io(directory, asked)?);
    }
    for asked in resources.hugepage_limits().iter().flatten() {
        let size = huge_page_size(asked.page_size())?;
        let value = limit("hugepageLimits.limit", asked.limit(), "max")?;
        plan.push(Write::new(directory, &format!("hugetlb.{size}.max"), &value));
        let reserved = format!("hugetlb.{size}.rsvd.max");
        if directory.join(&reserved).exists() {
            plan.push(Write::new(directory, &reserved, &value));
        }
    }
    plan.extend(rdma(directory, resources));
    plan.extend(unified(directory, resources)?);
    Ok(plan)
}

fn memory(directory: &Path, asked: &LinuxMemory) -> Result<Vec<Write>, UpdateError> {
    let (memory, swap) = (set(asked.limit()), set(asked.swap()));
    let mut writes = Vec::new();
    if let Some(bytes) = memory
        && asked.check_before_update() == Some(true)
    {
        check_in_use(bytes, directory, "memory.current")?;
    }
    if let Some(swap) = swap_max(memory, swap)? {
        // Without swap accounting there is no file; that nothing is swapped, or no limit is held,
        // is then so anyway.
        if swap != "max" && swap != "0" || directory.join("memory.swap.max").exists() {
            writes.push(Write::new(directory, "memory.swap.max", &swap));
        }
    }
    if let Some(bytes) = memory {
        writes.push(Write::new(directory, "memory.max", &limit("memory.limit", bytes, "max")?));
    }
    if let Some(bytes) = set(asked.reservation()) {
        writes.push(Write::new(directory, "memory.low", &limit("memory.reservation", bytes, "max")?));
    }
    Ok(writes)
}

/// The OCI field counts memory and swap together, `memory.swap.max` swap alone.
fn swap_max(memory: Option<i64>, swap: Option<i64>) -> Result<Option<String>, UpdateError> {
    let invalid =
        |value: i64, accepted| UpdateError::Invalid { field: "memory.swap", value: value.to_string(), accepted };
    match (memory, swap) {
        (Some(-1), None) | (_, Some(-1)) => Ok(Some("max".to_owned())),
        (_, None) => Ok(None),
        (None | Some(..=0), Some(swap)) => {
            Err(invalid(swap, "it counts memory and swap together, so give memory.limit with it"))
        }
        (Some(memory), Some(swap)) if swap < memory => {
            Err(invalid(swap, "it counts memory and swap together, so it cannot be below memory.limit"))
        }
        (Some(memory), Some(swap)) => Ok(Some((swap - memory).to_string())),
    }
}

fn cpu(directory: &Path, asked: &LinuxCpu) -> Result<Vec<Write>, UpdateError> {
    if set(asked.realtime_runtime()).is_some() || set(asked.realtime_period()).is_some() {
        return Err(UpdateError::NeedsV1 { field: "cpu.realtimeRuntime" });
    }
    let mut writes = Vec::new();
    if let Some(idle) = asked.idle() {
        writes.push(Write::new(directory, "cpu.idle", &idle));
    }
    // An idle cgroup has no weight, and the kernel refuses one.
    let idle = asked.idle().unwrap_or_else(|| i64::from(current(directory, "cpu.idle") == Some(1)));
    if let Some(shares) = set(asked.shares()).filter(|_| idle != 1) {
        writes.push(Write::new(directory, "cpu.weight", &weight_of_shares(shares)));
    }
    let (quota, period) = (set(asked.quota()), set(asked.period()));
    let mut bandwidth = Vec::new();
    if quota.is_some() || period.is_some() {
        let now = files::read(&directory.join("cpu.max")).unwrap_or_default();
        let mut now = now.split_ascii_whitespace();
        let (quota_now, period_now) = (now.next().unwrap_or("max"), now.next().unwrap_or(DEFAULT_PERIOD));
        let quota = quota.map(|quota| limit("cpu.quota", quota, "max")).transpose()?;
        let quota = quota.as_deref().unwrap_or(quota_now);
        let period = period.map(|period| period.to_string());
        let period = period.as_deref().unwrap_or(period_now);
        bandwidth.push(Write::new(directory, "cpu.max", &format!("{quota} {period}")));
    }
    let burst = asked.burst().map(|burst| Write::new(directory, "cpu.max.burst", &burst));
    writes.extend(with_burst(bandwidth, burst, current(directory, "cpu.max.burst")));
    writes.extend(set_text(asked.cpus()).map(|cpus| Write::new(directory, "cpuset.cpus", cpus)));
    writes.extend(set_text(asked.mems()).map(|mems| Write::new(directory, "cpuset.mems", mems)));
    Ok(writes)
}

/// v1 shares (2 to 262144, default 1024) as v2 weight (1 to 10000, default 100): the curve that
/// runc 1.3.2, crun and libcontainer use, so that an update to the value at creation changes
/// nothing.
pub(super) fn weight_of_shares(shares: u64) -> u64 {
    match shares {
        0..=2 => 1,
        262_144.. => 10_000,
        // Exact: at most 18 bits.
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "shares has at most 18 bits here, and the result lies between 1 and 10000"
        )]
        shares => {
            let log = (shares as f64).log2();
            let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
            10_f64.powf(exponent).ceil() as u64
        }
    }
}

fn block_io(directory: &Path, asked: &LinuxBlockIo) -> Result<Vec<Write>, UpdateError> {
    let mut writes = Vec::new();
    let bfq = directory.join("io.bfq.weight").exists();
    if let Some(weight) = set(asked.weight()) {
        writes.push(match bfq {
            true => Write::new(directory, "io.bfq.weight", &weight),
            false => Write::new(directory, "io.weight", &io_weight(weight)),
        });
    }
    if set(asked.leaf_weight()).is_some() {
        return Err(UpdateError::NeedsV1 { field: "blockIO.leafWeight" });
    }
    for asked in asked.weight_device().iter().flatten() {
        let device = format!("{}:{}", asked.major(), asked.minor());
        if let Some(weight) = set(asked.weight()) {
            let (file, weight) =
                if bfq { ("io.bfq.weight", u64::from(weight)) } else { ("io.weight", io_weight(weight)) };
            writes.push(Write::keyed(directory, file, &device, &weight.to_string(), "default"));
        }
    }
    for (key, devices) in [
        ("rbps", asked.throttle_read_bps_device()),
        ("wbps", asked.throttle_write_bps_device()),
        ("riops", asked.throttle_read_iops_device()),
        ("wiops", asked.throttle_write_iops_device()),
    ] {
        writes.extend(devices.iter().flatten().map(|throttle| {
            let device = format!("{}:{}", throttle.major(), throttle.minor());
            // No rate at all cannot be meant; on v1 it lifts the limit.
            let rate = if throttle.rate() == 0 { "max".to_owned() } else { throttle.rate().to_string() };
            Write::keyed(
                directory,
                "io.max",
                &device,
                &format!("{key}={rate}"),
                "rbps=max wbps=max riops=max wiops=max",
            )
        }));
    }
    Ok(writes)
}

/// v1 weight (10 to 1000) as v2 weight (1 to 10000), as runc and crun do.
fn io_weight(weight: u16) -> u64 {
    1 + (u64::from(weight).saturating_sub(10)) * 9_999 / 990
}

/// The spec's map of files and values, written as they are.
fn unified(directory: &Path, resources: &LinuxResources) -> Result<Vec<Write>, UpdateError> {
    let mut writes = Vec::new();
    for (file, value) in resources.unified().iter().flatten() {
        if file.contains('/') || !file.contains('.') || file.starts_with('.') {
            return Err(UpdateError::Invalid {
                field: "unified",
                value: format!("{file:?}"),
                accepted: "give the name of a control file of the cgroup, such as \"memory.high\"",
            });
        }
        writes.push(Write::new(directory, file, value));
    }
    writes.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(writes)
}
