//! The tables of controls as the program has them: without pointers, see [`crate::packed`].

use super::{ClientField, ControlRow, ControlRule, TABLES};
use crate::{
    layout::{Descriptor, Pointer},
    packed::{Span, Writer, same, text},
};

/// A row in numbers.
#[derive(Debug, Clone, Copy)]
struct Packed {
    id: u32,
    name: Span,
    header: Span,
    /// Index in [`Tables::rules`].
    rule: u8,
    /// Index in [`Tables::fields`].
    fields: u8,
}

/// Pointers, descriptors and clients in the parameters of some controls; most have none.
#[derive(Debug, Clone, Copy)]
struct Fields {
    pointers: &'static [Pointer],
    least_params: u16,
    descriptors: &'static [Descriptor],
    clients: &'static [ClientField],
}

impl Fields {
    const NONE: Self = Self { pointers: &[], least_params: 0, descriptors: &[], clients: &[] };

    const fn of(row: &ControlRow) -> Self {
        let ControlRow { pointers, least_params, descriptors, clients, .. } = *row;
        Self { pointers, least_params, descriptors, clients }
    }

    const fn are_none(&self) -> bool {
        self.pointers.is_empty() && self.least_params == 0 && self.descriptors.is_empty() && self.clients.is_empty()
    }
}

/// Room for the distinct rules, and for the rows that have fields. More of them do not compile.
const MOST: usize = 128;

struct Tables {
    rows: [Packed; ROWS],
    text: [u8; TEXT],
    rules: [ControlRule; MOST],
    fields: [Fields; MOST],
}

const ROWS: usize = first(TABLES.len());
const TEXT: usize = text_length();
const PACKED: Tables = pack();

static PACKED_ROWS: [Packed; ROWS] = PACKED.rows;
static BYTES: [u8; TEXT] = PACKED.text;
static STRINGS: &str = text(&BYTES);
static RULES: [ControlRule; MOST] = PACKED.rules;
static FIELDS: [Fields; MOST] = PACKED.fields;

/// The row of a control in one of the tables, by its index in [`TABLES`].
pub(super) fn find(table: usize, id: u32) -> Option<ControlRow> {
    const BOUNDS: [usize; TABLES.len() + 1] = bounds();
    let rows = PACKED_ROWS.get(*BOUNDS.get(table)?..*BOUNDS.get(table.checked_add(1)?)?)?;
    let at = rows.binary_search_by_key(&id, |row| row.id).ok()?;
    rows.get(at).and_then(Packed::row)
}

/// All rows, by table.
pub(super) fn all() -> impl Iterator<Item = ControlRow> {
    PACKED_ROWS.iter().filter_map(Packed::row)
}

impl Packed {
    /// Unpacks a row. Never `None`: every index was made beside what it leads to.
    fn row(&self) -> Option<ControlRow> {
        let Fields { pointers, least_params, descriptors, clients } = *FIELDS.get(usize::from(self.fields))?;
        Some(ControlRow {
            id: self.id,
            name: self.name.of(STRINGS),
            rule: *RULES.get(usize::from(self.rule))?,
            pointers,
            least_params,
            descriptors,
            clients,
            header: self.header.of(STRINGS),
        })
    }
}

/// Returns the number of rows in the tables before one.
const fn first(table: usize) -> usize {
    let (mut rows, mut at) = (0, 0);
    while at < table {
        rows += TABLES[at].len();
        at += 1;
    }
    rows
}

const fn bounds() -> [usize; TABLES.len() + 1] {
    let mut bounds = [0; TABLES.len() + 1];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = first(at);
        at += 1;
    }
    bounds
}

/// Runs of rows are of one header, which is written once a run.
const fn text_length() -> usize {
    let (mut length, mut header, mut table) = (0, "", 0);
    while table < TABLES.len() {
        let mut at = 0;
        while at < TABLES[table].len() {
            let row = &TABLES[table][at];
            length += row.name.len();
            if !same(header, row.header) {
                header = row.header;
                length += header.len();
            }
            at += 1;
        }
        table += 1;
    }
    length
}

const fn pack() -> Tables {
    const EMPTY: Packed = Packed { id: 0, name: Span::NONE, header: Span::NONE, rule: 0, fields: 0 };
    let mut tables =
        Tables { rows: [EMPTY; ROWS], text: [0; TEXT], rules: [ControlRule::Pass; MOST], fields: [Fields::NONE; MOST] };
    // Number 0 is "passed" and "no fields".
    let (mut rules, mut fields) = (1, 1);
    let mut text = Writer::<TEXT>::new();
    let (mut header, mut header_span) = ("", Span::NONE);
    let (mut packed, mut table) = (0, 0);
    while table < TABLES.len() {
        let mut at = 0;
        while at < TABLES[table].len() {
            let row = &TABLES[table][at];
            let name = text.put(row.name);
            if !same(header, row.header) {
                (header, header_span) = (row.header, text.put(row.header));
            }
            let rule = index_of(&tables.rules, rules, &row.rule);
            if rule == rules {
                tables.rules[rule] = row.rule;
                rules += 1;
            }
            let mut of = 0;
            if !Fields::of(row).are_none() {
                tables.fields[fields] = Fields::of(row);
                of = fields;
                fields += 1;
            }
            tables.rows[packed] = Packed { id: row.id, name, header: header_span, rule: byte(rule), fields: byte(of) };
            packed += 1;
            at += 1;
        }
        table += 1;
    }
    tables.text = text.done();
    tables
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "compared with the largest right before; `try_from` is not for constants"
)]
const fn byte(index: usize) -> u8 {
    assert!(index <= u8::MAX as usize, "more than a byte can tell");
    index as u8
}

/// Returns the rule's index among the first `count`; `count` when it is not there.
const fn index_of(rules: &[ControlRule], count: usize, rule: &ControlRule) -> usize {
    let mut at = 0;
    while at < count && !is(&rules[at], rule) {
        at += 1;
    }
    at
}

/// `==` is not for constants.
const fn is(one: &ControlRule, other: &ControlRule) -> bool {
    match (one, other) {
        (ControlRule::Pass, ControlRule::Pass)
        | (ControlRule::Export, ControlRule::Export)
        | (ControlRule::Import, ControlRule::Import)
        | (ControlRule::Share, ControlRule::Share)
        | (ControlRule::Attach, ControlRule::Attach)
        | (ControlRule::ContextSize, ControlRule::ContextSize) => true,
        (ControlRule::View(one), ControlRule::View(other)) => *one as u8 == *other as u8,
        (ControlRule::Schedule(one), ControlRule::Schedule(other)) => *one as u8 == *other as u8,
        (ControlRule::Answered(one, why), ControlRule::Answered(other, reason))
        | (ControlRule::Refuse(one, why), ControlRule::Refuse(other, reason)) => one.0 == other.0 && same(why, reason),
        _ => false,
    }
}
