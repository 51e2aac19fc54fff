//! Controls: numbers, parameters, and what lies in them.

use abi::{
    controls::{ControlRow, ControlRule, control, controls},
    layout::Length,
};

use super::{Headers, compare_files, compare_pointer, pointers};
use crate::{
    driver_source::Followed,
    exceptions::{is_longer_by_now, is_no_client, is_no_pointer_of_control},
    pointer_controls::unnumbered,
    report::Report,
    types::Field,
};

pub(super) fn compare(headers: &Headers, report: &mut Report) {
    for row in controls() {
        let label = format!("{:#010x} {}", row.id, row.name);
        match number_of(headers, &row) {
            Some(number) => {
                report.present(&label);
                report.equal(&label, "number", format!("{:#010x}", row.id), format!("{number:#010x}"));
                compare_params(headers, &row, &label, report);
            }
            None => report.absent(&label),
        }
    }
    for export in &headers.source.exports {
        let label = format!("{:#010x} {}", export.id, export.params.as_deref().unwrap_or("without parameters"));
        let row = control(export.id);
        report.equal(&label, "has a row", row.is_some(), true);
        match row.filter(|row| !is_refused(row)) {
            Some(row) if export.open => compare_meaning(headers, &row, report),
            Some(_) => report.note(&label, "allowed here, and refused by the driver: it is for privileged programs"),
            None => {}
        }
    }
    find_unnumbered(headers, report);
}

/// Finds parameters with a pointer for which the headers name no control.
fn find_unnumbered(headers: &Headers, report: &mut Report) {
    for params in unnumbered(headers) {
        report.differ(&params, "control of these parameters, which hold a pointer", "none", "one without a number");
    }
}

const fn is_refused(row: &ControlRow) -> bool {
    matches!(row.rule, ControlRule::Refuse(..) | ControlRule::Answered(..))
}

/// The control's number in the release; `None`: it does not have the control.
fn number_of(headers: &Headers, row: &ControlRow) -> Option<u64> {
    let own = u64::from(row.id);
    if headers.source.exports.iter().any(|export| export.id == row.id) {
        return Some(own);
    }
    let number = *headers.compiled.numbers.get(row.name)?;
    // In this release the control has a number that another row is about, by now or since before.
    let another = number != own && u32::try_from(number).is_ok_and(|number| control(number).is_some());
    (!another).then_some(number)
}

/// Finds a number that is another control's in this release, which programs may ask, and which the
/// table refuses.
fn compare_meaning(headers: &Headers, row: &ControlRow, report: &mut Report) {
    if headers.compiled.numbers.get(row.name) == Some(&u64::from(row.id)) {
        return;
    }
    let refused = controls().filter(|other| other.id != row.id && is_refused(other));
    for other in refused.filter(|other| headers.compiled.numbers.get(other.name) == Some(&u64::from(row.id))) {
        report.differ(&format!("{:#010x} {}", row.id, row.name), "control of this number", "allowed", other.name);
    }
}

/// Type of a control's parameters: as the driver exports it, or the one of its name.
fn params_of(headers: &Headers, row: &ControlRow) -> Option<String> {
    let exported = headers.source.exports.iter().find(|export| export.id == row.id);
    exported.and_then(|export| export.params.clone()).or_else(|| named_params(headers, row.name))
}

/// Type of parameters that has the name of a control: `NV2080_CTRL_FB_GET_INFO_PARAMS` of
/// `NV2080_CTRL_CMD_FB_GET_INFO`.
pub(crate) fn named_params(headers: &Headers, control: &str) -> Option<String> {
    let candidates = [control.replacen("_CTRL_CMD_", "_CTRL_", 1) + "_PARAMS", format!("{control}_PARAMS")];
    candidates.into_iter().find(|candidate| headers.compiled.types.size_of(candidate).is_some())
}

