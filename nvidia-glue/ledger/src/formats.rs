//! Formats of the ledger's files; CONTRIBUTING.md says how one is changed.

use base::Format;
use runtime_config::request::Dialect;

/// A container's record.
pub(crate) const RECORD: Format = Format::new(5, 1);
/// Oldest format whose readers may act on the record of a claim's request, which stands without
/// a shim.
const CLAIM_RECORD_VERSION: u32 = 3;
/// A card's timetable.
pub(crate) const TIMETABLE: Format = Format::new(2, 1);
/// The cards' settings.
pub(crate) const SETTINGS: Format = Format::new(2, 1);
/// A container that waits for room.
pub(crate) const WAITER: Format = Format::new(3, 1);
/// Oldest formats of records and of waiters whose readers know every language of requests.
const ALL_LANGUAGES: (u32, u32) = (4, 3);

/// Version of the index, which is used by builds of this very one alone, and made anew by all
/// others. That of its own files, below that of the records that it is made from.
pub(crate) const INDEX: u32 = 1000 * RECORD.number + 8;

/// Oldest format whose readers may act on a record.
pub(crate) fn record_version(dialect: Dialect, has_claim: bool) -> u32 {
    if is_of_first_languages(dialect) {
        if has_claim { CLAIM_RECORD_VERSION } else { RECORD.version }
    } else {
        ALL_LANGUAGES.0
    }
}

/// Oldest format whose readers may count with a waiter.
pub(crate) fn waiter_version(dialect: Dialect) -> u32 {
    if is_of_first_languages(dialect) { WAITER.version } else { ALL_LANGUAGES.1 }
}

/// Returns whether readers of the first formats know a language.
fn is_of_first_languages(dialect: Dialect) -> bool {
    match dialect {
        Dialect::Native
        | Dialect::Nvidia
        | Dialect::AlibabaEgpu
        | Dialect::AlibabaCgpu
        | Dialect::CtyunEgpu
        | Dialect::Hami => true,
        Dialect::NvidiaFractions | Dialect::Kai => false,
    }
}
