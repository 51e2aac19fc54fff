//! Facts of a container, each by its name: all that is compared.

use std::{collections::BTreeMap, fs, path::Path};

use super::host::Host;

/// A fact's name, as `mount /proc flags` or `cgroup cpu.shares`, and what is so.
pub(super) type Facts = BTreeMap<String, String>;

/// Parses the output of `probe.sh`.
pub(super) fn of_output(output: &str, host: &Host<'_>) -> Facts {
    let mut facts = Facts::new();
    let mut section = "";
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("== ") {
            section = name;
            continue;
        }
        match section {
            "mount" => mount(&mut facts, line),
            "status" => status(&mut facts, line),
            "limit" => limit(&mut facts, line),
            "namespace" => {
                let (name, link) = line.split_once(' ').unwrap_or((line, ""));
                let kind = name.trim_end_matches("_for_children");
                facts.insert(format!("namespace {name}"), host.owner(kind, link).to_owned());
            }
            "process" | "sysctl" | "path" => {
                let (name, value) = line.split_once(' ').unwrap_or((line, ""));
                facts.insert(format!("{section} {name}"), value.to_owned());
            }
            // In the order in which they come.
            _ => *facts.entry(section.to_owned()).or_default() += &format!("{line}; "),
        }
    }
    facts
}

/// `36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn mount(facts: &mut Facts, line: &str) {
    let Some((left, right)) = line.split_once(" - ") else { return };
    let (left, right): (Vec<&str>, Vec<&str>) = (left.split(' ').collect(), right.splitn(3, ' ').collect());
    let ([_, _, _, root, point, flags, fields @ ..], [kind, source, superblock]) = (&left[..], &right[..]) else {
        return;
    };
    let again = (0..).find(|n| !facts.contains_key(&format!("mount {} flags", named(point, *n)))).unwrap_or(0);
    let point = named(point, again);
    let mut propagation: Vec<&str> = fields.iter().map(|field| field.split(':').next().unwrap_or_default()).collect();
    propagation.retain(|field| *field != "propagate_from");
    // Directories of its layers have other names each time.
    let superblock = superblock.split(",lowerdir=").next().unwrap_or_default();
    for (what, value) in [
        ("root", (*root).to_owned()),
        ("flags", (*flags).to_owned()),
        ("propagation", propagation.join(" ")),
        ("type", format!("{kind} {source}")),
        ("superblock", superblock.to_owned()),
    ] {
        facts.insert(format!("mount {point} {what}"), value);
    }
}

/// A mount over another one at the same place is another one.
fn named(point: &str, again: usize) -> String {
    if again == 0 { point.to_owned() } else { format!("{point} again{again}") }
}

fn status(facts: &mut Facts, line: &str) {
    const CHANCE: [&str; 13] = [
        "Pid",
        "Tgid",
        "PPid",
        "Ngid",
        "NSpid",
        "NStgid",
        "NSpgid",
        "NSsid",
        "voluntary_ctxt_switches",
        "nonvoluntary_ctxt_switches",
        "State",
        "FDSize",
        "SigQ",
    ];
    /// glibc's own two signals, 32 and 33: ignored or not as whoever started runc had them.
    const OF_GLIBC: u64 = 0b11 << 31;
    let Some((name, value)) = line.split_once(':') else { return };
    if name == "SigIgn"
        && let Ok(ignored) = u64::from_str_radix(value.trim(), 16)
    {
        facts.insert("status SigIgn".to_owned(), format!("{:016x}", ignored & !OF_GLIBC));
    } else if !CHANCE.contains(&name) && !name.starts_with("Vm") && !name.starts_with("Rss") {
        facts.insert(format!("status {name}"), value.split_whitespace().collect::<Vec<_>>().join(" "));
    }
}

/// `Max open files            1024                 524288               files`
fn limit(facts: &mut Facts, line: &str) {
    let Some((name, values)) = line.split_at_checked(26) else { return };
    facts.insert(format!("limit {}", name.trim()), values.split_whitespace().collect::<Vec<_>>().join(" "));
}

/// Every setting in the container's cgroups.
pub(super) fn of_cgroups(cgroup: &str) -> Facts {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path().join(&cgroup[1..]));
    let mut facts = Facts::new();
    for directory in hierarchies.chain([root.join(&cgroup[1..])]) {
        for file in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            if is_setting(&name)
                && let Ok(value) = fs::read_to_string(file.path())
            {
                let hierarchy =
                    directory.strip_prefix(root).ok().and_then(|path| path.iter().next()).unwrap_or_default();
                // The kernel's order of device rules is that of their coming.
                let mut lines: Vec<&str> = value.lines().collect();
                lines.sort_unstable();
                facts.insert(format!("cgroup {}/{name}", hierarchy.display()), lines.join("; "));
            }
        }
    }
    facts
}

/// And no measurement.
fn is_setting(name: &str) -> bool {
    const MEASURED: [&str; 16] = [
        "usage",
        "stat",
        "event",
        "pressure",
        "current",
        "peak",
        "procs",
        "tasks",
        "threads",
        "failcnt",
        "io_serv",
        "pids.max_",
        "slabinfo",
        "effective",
        "reclaim",
        "bfq",
    ];
    !MEASURED.iter().any(|part| name.contains(part))
}
