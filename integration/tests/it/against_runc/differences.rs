//! Differences from runc that containers of the usual spec can see. docs/design/libcontainer.md
//! says by the same names what each runtime does.

use std::fmt;

use serde_json::Value;

use super::{facts::Facts, host::Host};

/// A row of the table.
pub(super) struct Difference {
    /// Its name in docs/design/libcontainer.md.
    pub(super) what: &'static str,
    /// True of hosts where it shows.
    shows_on: fn(&Host<'_>) -> bool,
    /// True if a deviation is this one, of a container with this spec.
    covers: fn(&Deviation, &Value) -> bool,
}

const TABLE: &[Difference] = &[
    Difference {
        what: "seccomp filters of containers without a grant",
        shows_on: |_| true,
        covers: |deviation, _| match deviation.fact.as_str() {
            "status Seccomp" => (deviation.runc(), deviation.egpu()) == ("0", "2"),
            "status Seccomp_filters" => {
                deviation.runc().parse::<u32>().is_ok_and(|n| deviation.egpu() == (n + 1).to_string())
            }
            _ => false,
        },
    },
    Difference {
        what: "depth and number of cgroups below a container's own on v2",
        shows_on: |_| true,
        covers: |deviation, _| deviation.fact.contains("/cgroup.max.de") && deviation.runc() == "max",
    },
    Difference {
        what: "`rootfsPropagation` without an `r`",
        shows_on: |_| true,
        covers: |deviation, spec| {
            const WORDS: [&str; 4] = ["private", "slave", "shared", "unbindable"];
            let is_short = WORDS.iter().any(|word| spec["linux"]["rootfsPropagation"] == *word);
            is_short && (deviation.of_mount("propagation").is_some() || deviation.is("mounts on the host"))
        },
    },
    Difference {
        what: "`rootfsPropagation` `unbindable`",
        shows_on: |_| true,
        covers: |deviation, spec| {
            spec["linux"]["rootfsPropagation"] == "unbindable" && deviation.is("refused") && deviation.egpu.is_none()
        },
    },
    Difference {
        what: "`readonlyPaths` in procfs",
        shows_on: |_| true,
        covers: |deviation, spec| {
            let point = deviation.of_mount("flags").filter(|_| deviation.without(&["nosuid", "nodev", "noexec"]));
            point.is_some_and(|point| point.starts_with("/proc/") && names(&spec["linux"]["readonlyPaths"], point))
        },
    },
    Difference {
        what: "masked directories",
        shows_on: |_| true,
        covers: |deviation, spec| {
            let room = deviation.of_mount("superblock").filter(|_| deviation.without(&["size=4k", "nr_inodes=1"]));
            // runc has one file system for all of them, which is shared once one of them lies on a
            // shared mount.
            let point = room.or(deviation.of_mount("propagation"));
            point.is_some_and(|point| names(&spec["linux"]["maskedPaths"], point))
        },
    },
    Difference {
        what: "`/proc/driver` in a container without a GPU",
        shows_on: |_| true,
        covers: |deviation, _| deviation.fact.starts_with("mount /proc/driver ") && deviation.runc.is_none(),
    },
    Difference {
        what: "`cpu.shares` beside a `cpu.idle` of 1 on v2",
        shows_on: |host| host.is_v2() && host.has_controller("cpu"),
        covers: |deviation, spec| {
            let is_idle = spec["linux"]["resources"]["cpu"]["idle"] == 1;
            is_idle && deviation.is("refused") && deviation.runc().contains("/cpu.weight: invalid argument")
        },
    },
    Difference {
        what: "the name of a hierarchy's mount in a cgroup namespace",
        shows_on: |host| !host.is_v2(),
        covers: |deviation, _| deviation.runc() == "cgroup systemd" && deviation.egpu() == "cgroup cgroup",
    },
    Difference {
        what: "a device of the user or group 4294967295",
        shows_on: |_| true,
        covers: |deviation, spec| {
            let devices = spec["linux"]["devices"].as_array();
            let owners = devices.into_iter().flatten().flat_map(|device| [&device["uid"], &device["gid"]]);
            deviation.is("refused") && deviation.runc.is_none() && owners.into_iter().any(|id| *id == u32::MAX)
        },
    },
    Difference {
        what: "a process without `capabilities`",
        shows_on: |_| true,
        covers: |deviation, spec| {
            let follows =
                ["status Cap", "process timerslack_ns", "path "].iter().any(|fact| deviation.fact.starts_with(fact));
            spec["process"]["capabilities"].is_null() && follows
        },
    },
];

fn names(list: &Value, name: &str) -> bool {
    list.as_array().is_some_and(|list| list.iter().any(|one| one == name))
}

/// A fact that is not the same.
pub(super) struct Deviation {
    fact: String,
    runc: Option<String>,
    egpu: Option<String>,
}

impl Deviation {
    fn is(&self, fact: &str) -> bool {
        self.fact == fact
    }

    fn runc(&self) -> &str {
        self.runc.as_deref().unwrap_or_default()
    }

    fn egpu(&self) -> &str {
        self.egpu.as_deref().unwrap_or_default()
    }

    /// The mount point, if the fact is this one of a mount that both have.
    fn of_mount(&self, what: &str) -> Option<&str> {
        let (point, fact) = self.fact.strip_prefix("mount ")?.rsplit_once(' ')?;
        let both = self.runc.is_some() && self.egpu.is_some();
        (both && fact == what).then(|| point.split(" again").next().unwrap_or(point))
    }

    /// True if the two lists of options are the same but for these.
    fn without(&self, options: &[&str]) -> bool {
        let rest = |list: &str| list.split(',').filter(|one| !options.contains(one)).collect::<Vec<_>>().join(",");
        rest(self.runc()) == rest(self.egpu())
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}\n    runc {:?}\n    egpu {:?}", self.fact, self.runc, self.egpu)
    }
}

/// The facts in which two containers differ. One that was refused has no other facts.
pub(super) fn between(runc: &Facts, egpu: &Facts) -> Vec<Deviation> {
    const REFUSED: &str = "refused";
    let deviation =
        |fact: &String| Deviation { fact: fact.clone(), runc: runc.get(fact).cloned(), egpu: egpu.get(fact).cloned() };
    match (runc.contains_key(REFUSED), egpu.contains_key(REFUSED)) {
        (true, true) => Vec::new(),
        (false, false) => {
            let names = runc.keys().chain(egpu.keys().filter(|name| !runc.contains_key(*name)));
            names.filter(|name| runc.get(*name) != egpu.get(*name)).map(deviation).collect()
        }
        _ => vec![deviation(&REFUSED.to_owned())],
    }
}

/// Fails where docs/design/libcontainer.md does not name a row.
#[track_caller]
pub(super) fn assert_documented() {
    let text = include_str!("../../../../docs/design/libcontainer.md");
    for row in TABLE {
        assert!(text.contains(&format!("\n| {}", row.what)), "docs/design/libcontainer.md has no row `{}`", row.what);
    }
}

/// The rows that show on this host.
pub(super) fn on(host: &Host<'_>) -> impl Iterator<Item = &'static Difference> {
    TABLE.iter().filter(move |row| (row.shows_on)(host))
}

/// The row of a deviation that has one.
pub(super) fn known(deviation: &Deviation, spec: &Value, host: &Host<'_>) -> Option<&'static Difference> {
    on(host).find(|row| (row.covers)(deviation, spec))
}
