//! `egpu inspect`: one container's whole record.

use std::fmt::Write;

use nvidia_glue::{
    ledger::{CardGrant, Enforcement, GrantState, Record},
    usage::Usage,
};
use runtime_config::request::ComputeShare;
use serde::Serialize;

use super::error::CliError;

/// The record of the container whose id is `wanted` or begins with it.
pub(super) fn find<'a>(records: &'a [Record], wanted: &str, namespace: Option<&str>) -> Result<&'a Record, CliError> {
    let in_namespace =
        || records.iter().filter(|record| namespace.is_none_or(|namespace| record.container.namespace == namespace));
    let exact: Vec<&Record> = in_namespace().filter(|record| record.container.id == wanted).collect();
    let candidates = if exact.is_empty() {
        in_namespace().filter(|record| !wanted.is_empty() && record.container.id.starts_with(wanted)).collect()
    } else {
        exact
    };
    match candidates.as_slice() {
        [] => Err(CliError::NoSuchContainer { wanted: wanted.to_owned() }),
        [record] => Ok(record),
        several => Err(CliError::Ambiguous {
            wanted: wanted.to_owned(),
            candidates: several
                .iter()
                .map(|record| format!("{} ({})", record.container, record.container.containerd))
                .collect(),
        }),
    }
}

/// A container's record, and what its mediator tells.
#[derive(Debug, Serialize)]
pub(super) struct Inspected<'a> {
    #[serde(flatten)]
    pub(super) record: &'a Record,
    /// Null where it has no mediator.
    pub(super) usage: Option<Usage>,
}

/// The same for people.
pub(super) fn text(inspected: &Inspected<'_>) -> String {
    let Inspected { record, usage } = inspected;
    let request = &record.request;
    let mut lines: Vec<(&str, String)> = vec![
        ("container", record.container.to_string()),
        ("containerd", record.container.containerd.clone()),
        (
            "state",
            match record.state {
                GrantState::Pending => "reserved, being created".to_owned(),
                GrantState::Bound => "in use".to_owned(),
            },
        ),
        ("init", record.init.map_or_else(|| "-".to_owned(), |init| init.pid.to_string())),
        ("shim", record.shim.pid.to_string()),
        ("mediator", record.mediator.map_or_else(|| "-".to_owned(), |mediator| mediator.pid.to_string())),
        ("grant", record.grant_id.clone()),
        ("admitted", record.admitted_at.clone()),
        ("order", record.order.to_string()),
    ];
    lines.extend(record.cgroups.iter().map(|cgroup| ("cgroup", cgroup.clone())));
    lines.push(("asked in", format!("the language of {}", request.dialect)));
    lines.extend(request.asked.iter().map(|asked| ("asked", asked.clone())));
    lines.extend(request.warnings.iter().map(|warning| ("warning", warning.clone())));
    lines.push(("capabilities", request.driver_capabilities.names()));
    lines.push(("may change live", if request.live_update { "yes" } else { "no" }.to_owned()));
    lines.extend(request.group.iter().map(|group| ("group", group.clone())));
    lines.extend(record.cards.iter().map(|grant| ("card", card(grant))));
    lines.extend(usage.iter().flat_map(used));
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<width$}  {value}");
    }
    text
}

fn used(usage: &Usage) -> Vec<(&'static str, String)> {
    let cards = usage.cards.iter().map(|card| {
        let (used, limit, peak) = (card.used.whole_mib(), card.limit.whole_mib(), card.peak.whole_mib());
        ("used", format!("{}: {used}MiB / {limit}MiB, at most {peak}MiB so far", card.uuid))
    });
    let processes = usage.processes.iter().map(|process| {
        let on_card = |(uuid, used): &(String, runtime_config::Bytes)| format!("{}MiB of {uuid}", used.whole_mib());
        let cards: Vec<String> = process.cards.iter().map(on_card).collect();
        let cards = if cards.is_empty() { "nothing".to_owned() } else { cards.join(", ") };
        ("process", format!("{} (in the container {}): {cards}", process.pid, process.pid_in_container))
    });
    let Usage { denials, kills, unknown_passed, unknown_refused, calls, .. } = usage;
    let counts = format!(
        "{calls} calls, {denials} refused for want of memory, {kills} kills, unknown: {unknown_passed} passed and \
         {unknown_refused} refused"
    );
    cards.chain(processes).chain([("driver calls", counts)]).collect()
}

fn card(grant: &CardGrant) -> String {
    let device = grant.mig_uuid.as_ref().unwrap_or(&grant.uuid);
    let held_by = match grant.enforcement {
        Enforcement::WholeCard => return format!("{} {device}: whole, {}", grant.index, grant.memory),
        Enforcement::Monitor => return format!("{} {device}: looks only", grant.index),
        Enforcement::Mig => "by MIG",
        Enforcement::Admission => "at admission; the running program is not held to it",
        Enforcement::Mediated => "by its mediator; shares of time at admission",
    };
    let time = match grant.compute {
        ComputeShare::Unlimited => "no limit of time".to_owned(),
        ComputeShare::Cap { percent, lifted_when_alone: false } => format!("{percent} of its time"),
        ComputeShare::Cap { percent, lifted_when_alone: true } => {
            format!("{percent} of its time while others share it")
        }
        ComputeShare::Weight(weight) => format!("weight {weight}"),
    };
    format!("{} {device}: {} of memory, {time}, policy {}, held {held_by}", grant.index, grant.memory, grant.policy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Exit, test_support};

    #[test]
    fn an_id_or_an_unambiguous_beginning_finds_the_record() {
        let mut records = test_support::node().records;
        for (wanted, found) in [("training", "training"), ("tr", "training"), ("whole", "whole")] {
            assert_eq!(find(&records, wanted, None).unwrap().container.id, found);
        }
        for wanted in ["", "x", "trainings"] {
            assert_eq!(find(&records, wanted, None).unwrap_err().exit(), Exit::NotFound);
        }
        let mut other = records[0].clone();
        other.container.id = "training-2".to_owned();
        records.push(other);
        assert_eq!(find(&records, "training", None).unwrap().container.id, "training");
        let error = find(&records, "train", None).unwrap_err();
        assert!(error.to_string().contains("default/training (/run/a.sock), default/training-2"), "{error}");
        let mut elsewhere = records[0].clone();
        elsewhere.container.namespace = "k8s.io".to_owned();
        records.push(elsewhere);
        assert!(matches!(find(&records, "training", None), Err(CliError::Ambiguous { .. })));
        assert_eq!(find(&records, "training", Some("k8s.io")).unwrap().container.namespace, "k8s.io");
        assert!(find(&records, "training", Some("moby")).is_err());
    }

    #[test]
    fn the_text_says_what_was_asked_and_granted() {
        let node = test_support::node();
        let usage = Usage { denials: 3, calls: 400, ..Usage::default() };
        let text = text(&Inspected { record: &node.records[0], usage: Some(usage) });
        for line in [
            "container        default/training\n",
            "asked            EGPU=POLICY=0",
            "mediator         -\n",
            "driver calls     400 calls, 3 refused for want of memory, 0 kills",
            "3276MiB of memory, 10% of its time, policy fixed, held by its mediator",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
