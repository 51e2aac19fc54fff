//! The device rules of a container on cgroup v1 in systemd's words (systemd.resource-control(5)),
//! for the scope that it makes: it writes what it knows of them with every `daemon-reload`, and
//! knows of nothing but that all is allowed where no rule was given.
//!
//! systemd has a list of what is allowed. Where that cannot say a rule, less is allowed, as under
//! runc.

use oci_spec::runtime::Spec;
use zbus::zvariant::Value;

use super::{ALL, DeviceFilterError, DeviceKind, MKNOD, READ, Rule, WRITE, rules};
use crate::cgroup::Property;

/// Properties of a scope that hold the rules of `spec`, and those of every container.
pub(crate) fn unit_properties(spec: &Spec) -> Result<Vec<Property>, DeviceFilterError> {
    let resources = spec.linux().as_ref().and_then(|linux| linux.resources().as_ref());
    let given = resources.and_then(|resources| resources.devices().as_deref()).unwrap_or_default();
    let Some(allowed) = allowed(&rules(given)?) else {
        return Ok(vec![("DevicePolicy".to_owned(), Value::from("auto"))]);
    };
    // Without it only what an old systemd wants is missing.
    let drivers = std::fs::read_to_string("/proc/devices").unwrap_or_default();
    let list: Vec<(String, String)> = allowed
        .iter()
        .flat_map(|rule| paths(rule, &drivers).into_iter().map(|path| (path, letters(rule.access))))
        .collect();
    Ok(vec![("DevicePolicy".to_owned(), Value::from("strict")), ("DeviceAllow".to_owned(), Value::from(list))])
}

/// Returns the rules that are left to be allowed; `None` if it is everything.
fn allowed(rules: &[Rule]) -> Option<Vec<Rule>> {
    let mut everything = false;
    let mut list: Vec<Rule> = Vec::new();
    for rule in rules {
        if rule.kind.is_none() {
            // The kernel looks at nothing else then.
            everything = rule.allow;
            list.clear();
        } else if !rule.allow {
            everything = false;
            for other in &mut list {
                if other.overlaps(rule) {
                    other.access &= !rule.access;
                }
            }
        } else if !everything {
            match list.iter_mut().find(|other| other.is_same_device(rule)) {
                Some(other) => other.access |= rule.access,
                None => list.push(*rule),
            }
        }
    }
    list.retain(|rule| rule.access != 0);
    (!everything).then_some(list)
}

impl Rule {
    /// True if some device is meant by both.
    fn overlaps(&self, other: &Rule) -> bool {
        let either = |one: Option<i64>, other: Option<i64>| one.is_none() || other.is_none() || one == other;
        self.kind == other.kind && either(self.major, other.major) && either(self.minor, other.minor)
    }

    /// True if both are about the same devices.
    fn is_same_device(&self, other: &Rule) -> bool {
        (self.kind, self.major, self.minor) == (other.kind, other.major, other.minor)
    }
}

/// systemd has no words for a minor number of every major one. A whole major one has its name, too,
/// by which alone systemd before 240 knows it.
fn paths(rule: &Rule, drivers: &str) -> Vec<String> {
    let (kind, section) = match rule.kind {
        Some(DeviceKind::Block) => ("block", "Block devices:"),
        Some(DeviceKind::Character) => ("char", "Character devices:"),
        None => return Vec::new(),
    };
    match (rule.major, rule.minor) {
        (Some(major), Some(minor)) => vec![format!("/dev/{kind}/{major}:{minor}")],
        (Some(major), None) => {
            let name = driver(drivers, section, major).map(|name| format!("{kind}-{name}"));
            std::iter::once(format!("{kind}-{major}")).chain(name).collect()
        }
        (None, None) => vec![format!("{kind}-*")],
        (None, Some(_)) => Vec::new(),
    }
}

/// The name of a major number, as `/proc/devices` has it, if no other has it.
fn driver<'text>(drivers: &'text str, section: &str, major: i64) -> Option<&'text str> {
    let lines = drivers.lines().skip_while(|line| *line != section).skip(1).take_while(|line| !line.is_empty());
    let all: Vec<(&str, &str)> = lines.filter_map(|line| line.trim_start().split_once(' ')).collect();
    let (_, name) = *all.iter().find(|(number, _)| number.parse() == Ok(major))?;
    (all.iter().filter(|(_, other)| *other == name).count() == 1).then_some(name)
}

