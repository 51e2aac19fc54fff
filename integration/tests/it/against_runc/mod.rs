//! The same spec under runc and under egpu: all that a container can see of its making is compared.
//!
//! `EGPU_TEST_SPECS` says how many specs (100), `EGPU_TEST_FIRST_SPEC` with which the first begins
//! (0): the number of a spec makes it. `EGPU_TEST_RUNC` is another runc than the one that
//! `integration/setup-runc.sh` builds.

mod absence;
mod differences;
mod facts;
mod generate;
mod host;
mod profiles;
mod refusals;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use integration::{ContainerBuilder, Node, node::target_directory};
use serde_json::Value;

use self::{differences::Deviation, facts::Facts, host::Host};
use crate::case::{Case, Skip};

pub(crate) fn cases() -> Vec<Case> {
    let cases = vec![
        Case::egpu("against_runc::the_same_spec_makes_the_same_container", same),
        Case::egpu("against_runc::what_is_absent_null_or_empty_means_the_same", absence::same),
        Case::egpu("against_runc::and_in_an_exec", absence::same_of_execs),
        Case::egpu("against_runc::refusals_are_in_words", refusals::are_in_words),
        Case::egpu("against_runc::profiles_that_suffice_under_runc", profiles::that_suffice_under_runc),
        Case::egpu("against_runc::profiles_that_kill", profiles::that_kill),
        Case::egpu("against_runc::profiles_that_let_failures_be_told", profiles::failures_are_told),
    ];
    cases.into_iter().map(|case| case.needing(built).once()).collect()
}

fn runc() -> Option<PathBuf> {
    let given = std::env::var_os("EGPU_TEST_RUNC").map(PathBuf::from);
    given.or_else(|| Some(target_directory()?.join("runc/runc"))).filter(|path| path.exists())
}

fn built() -> Skip {
    runc().map(drop).ok_or_else(|| "no current runc: integration/setup-runc.sh builds one".to_owned())
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect(variable))
}

fn same(node: &Node) {
    differences::assert_documented();
    let runc = runc().unwrap();
    let host = Host::new(node, &runc);
    let (first, count) = (number("EGPU_TEST_FIRST_SPEC", 0), number("EGPU_TEST_SPECS", 100));
    let mut seen = BTreeSet::new();
    let mut unknown = Vec::new();
    let mut refused = 0;
    let mut internal = BTreeSet::new();
    for seed in first..first + count {
        let id = format!("spec{seed}");
        let spec = spec(seed, &host, &node.cgroup_path(&id));
        let run = |builder: ContainerBuilder<'_>| run(builder, &spec, &node.cgroup_path(&id), &host);
        let (theirs, ours) = (run(node.container(&id).runc(&runc)), run(node.container(&id)));
        internal.extend(ours.get("refused").filter(|text| refusals::is_debug_text(text)).cloned());
        refused += u32::from(theirs.contains_key("refused") && ours.contains_key("refused"));
        for deviation in differences::between(&theirs, &ours) {
            match differences::known(&deviation, &spec, &host) {
                Some(row) => drop(seen.insert(row.what)),
                None => unknown.push((seed, deviation)),
            }
        }
    }
    let unseen: Vec<_> = differences::on(&host).filter(|row| !seen.contains(row.what)).collect();
    host.end();
    println!("{count} specs, {refused} of them refused by both; of the known differences, {} were seen", seen.len());
    assert!(internal.is_empty(), "{internal:#?}");
    assert!(unknown.is_empty(), "{}", summary(&unknown));
    // Few specs need not show everything.
    assert!(
        count < 100 || unseen.is_empty(),
        "differences no longer: {:#?}",
        unseen.iter().map(|row| row.what).collect::<Vec<_>>()
    );
}

/// Each deviation once, with some of the specs that show it.
fn summary(deviations: &[(u64, Deviation)]) -> String {
    let mut by_text: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (seed, deviation) in deviations {
        by_text.entry(deviation.to_string()).or_default().push(*seed);
    }
    let lines = by_text.iter().map(|(text, seeds)| {
        format!("{text}\n    specs {:?}{}\n", &seeds[..seeds.len().min(8)], if seeds.len() > 8 { ", ..." } else { "" })
    });
    lines.collect()
}

fn spec(seed: u64, host: &Host<'_>, cgroup: &str) -> Value {
    let mut spec = generate::spec(seed, host, &["sh", "-c", include_str!("probe.sh"), "probe"], cgroup);
    let lists = ["/linux/maskedPaths", "/linux/readonlyPaths"].map(|list| spec.pointer(list).cloned());
    let listed = lists.iter().flatten().flat_map(|list| list.as_array().cloned().unwrap_or_default());
    let mounted = spec["mounts"].as_array().unwrap().iter().map(|mount| mount["destination"].clone());
    let devices = spec["linux"]["devices"].as_array().into_iter().flatten().map(|device| device["path"].clone());
    let paths: BTreeSet<String> = listed
        .chain(mounted)
        .chain(devices)
        .chain([spec["process"]["cwd"].clone()])
        .filter_map(|path| Some(path.as_str()?.to_owned()))
        .collect();
    spec["process"]["args"].as_array_mut().unwrap().extend(paths.into_iter().map(Value::from));
    spec
}

/// Runs a container of this spec to its end.
fn run(builder: ContainerBuilder<'_>, spec: &Value, cgroup: &str, host: &Host<'_>) -> Facts {
    let refused = |status: tonic::Status| Facts::from([("refused".to_owned(), status.message().to_owned())]);
    let mut container = match builder.rootfs(host.image()).edit(|own| *own = spec.clone()).create() {
        Ok(container) => container,
        Err(status) => return refused(status),
    };
    let mut facts = facts::of_cgroups(cgroup);
    let started = container.start();
    if started.is_ok() {
        facts.insert("exit code".to_owned(), container.wait().unwrap().to_string());
    }
    container.delete().unwrap();
    facts.insert("mounts on the host".to_owned(), host.mounted_by_container());
    match started {
        Ok(_) => {
            let output = container.stdio.finish();
            facts.extend(facts::of_output(&output.stdout(), host));
            facts.insert("errors".to_owned(), output.stderr());
            facts
        }
        Err(status) => refused(status),
    }
}
