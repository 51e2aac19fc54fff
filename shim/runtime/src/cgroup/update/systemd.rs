//! Limits in systemd's words, for a cgroup that it made (org.freedesktop.systemd1(5),
//! systemd.resource-control(5)).

use std::path::Path;

use zbus::zvariant::Value;

use super::Write;
use crate::cgroup::files;

const MICROSECONDS: u64 = 1_000_000;
/// systemd keeps a quota in steps of 10 ms a second, rounded up so that nobody gets less than was
/// asked (as in runc).
const QUOTA_STEP: u64 = 10_000;

/// The kernel's own period on v1, microseconds.
const DEFAULT_PERIOD: &str = "100000";

/// The properties that hold what `plan` writes, as far as this version of systemd knows them.
pub(super) fn properties(plan: &[Write], version: u32) -> Vec<(&'static str, Value<'static>)> {
    let known = |property: &(&'static str, Value<'_>)| match property {
        ("CPUQuotaPeriodUSec", _) => version >= 242,
        ("AllowedCPUs" | "AllowedMemoryNodes", _) => version >= 244,
        (CPU_WEIGHT, weight) => version >= 252 || *weight != IDLE,
        _ => true,
    };
    plan.iter().flat_map(of_file).chain(quota_on_v1(plan)).filter(known).collect()
}

const CPU_WEIGHT: &str = "CPUWeight";
/// A weight of 0 stands for `cpu.idle`. What is not idle has a weight.
const IDLE: Value<'static> = Value::U64(0);

/// The properties that stand for a control file. None for a file that systemd leaves alone, such as
/// `rdma.max`.
fn of_file(write: &Write) -> Vec<(&'static str, Value<'static>)> {
    let file = write.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let number = |name| amount(&write.value).map(|value| (name, Value::from(value))).into_iter().collect();
    let set = |name| bitmap(&write.value).map(|value| (name, Value::from(value))).into_iter().collect();
    match file {
        "memory.max" => number("MemoryMax"),
        "memory.high" => number("MemoryHigh"),
        "memory.low" => number("MemoryLow"),
        "memory.min" => number("MemoryMin"),
        "memory.swap.max" => number("MemorySwapMax"),
        "pids.max" => number("TasksMax"),
        "cpu.weight" => number(CPU_WEIGHT),
        "cpu.idle" if write.value == "1" => vec![(CPU_WEIGHT, IDLE)],
        "cpuset.cpus" => set("AllowedCPUs"),
        "cpuset.mems" => set("AllowedMemoryNodes"),
        "cpu.max" => quota(&write.value).unwrap_or_default(),
        "memory.limit_in_bytes" => number("MemoryLimit"),
        "cpu.shares" => number("CPUShares"),
        "blkio.weight" | "blkio.bfq.weight" => number("BlockIOWeight"),
        _ => Vec::new(),
    }
}

/// systemd's "infinity" is the largest number.
fn amount(value: &str) -> Option<u64> {
    if value == "max" || value == "-1" { Some(u64::MAX) } else { value.parse().ok() }
}

/// v1 has a file for the quota and one for the period; what the plan does not change stays.
fn quota_on_v1(plan: &[Write]) -> Vec<(&'static str, Value<'static>)> {
    const QUOTA: &str = "cpu.cfs_quota_us";
    const PERIOD: &str = "cpu.cfs_period_us";
    let asked = |file: &str| plan.iter().find(|write| write.path.ends_with(file));
    let Some(directory) = asked(QUOTA).or(asked(PERIOD)).and_then(|write| write.path.parent()) else {
        return Vec::new();
    };
    let value = |file: &str, otherwise: &str| match asked(file) {
        Some(write) => write.value.clone(),
        None => current(directory, file).unwrap_or_else(|| otherwise.to_owned()),
    };
    quota(&format!("{} {}", value(QUOTA, "-1"), value(PERIOD, DEFAULT_PERIOD))).unwrap_or_default()
}

fn current(directory: &Path, file: &str) -> Option<String> {
    files::read(&directory.join(file)).ok().map(|text| text.trim().to_owned())
}

/// `QUOTA PERIOD` as time per second, and the period.
fn quota(value: &str) -> Option<Vec<(&'static str, Value<'static>)>> {
    let (quota, period) = value.split_once(' ')?;
    let period: u64 = period.trim().parse().ok().filter(|&period| period > 0)?;
    let per_second = match amount(quota)? {
        u64::MAX => u64::MAX,
        quota => quota.saturating_mul(MICROSECONDS).div_ceil(period).div_ceil(QUOTA_STEP).saturating_mul(QUOTA_STEP),
    };
    Some(vec![("CPUQuotaPerSecUSec", Value::from(per_second)), ("CPUQuotaPeriodUSec", Value::from(period))])
}