fn letters(access: u8) -> String {
    debug_assert!(access & !ALL == 0);
    [(READ, 'r'), (WRITE, 'w'), (MKNOD, 'm')]
        .into_iter()
        .filter(|(bit, _)| access & bit != 0)
        .map(|(_, one)| one)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DRIVERS: &str =
        "Character devices:\n  1 mem\n136 pts\n137 pts\n195 nvidia\n\nBlock devices:\n  7 loop\n195 sd\n";

    const USUAL: &str = "char-* m, /dev/char/1:3 rwm, /dev/char/1:5 rwm, /dev/char/1:7 rwm, /dev/char/1:8 rwm, /dev/char/1:9 rwm, \
                         /dev/char/5:0 rwm, /dev/char/5:2 rwm, char-136 rwm, /dev/char/10:200 rwm, block-* m";

    fn of(rules: &serde_json::Value) -> (String, Option<String>) {
        let spec = json!({ "ociVersion": "1.1.0", "linux": { "resources": { "devices": rules } } });
        let properties = unit_properties(&serde_json::from_value(spec).unwrap()).unwrap();
        let policy = String::try_from(properties[0].1.try_clone().unwrap()).unwrap();
        let list = properties.get(1).map(|(name, list)| {
            assert_eq!(name, "DeviceAllow");
            let mut list: Vec<(String, String)> = list.try_clone().unwrap().try_into().unwrap();
            // This machine's names.
            list.retain(|(path, _)| !["char-pts", "block-loop"].contains(&path.as_str()));
            list.iter().map(|(path, access)| format!("{path} {access}")).collect::<Vec<_>>().join(", ")
        });
        (policy, list)
    }

    #[test]
    fn systemd_gets_what_the_rules_allow() {
        let none = json!({ "allow": false, "access": "rwm" });
        let all = json!({ "allow": true, "access": "rwm" });
        let rule = |allow: bool, kind: &str, major: i64, minor: i64, access: &str| json!({ "allow": allow, "type": kind, "major": major, "minor": minor, "access": access });
        let card = rule(true, "c", 195, 0, "rw");
        for (rules, beside_usual) in [
            (json!([none]), ""),
            (json!([none, card, rule(true, "b", 7, -1, "r")]), "/dev/char/195:0 rw, block-7 r, "),
            // One place in the list for each device.
            (json!([none, card, rule(true, "c", 195, 0, "m")]), "/dev/char/195:0 rwm, "),
            (json!([none, card, rule(false, "c", 195, 0, "w")]), "/dev/char/195:0 r, "),
            (json!([card, none]), ""),
            // What the list cannot say makes it shorter, never longer.
            (json!([none, rule(true, "c", 195, -1, "rw"), rule(false, "c", 195, 1, "rw")]), ""),
            (json!([none, rule(true, "c", -1, 7, "rw")]), ""),
            (json!([all, rule(false, "c", 195, 0, "rwm")]), ""),
        ] {
            let expected = format!("{beside_usual}{USUAL}");
            assert_eq!(of(&rules), ("strict".to_owned(), Some(expected)), "{rules}");
        }
        assert_eq!(of(&json!([none, all])), ("auto".to_owned(), None));
        // A kind of device without numbers is not everything.
        let (policy, list) = of(&json!([none, rule(true, "c", -1, -1, "rwm")]));
        assert_eq!(policy, "strict");
        assert!(list.unwrap().starts_with("char-* rwm, "), "the container's own first");
    }

    #[test]
    fn a_major_number_has_the_name_that_is_its_own() {
        let rule = |kind, major| Rule { allow: true, kind: Some(kind), major: Some(major), minor: None, access: ALL };
        for (kind, major, expected) in [
            (DeviceKind::Character, 195, &["char-195", "char-nvidia"][..]),
            (DeviceKind::Block, 195, &["block-195", "block-sd"]),
            (DeviceKind::Character, 136, &["char-136"]),
            (DeviceKind::Block, 8, &["block-8"]),
        ] {
            assert_eq!(paths(&rule(kind, major), DRIVERS), expected);
        }
        assert_eq!(paths(&rule(DeviceKind::Block, 7), ""), ["block-7"]);
    }
}
