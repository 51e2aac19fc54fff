//! Formats of the ledger's files; CONTRIBUTING.md says how one is changed.

use base::Format;

/// A container's record.
pub(crate) const RECORD: Format = Format::new(6, 6);
/// A card's timetable.
pub(crate) const TIMETABLE: Format = Format::new(3, 3);
/// The cards' settings.
pub(crate) const SETTINGS: Format = Format::new(3, 3);
/// A container that waits for room.
pub(crate) const WAITER: Format = Format::new(4, 4);

/// Version of the index, which is used by builds of this very one alone, and made anew by all
/// others: its own number, below the number of the records that it is made from.
pub(crate) const INDEX: u32 = 1000 * RECORD.number + 8;
