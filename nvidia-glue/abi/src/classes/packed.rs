//! The table of classes as the program has it: without pointers, see [`crate::packed`].

use super::{CLASSES, Class, ClassKind};
use crate::{
    Status,
    packed::{Span, Writer, text},
};

/// A row in numbers.
#[derive(Debug, Clone, Copy)]
struct Packed {
    id: u32,
    name: Span,
    kind: Kind,
    params_size: u16,
    header: Span,
}

/// [`ClassKind`] with its strings in the text.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Answered(Status, Span),
    Refused(Status, Span),
    /// None of the two.
    Other(ClassKind),
}

struct Table {
    rows: [Packed; CLASSES.len()],
    text: [u8; TEXT],
}

const TEXT: usize = text_length();
const PACKED: Table = pack();

static ROWS: [Packed; CLASSES.len()] = PACKED.rows;
static BYTES: [u8; TEXT] = PACKED.text;
static STRINGS: &str = text(&BYTES);

/// The row of a class.
pub(super) fn find(id: u32) -> Option<Class> {
    ROWS.binary_search_by_key(&id, |row| row.id).ok().and_then(|at| ROWS.get(at)).map(Packed::class)
}

/// All rows.
pub(super) fn all() -> impl Iterator<Item = Class> {
    ROWS.iter().map(Packed::class)
}

impl Packed {
    fn class(&self) -> Class {
        let kind = match self.kind {
            Kind::Answered(status, reason) => ClassKind::Answered(status, reason.of(STRINGS)),
            Kind::Refused(status, reason) => ClassKind::Refused(status, reason.of(STRINGS)),
            Kind::Other(kind) => kind,
        };
        let (name, header) = (self.name.of(STRINGS), self.header.of(STRINGS));
        Class { id: self.id, name, kind, params_size: self.params_size, header }
    }
}

const fn text_length() -> usize {
    let (mut length, mut at) = (0, 0);
    while at < CLASSES.len() {
        let row = &CLASSES[at];
        length += row.name.len() + row.header.len();
        if let ClassKind::Answered(_, reason) | ClassKind::Refused(_, reason) = row.kind {
            length += reason.len();
        }
        at += 1;
    }
    length
}

const fn pack() -> Table {
    const EMPTY: Packed =
        Packed { id: 0, name: Span::NONE, kind: Kind::Other(ClassKind::Plain), params_size: 0, header: Span::NONE };
    let mut rows = [EMPTY; CLASSES.len()];
    let mut text = Writer::<TEXT>::new();
    let mut at = 0;
    while at < CLASSES.len() {
        let Class { id, name, kind, params_size, header } = CLASSES[at];
        let kind = match kind {
            ClassKind::Answered(status, reason) => Kind::Answered(status, text.put(reason)),
            ClassKind::Refused(status, reason) => Kind::Refused(status, text.put(reason)),
            kind => Kind::Other(kind),
        };
        rows[at] = Packed { id, name: text.put(name), kind, params_size, header: text.put(header) };
        at += 1;
    }
    Table { rows, text: text.done() }
}
