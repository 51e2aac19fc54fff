//! Structs of `rm::params`, and numbers that code names.

use abi::params;

use super::Headers;
use crate::report::Report;

pub(super) fn compare(headers: &Headers, report: &mut Report) {
    for own in params::all() {
        let types = &headers.compiled.types;
        let described = own.releases.contain(headers.abi);
        let (Some(size), Some(fields)) = (types.size_of(own.name), types.fields_of(own.name)) else {
            report.absent(own.name);
            continue;
        };
        if !described {
            let another = params::all().any(|other| other.name == own.name && other.releases.contain(headers.abi));
            if !another {
                report.note(own.name, "its layout here is not described: no code may use it in this release");
            }
            continue;
        }
        report.present(own.name);
        let sizes: Vec<u64> =
            own.other_sizes.iter().chain([&own.size]).filter_map(|size| u64::try_from(*size).ok()).collect();
        if sizes.contains(&size) {
            report.equal(own.name, "size", size, size);
        } else {
            report.differ(own.name, "size", &format!("{sizes:?}"), &size.to_string());
        }
        for field in own.fields {
            let found = fields.iter().find(|found| found.path == field.path);
            let theirs = found.map(|found| (found.at, found.size, found.pointer));
            let ours = [field.at, field.size].map(|number| u64::try_from(number).unwrap_or_default());
            report.equal(
                own.name,
                &format!("{} (offset, bytes, whether a pointer)", field.path),
                Some((ours[0], ours[1], field.pointer)),
                theirs,
            );
        }
    }
    for (name, ours) in super::named_numbers() {
        match headers.compiled.numbers.get(name) {
            Some(theirs) => {
                report.present(name);
                report.equal(name, "number", u64::from(ours), *theirs);
            }
            None => report.absent(name),
        }
    }
}
