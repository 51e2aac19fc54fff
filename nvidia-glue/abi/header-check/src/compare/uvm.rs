//! Commands of UVM: numbers, sizes, statuses and descriptors.

use abi::uvm::{UVM_COMMANDS, UvmCommand, UvmRule};

use super::{Headers, pointers, status_at};
use crate::report::Report;

pub(super) fn compare(headers: &Headers, report: &mut Report) {
    for row in UVM_COMMANDS {
        let layout = row.layout(headers.abi);
        let number = headers.compiled.numbers.get(row.name);
        if let Some(number) = number {
            report.equal(row.name, "number", u64::from(row.command), *number);
        }
        let routed = headers.source.uvm_commands.contains(row.name);
        match (number, layout) {
            (Some(_), Some(_)) => report.present(row.name),
            // Refused in every release.
            (Some(_), None) if row.layouts.is_empty() => report.present(row.name),
            (Some(_), None) => {
                report.absent(row.name);
                report.equal(row.name, "taken by the driver", false, routed);
                continue;
            }
            (None, _) => {
                report.absent(row.name);
                report.equal(row.name, "in this release", layout.is_some(), false);
                continue;
            }
        }
        compare_struct(headers, row, report);
    }
    for name in &headers.source.uvm_commands {
        report.equal(name, "has a row", UVM_COMMANDS.iter().any(|row| row.name == name), true);
    }
}

fn compare_struct(headers: &Headers, row: &UvmCommand, report: &mut Report) {
    let Some(layout) = row.layout(headers.abi).filter(|layout| layout.size > 0) else { return };
    let name = format!("{}_PARAMS", row.name);
    let (Some(size), Some(fields)) = (headers.compiled.types.size_of(&name), headers.compiled.types.fields_of(&name))
    else {
        report.differ(row.name, "struct", &format!("{} bytes", layout.size), &format!("no {name}"));
        return;
    };
    report.equal(row.name, "size", u64::from(layout.size), size);
    report.equal(row.name, "offset of status", layout.status.map(u64::from), status_at(&fields));
    let files = layout.descriptors.iter().map(|descriptor| u64::from(descriptor.at)).collect::<Vec<_>>();
    super::compare_files(report, row.name, &fields, &files);
    if row.rule == UvmRule::Execute {
        let found: Vec<_> = pointers(&fields).map(|field| field.path.as_str()).collect();
        report.equal(row.name, "pointers", Vec::<&str>::new(), found);
    }
}