fn compare_params(headers: &Headers, row: &ControlRow, label: &str, report: &mut Report) {
    let described = !row.pointers.is_empty() || !row.clients.is_empty() || !row.descriptors.is_empty();
    let params = params_of(headers, row);
    let fields = params.as_ref().and_then(|params| headers.compiled.types.fields_of(params));
    let (Some(params), Some(fields)) = (params, fields) else {
        let exported = headers.source.exports.iter().any(|export| export.id == row.id && export.params.is_none());
        if described {
            report.differ(label, "parameters", "described", "no such struct");
        } else if !exported && !is_refused(row) {
            report.unchecked(label, "has no struct of its name, and the driver does not export it");
        }
        return;
    };
    let size = headers.compiled.types.size_of(&params).unwrap_or_default();
    if row.least_params > 0 {
        let least = if is_longer_by_now(&params) { u64::from(row.least_params).min(size) } else { size };
        report.equal(label, &format!("bytes of {params}"), u64::from(row.least_params), least);
    }
    for pointer in row.pointers_in(headers.abi) {
        compare_pointer(report, label, &fields, pointer);
    }
    compare_elements(headers, row, label, &fields, report);
    let own_clients: Vec<u64> = row.clients_in(headers.abi).map(u64::from).collect();
    for at in &own_clients {
        let found = fields.iter().find(|field| field.at == *at && field.size == 4 && names_client(field));
        report.equal(label, &format!("client at {at}"), true, found.is_some());
    }
    let files: Vec<u64> = row.descriptors.iter().map(|descriptor| u64::from(descriptor.at)).collect();
    if is_refused(row) {
        return;
    }
    compare_files(report, label, &fields, &files);
    for field in pointers(&fields).filter(|field| !is_no_pointer_of_control(&params, &field.path)) {
        let ours = row.pointers_in(headers.abi).map(|pointer| u64::from(pointer.at)).find(|at| *at == field.at);
        report.equal(label, &format!("pointer {params}.{}", field.path), ours, Some(field.at));
    }
    let clients = fields.iter().filter(|field| names_client(field) && !is_no_client(&params, &field.path));
    for field in clients {
        let ours = own_clients.iter().find(|at| **at == field.at);
        report.equal(label, &format!("client {params}.{}", field.path), ours, Some(&field.at));
    }
}

fn names_client(field: &Field) -> bool {
    let name = field.path.rsplit('.').next().unwrap_or_default();
    name.starts_with('h') && name.contains("Client")
}

/// Compares how much a pointer of a row points to with what the driver copies.
fn compare_elements(headers: &Headers, row: &ControlRow, label: &str, fields: &[Field], report: &mut Report) {
    for pointer in row.pointers_in(headers.abi) {
        let Some(field) = pointers(fields).find(|field| field.at == u64::from(pointer.at)) else { continue };
        let is_it = |followed: &&Followed| {
            headers.compiled.numbers.get(&followed.control) == Some(&u64::from(row.id))
                && followed.pointer == field.path
        };
        let Some(followed) = headers.source.followed.iter().find(is_it) else {
            report.unchecked(label, &format!("elements of {}: the driver's code does not say", field.path));
            continue;
        };
        let theirs = element_size(headers, &followed.element);
        let count = followed.count.as_deref().and_then(|count| fields.iter().find(|field| field.path == count));
        match pointer.length {
            Length::Counted { at, element, .. } => {
                report.equal(label, &format!("element of {}", field.path), Some(u64::from(element)), theirs);
                if followed.count.is_some() {
                    report.equal(label, "number of elements", Some(u64::from(at)), count.map(|field| field.at));
                } else {
                    report.unchecked(label, &format!("number of elements of {}: computed", field.path));
                }
            }
            Length::Fixed(_) | Length::Squared { .. } => {
                report.unchecked(label, &format!("elements of {}: computed, times {}", field.path, followed.element));
            }
        }
    }
}

/// Bytes of an element as the driver's code has it: `sizeof(TYPE)`, or a number.
fn element_size(headers: &Headers, element: &str) -> Option<u64> {
    match element.strip_prefix("sizeof(").and_then(|rest| rest.strip_suffix(')')) {
        Some(name) => headers.compiled.types.size_of(name.trim()),
        None => element.parse().ok(),
    }
}