/// `0-2,8` as systemd wants it: a bit per number, the lowest first.
fn bitmap(list: &str) -> Option<Vec<u8>> {
    /// Most processors, more than any kernel's CONFIG_NR_CPUS.
    const MOST: usize = 1 << 16;
    let mut bits = Vec::new();
    for range in list.split(',').map(str::trim).filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST {
            return None;
        }
        for number in first..=last {
            let byte = number / 8;
            if bits.len() <= byte {
                bits.resize(byte + 1, 0_u8);
            }
            *bits.get_mut(byte)? |= 1 << (number % 8);
        }
    }
    Some(bits)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn properties_of(file: &str, value: &str) -> Vec<(&'static str, Value<'static>)> {
        of_file(&Write::new(Path::new("/sys/fs/cgroup/x.scope"), file, value))
    }

    #[test]
    fn a_quota_is_rounded_up_to_what_systemd_can_hold() {
        let rows = [
            ("50000 100000", 500_000, 100_000_u64),
            ("150000 100000", 1_500_000, 100_000),
            ("33333 100000", 340_000, 100_000),
            ("max 100000", u64::MAX, 100_000),
            ("1000 50000", 20_000, 50_000),
        ];
        for (value, per_second, period) in rows {
            let expected: Vec<(&str, Value<'_>)> =
                vec![("CPUQuotaPerSecUSec", Value::from(per_second)), ("CPUQuotaPeriodUSec", Value::from(period))];
            assert_eq!(properties_of("cpu.max", value), expected, "{value}");
        }
        assert!(properties_of("cpu.max", "50000 0").is_empty());
    }

    #[test]
    fn processors_are_a_bitmap() {
        assert_eq!(bitmap("0-2,8"), Some(vec![0b0000_0111, 0b0000_0001]));
        assert_eq!(bitmap("15"), Some(vec![0, 0b1000_0000]));
        assert_eq!(bitmap("0-99999999"), None);
        assert_eq!(bitmap("a"), None);
    }

    #[test]
    fn idle_is_a_weight_that_newer_systemd_knows() {
        let plan = |value: &str| [Write::new(Path::new("/x.scope"), "cpu.idle", value)];
        assert_eq!(properties(&plan("1"), 252), vec![("CPUWeight", Value::from(0_u64))]);
        assert!(properties(&plan("1"), 251).is_empty());
        assert!(properties(&plan("0"), 252).is_empty());
        let weight = [Write::new(Path::new("/x.scope"), "cpu.weight", "79")];
        assert_eq!(properties(&weight, 239), vec![("CPUWeight", Value::from(79_u64))]);
    }

    #[test]
    fn a_quota_of_v1_is_sent_as_a_whole() {
        let directory =
            crate::cgroup::testing::directory(&[("cpu.cfs_quota_us", "-1\n"), ("cpu.cfs_period_us", "50000\n")]);
        let write = |file: &str, value: &str| Write::new(directory.path(), file, value);
        let quota = |per_second: u64, period: u64| {
            vec![("CPUQuotaPerSecUSec", Value::from(per_second)), ("CPUQuotaPeriodUSec", Value::from(period))]
        };
        let plan = |writes: Vec<Write>| properties(&writes, 245);
        assert_eq!(
            plan(vec![write("cpu.cfs_period_us", "100000"), write("cpu.cfs_quota_us", "33333")]),
            quota(340_000, 100_000)
        );
        // The other one as it is.
        assert_eq!(plan(vec![write("cpu.cfs_quota_us", "25000")]), quota(500_000, 50_000));
        assert_eq!(plan(vec![write("cpu.cfs_period_us", "20000")]), quota(u64::MAX, 20_000));
        let old = properties(&[write("cpu.cfs_quota_us", "25000"), write("cpuset.cpus", "0")], 239);
        assert_eq!(old, quota(500_000, 50_000)[..1]);
        assert!(plan(vec![write("cpu.cfs_burst_us", "5")]).is_empty());
    }

    #[test]
    fn only_limits_that_systemd_holds_are_sent() {
        assert_eq!(properties_of("memory.max", "max"), vec![("MemoryMax", Value::from(u64::MAX))]);
        assert_eq!(properties_of("pids.max", "12"), vec![("TasksMax", Value::from(12_u64))]);
        assert_eq!(properties_of("memory.limit_in_bytes", "-1"), vec![("MemoryLimit", Value::from(u64::MAX))]);
        assert_eq!(properties_of("cpu.shares", "512"), vec![("CPUShares", Value::from(512_u64))]);
        assert_eq!(properties_of("blkio.weight", "300"), vec![("BlockIOWeight", Value::from(300_u64))]);
        assert!(properties_of("rdma.max", "mlx5_0 hca_handle=1 hca_object=max").is_empty());
    }
}
