//! Classes: numbers and parameters.

use abi::classes::{ClassKind, class, classes};

use super::{Headers, pointers};
use crate::{exceptions::is_no_pointer_of_class, report::Report};

pub(super) fn compare(headers: &Headers, report: &mut Report) {
    for row in classes() {
        let exported = headers.compiled.classes.iter().find(|class| class.number == u64::from(row.id));
        match headers.compiled.numbers.get(row.name) {
            Some(number) => {
                report.present(row.name);
                report.equal(row.name, "number", u64::from(row.id), *number);
            }
            // Under another name.
            None if exported.is_some() => report.present(row.name),
            None => report.absent(row.name),
        }
        let Some(exported) = exported else { continue };
        if let ClassKind::Refused(..) | ClassKind::Answered(..) = row.kind {
            continue;
        }
        report.fits(row.name, "most bytes of parameters", u64::from(row.params_size), exported.params_size);
        let Some(params) = &exported.params else { continue };
        for field in pointers(&headers.compiled.types.fields_of(params).unwrap_or_default()) {
            let known = is_no_pointer_of_class(params, &field.path);
            report.equal(row.name, &format!("pointer {}.{} is known", params, field.path), true, known);
        }
    }
    for exported in &headers.compiled.classes {
        let row = u32::try_from(exported.number).ok().and_then(class);
        report.equal(&exported.name, "has a row", row.is_some(), true);
    }
}
