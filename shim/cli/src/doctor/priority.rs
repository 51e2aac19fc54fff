//! Check that the threads that begin and end turns have a real-time priority.

use std::{fs, path::Path};

use ledger::{ContainerName, Record};
use runtime_config::Config;
use schedule::ThreadPriority;

use super::{Check, state};
use crate::schedules::Schedules;

const PRIORITY: &str = "priority";
const NO_BUDGET: &str = "boot with rt_group_sched=0 (kernels of about 6.16 on know it), or a kernel without \
                         CONFIG_RT_GROUP_SCHED; else ShimCgroup = \"/\" in the runtime's options (cgroup v2), or a \
                         high CPUWeight of containerd's unit";

/// Checks it; `None`: nothing shares a card, and the kernel keeps a real-time priority from nobody.
pub(super) fn check(config: &Config) -> Option<Check> {
    let records = state::records(&config.state_dir);
    let (schedules, _) = Schedules::read(&config.state_dir, &records);
    let reported = |record: &Record| {
        Some((ContainerName::from(record).to_string(), schedules.status(record).and_then(|status| status.priority)?))
    };
    let all: Vec<(String, ThreadPriority)> = records.iter().filter_map(reported).collect();
    assess(&all, has_group_budgets(Path::new("/")))
}

fn assess(all: &[(String, ThreadPriority)], has_group_budgets: bool) -> Option<Check> {
    let named = |priority: ThreadPriority| {
        let names: Vec<&str> = all.iter().filter(|(_, own)| *own == priority).map(|(name, _)| name.as_str()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let costs = "on a busy host their turns may begin and end late";
    if let Some(names) = named(ThreadPriority::None) {
        let detail = format!("the schedulers of {names} have no priority: {costs}");
        return Some(Check::warning(PRIORITY, detail, "let containerd's unit have CAP_SYS_NICE"));
    }
    if let Some(names) = named(ThreadPriority::Nice) {
        let detail = format!(
            "the schedulers of {names} have no real-time priority, as the kernel has no real-time budget for the cgroup \
             that the shims are in (CONFIG_RT_GROUP_SCHED): {costs}"
        );
        return Some(Check::warning(PRIORITY, detail, NO_BUDGET));
    }
    if !all.is_empty() {
        return Some(Check::ok(PRIORITY, "schedulers have a real-time priority"));
    }
    let detail = "whether schedulers get a real-time priority depends on the shims' cgroup (CONFIG_RT_GROUP_SCHED); no \
                  container runs that tells";
    has_group_budgets.then(|| Check::ok(PRIORITY, detail))
}

/// Returns whether the running kernel has real-time budgets of cgroups, as far as its configuration
/// can be read.
fn has_group_budgets(root: &Path) -> bool {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let release = read("proc/sys/kernel/osrelease");
    let config = read(&format!("boot/config-{}", release.trim()));
    let set = |key: &str| config.lines().any(|line| line.strip_prefix(key) == Some("=y"));
    let said = read("proc/cmdline").split_whitespace().rev().find_map(|word| match word.split_once('=') {
        Some(("rt_group_sched", value)) => Some(value != "0"),
        _ => None,
    });
    set("CONFIG_RT_GROUP_SCHED") && said.unwrap_or(!set("CONFIG_RT_GROUP_SCHED_DEFAULT_DISABLED"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn who_has_none_is_named_with_what_to_do() {
        let of = |priorities: &[ThreadPriority]| {
            let names = ('a'..).map(|name| format!("default/{name}"));
            assess(&names.zip(priorities.iter().copied()).collect::<Vec<_>>(), false)
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[ThreadPriority::RealTime]).unwrap().level, Level::Ok);
        let nice = of(&[ThreadPriority::RealTime, ThreadPriority::Nice, ThreadPriority::Nice]).unwrap();
        assert!(nice.detail.starts_with("the schedulers of default/b, default/c have no real-time"), "{nice:?}");
        assert!(nice.remedy.unwrap().contains("rt_group_sched=0"));
        assert!(of(&[ThreadPriority::None]).unwrap().remedy.unwrap().contains("CAP_SYS_NICE"));
        assert_eq!(assess(&[], true).unwrap().level, Level::Ok, "nobody is known to lack it");
    }

    #[test]
    fn the_kernels_configuration_and_its_command_line_decide() {
        let root = tempfile::tempdir().unwrap();
        let has = |config: &str, line: &str| {
            for (path, text) in
                [("proc/sys/kernel/osrelease", "6.1\n"), ("boot/config-6.1", config), ("proc/cmdline", line)]
            {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            has_group_budgets(root.path())
        };
        let (on, off) =
            ("CONFIG_RT_GROUP_SCHED=y\n", "CONFIG_RT_GROUP_SCHED=y\nCONFIG_RT_GROUP_SCHED_DEFAULT_DISABLED=y\n");
        assert!(has(on, "quiet\n") && has(on, "rt_group_sched=0 rt_group_sched=1\n") && has(off, "rt_group_sched=1\n"));
        assert!(!has(on, "quiet rt_group_sched=0\n") && !has(off, "quiet\n"));
        assert!(!has("# CONFIG_RT_GROUP_SCHED is not set\n", "rt_group_sched=1\n"));
        assert!(!has_group_budgets(Path::new("/nonexistent")), "nothing can be read");
    }
}
