//! Escapes: numbers, sizes, statuses, pointers and descriptors.

use abi::escapes::{Action, ESCAPES, Escape, EscapeLayout};

use super::{Headers, compare_files, compare_pointer, pointers, status_at};
use crate::{
    exceptions::{is_no_file, is_no_pointer_of_escape, is_no_status, structs_of_escape},
    report::Report,
};

pub(super) fn compare(headers: &Headers, report: &mut Report) {
    for row in ESCAPES {
        let Some(number) = headers.compiled.numbers.get(row.name) else {
            report.absent(row.name);
            let taken = row.layouts.iter().any(|layout| layout.releases.contain(headers.abi));
            report.equal(row.name, "in this release", taken, false);
            continue;
        };
        report.present(row.name);
        report.equal(row.name, "number", u64::from(row.number), *number);
        compare_structs(headers, row, report);
    }
}

fn compare_structs(headers: &Headers, row: &Escape, report: &mut Report) {
    let mut layouts: Vec<&EscapeLayout> =
        row.layouts.iter().filter(|layout| layout.releases.contain(headers.abi)).collect();
    if row.layouts.is_empty() {
        return;
    }
    for name in structs_of_escape(row.name) {
        let types = &headers.compiled.types;
        // Some names of types came later; the structs had them before.
        let own = if types.size_of(name).is_some() { name } else { name.trim_end_matches("_t") };
        let (Some(size), Some(fields)) = (types.size_of(own), types.fields_of(own)) else {
            report.differ(row.name, "struct", &format!("{} layouts", layouts.len()), &format!("no {name}"));
            continue;
        };
        let fact = format!("size of {name}");
        let Some(at) = layouts.iter().position(|layout| u64::from(layout.size) == size) else {
            let ours: Vec<u16> = layouts.iter().map(|layout| layout.size).collect();
            report.differ(row.name, &fact, &format!("{ours:?}"), &size.to_string());
            continue;
        };
        let layout = layouts.remove(at);
        report.equal(row.name, &fact, u64::from(layout.size), size);
        let status = status_at(&fields).filter(|_| !is_no_status(name));
        report.equal(row.name, "offset of status", layout.status.map(u64::from), status);
        for pointer in layout.pointers.iter().filter(|pointer| pointer.releases.contain(headers.abi)) {
            compare_pointer(report, row.name, &fields, pointer);
        }
        if matches!(row.action, Action::Execute) {
            for field in pointers(&fields).filter(|field| !is_no_pointer_of_escape(name, &field.path)) {
                let ours = layout.pointers.iter().map(|pointer| u64::from(pointer.at)).find(|at| *at == field.at);
                report.equal(row.name, &format!("pointer {}", field.path), ours, Some(field.at));
            }
        }
        if !matches!(row.action, Action::Refuse(..)) && !is_no_file(name) {
            let files: Vec<u64> = layout.descriptors.iter().map(|descriptor| u64::from(descriptor.at)).collect();
            compare_files(report, row.name, &fields, &files);
        }
    }
    for layout in layouts {
        report.differ(row.name, "struct", &format!("one of {} bytes", layout.size), "none");
    }
}
