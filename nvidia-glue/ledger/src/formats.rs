//! Formats of the ledger's files; CONTRIBUTING.md says how one is changed.

use base::Format;

/// A container's record.
pub(crate) const RECORD: Format = Format::new(3, 1);
/// Oldest format whose readers may act on the record of a claim's request, which stands without
/// a shim.
pub(crate) const CLAIM_RECORD_VERSION: u32 = 3;
/// A card's timetable.
pub(crate) const TIMETABLE: Format = Format::new(2, 1);
/// The cards' settings.
pub(crate) const SETTINGS: Format = Format::new(2, 1);
/// A container that waits for room.
pub(crate) const WAITER: Format = Format::new(2, 1);

/// Version of the index, which is used by builds of this very one alone, and made anew by all
/// others. That of its own files, below that of the records that it is made from.
pub(crate) const INDEX: u32 = 1000 * RECORD.number + 6;
