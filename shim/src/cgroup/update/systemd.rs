//! Limits in systemd's words, for a cgroup that it made (org.freedesktop.systemd1(5), systemd.resource-control(5)).

use zbus::zvariant::Value;

use super::Write;

const MICROSECONDS: u64 = 1_000_000;
/// systemd keeps a quota in steps of 10 ms a second, rounded up so that nobody gets less than was asked (as in runc).
const QUOTA_STEP: u64 = 10_000;

/// The properties that hold what `plan` writes.
pub(super) fn properties(plan: &[Write]) -> Vec<(&'static str, Value<'static>)> {
    plan.iter().flat_map(of_file).collect()
}

/// The properties that stand for a control file. None for a file that systemd leaves alone, such as `rdma.max`.
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
        "cpu.weight" => number("CPUWeight"),
        "cpuset.cpus" => set("AllowedCPUs"),
        "cpuset.mems" => set("AllowedMemoryNodes"),
        "cpu.max" => quota(&write.value).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// systemd's "infinity" is the largest number.
fn amount(value: &str) -> Option<u64> {
    if value == "max" { Some(u64::MAX) } else { value.parse().ok() }
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
    /// More than any kernel's CONFIG_NR_CPUS.
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

    fn told(file: &str, value: &str) -> Vec<(&'static str, Value<'static>)> {
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
            assert_eq!(told("cpu.max", value), expected, "{value}");
        }
        assert!(told("cpu.max", "50000 0").is_empty());
    }

    #[test]
    fn processors_are_a_bitmap() {
        assert_eq!(bitmap("0-2,8"), Some(vec![0b0000_0111, 0b0000_0001]));
        assert_eq!(bitmap("15"), Some(vec![0, 0b1000_0000]));
        assert_eq!(bitmap("0-99999999"), None);
        assert_eq!(bitmap("a"), None);
    }

    #[test]
    fn only_limits_that_systemd_holds_are_told() {
        assert_eq!(told("memory.max", "max"), vec![("MemoryMax", Value::from(u64::MAX))]);
        assert_eq!(told("pids.max", "12"), vec![("TasksMax", Value::from(12_u64))]);
        assert!(told("rdma.max", "mlx5_0 hca_handle=1 hca_object=max").is_empty());
    }
}
