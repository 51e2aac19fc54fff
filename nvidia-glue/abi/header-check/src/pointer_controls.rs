//! The list of controls whose parameters hold a pointer, `controls/pointer_controls.txt`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use abi::controls::control;

use crate::{
    compare::{Headers, named_params},
    exceptions::UNNUMBERED_CONTROLS,
};

/// Controls of a release with a pointer: those that the driver's code names, those that it exports
/// with such parameters, and those of the headers whose parameters have one.
pub(crate) fn of(headers: &Headers) -> BTreeMap<u32, String> {
    let numbers = &headers.compiled.numbers;
    let id_of = |name: &str| numbers.get(name).and_then(|number| u32::try_from(*number).ok());
    let mut found = BTreeMap::new();
    for name in headers.source.pointing.iter().chain(numbers.keys().filter(|name| named_params_point(headers, name))) {
        if let Some(id) = id_of(name) {
            keep(&mut found, id, name);
        }
    }
    for export in &headers.source.exports {
        if export.params.as_deref().is_some_and(|params| points(headers, params)) {
            let own = numbers.iter().filter(|(_, number)| **number == u64::from(export.id)).map(|(name, _)| name);
            let of_class = own.filter(|name| is_of_class(name, export.id)).min();
            keep(&mut found, export.id, of_class.unwrap_or(&format!("without a name, {:?}", export.params)));
        }
    }
    for (id, name, params) in UNNUMBERED_CONTROLS {
        if points(headers, params) {
            keep(&mut found, id, name);
        }
    }
    found
}

/// Parameters with a pointer whose control has no number in the headers, and no line among
/// [`UNNUMBERED_CONTROLS`]: the type's number within its class is defined, `..._PARAMS_MESSAGE_ID`,
/// the control is not.
pub(crate) fn unnumbered(headers: &Headers) -> Vec<String> {
    let exported = headers.source.exports.iter().filter_map(|export| export.params.clone());
    let named = headers.compiled.numbers.keys().filter_map(|name| named_params(headers, name));
    let reached: BTreeSet<String> = exported.chain(named).collect();
    let listed = |name: &str| UNNUMBERED_CONTROLS.iter().any(|(_, _, params)| *params == name);
    // Beside a struct may be the same as the firmware has it.
    let of_control = |name: &&str| name.contains("_CTRL_") && !name.ends_with("_FINN_PARAMS");
    let is_params =
        |name: &&str| headers.compiled.messages.contains(*name) && !reached.contains(*name) && !listed(name);
    let names =
        headers.compiled.types.names().filter(of_control).filter(is_params).filter(|name| points(headers, name));
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names
}

/// Adds a control, under the name in the tables if it has a row.
fn keep(found: &mut BTreeMap<u32, String>, id: u32, name: &str) {
    let name = control(id).map_or(name, |row| row.name);
    found.entry(id).or_insert_with(|| name.to_owned());
}

/// Returns whether the parameters that have a control's name hold a pointer.
fn named_params_point(headers: &Headers, name: &str) -> bool {
    name.contains("_CTRL_") && named_params(headers, name).is_some_and(|params| points(headers, &params))
}

fn points(headers: &Headers, params: &str) -> bool {
    headers.compiled.types.fields_of(params).is_some_and(|fields| fields.iter().any(|field| field.pointer))
}

/// Returns whether a name is one of the class in a control's number: `NV2080_...` of 0x2080xxxx.
fn is_of_class(name: &str, id: u32) -> bool {
    let class = name.strip_prefix("NV").and_then(|rest| u32::from_str_radix(rest.get(..4)?, 16).ok());
    class.is_none_or(|class| class == id >> 16) && name.contains("_CTRL_")
}

/// The list as it is in the repository.
pub(crate) fn list(controls: &BTreeMap<u32, String>) -> String {
    let mut text = String::new();
    for (id, name) in controls {
        let _ = writeln!(text, "{id:#010x} {name}");
    }
    text
}
