//! Result of comparing the tables with one release.

use std::{collections::BTreeSet, fmt};

/// Result of one release.
#[derive(Debug)]
pub(crate) struct Report {
    /// Name of the release.
    release: String,
    /// Rows that the release has.
    present: BTreeSet<String>,
    /// Rows that it does not have.
    absent: BTreeSet<String>,
    /// Numbers, sizes, offsets and pointers that were compared.
    compared: usize,
    differences: Vec<Difference>,
    /// Facts of rows in the release that could not be compared, and why.
    unchecked: Vec<String>,
    notes: Vec<String>,
    /// Bytes that a row reserves, and those that this release needs.
    reserved: Vec<(String, u64, u64)>,
}

/// A fact that the release has otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) row: String,
    pub(crate) fact: String,
    pub(crate) ours: String,
    pub(crate) theirs: String,
}

impl Report {
    pub(crate) fn new(release: &str) -> Self {
        let (present, absent) = (BTreeSet::new(), BTreeSet::new());
        Self {
            release: release.to_owned(),
            present,
            absent,
            compared: 0,
            differences: Vec::new(),
            unchecked: Vec::new(),
            notes: Vec::new(),
            reserved: Vec::new(),
        }
    }

    /// Records that the release has a row.
    pub(crate) fn present(&mut self, row: &str) {
        self.present.insert(row.to_owned());
    }

    /// Records that the release does not have a row.
    pub(crate) fn absent(&mut self, row: &str) {
        self.absent.insert(row.to_owned());
    }

    /// Compares a fact.
    pub(crate) fn equal<T: PartialEq + fmt::Debug>(&mut self, row: &str, fact: &str, ours: T, theirs: T) {
        self.compared += 1;
        if ours != theirs {
            self.differ(row, fact, &format!("{ours:?}"), &format!("{theirs:?}"));
        }
    }

    /// Compares bytes that are the most of all releases.
    pub(crate) fn fits(&mut self, row: &str, fact: &str, ours: u64, theirs: u64) {
        self.equal(row, fact, ours.max(theirs), ours);
        self.reserved.push((row.to_owned(), ours, theirs));
    }

    /// Rows that reserve more bytes than any of the releases needs.
    pub(crate) fn too_large(reports: &[Self]) -> BTreeSet<&str> {
        let reserved = || reports.iter().flat_map(|report| &report.reserved);
        let is_needed = |row: &str| reserved().any(|(other, ours, theirs)| other == row && ours == theirs);
        reserved().map(|(row, ..)| row.as_str()).filter(|row| !is_needed(row)).collect()
    }

    /// Records a difference.
    pub(crate) fn differ(&mut self, row: &str, fact: &str, ours: &str, theirs: &str) {
        let [row, fact, ours, theirs] = [row, fact, ours, theirs].map(str::to_owned);
        self.differences.push(Difference { row, fact, ours, theirs });
    }

    /// Records a fact that could not be compared.
    pub(crate) fn unchecked(&mut self, row: &str, what: &str) {
        self.unchecked.push(format!("{row}: {what}"));
    }

    /// Records a remark about a row that is no difference.
    pub(crate) fn note(&mut self, row: &str, what: &str) {
        self.notes.push(format!("{row}: {what}"));
    }

    /// Differences found.
    pub(crate) fn differences(&self) -> &[Difference] {
        &self.differences
    }

    /// Rows that none of the releases has.
    pub(crate) fn in_none(reports: &[Self]) -> BTreeSet<&str> {
        let absent = reports.iter().flat_map(|report| &report.absent).map(String::as_str);
        absent.filter(|row| reports.iter().all(|report| !report.present.contains(*row))).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { release, compared, .. } = self;
        let [present, absent, differences] = [self.present.len(), self.absent.len(), self.differences.len()];
        writeln!(
            out,
            "{release}: {present} rows compared, in {compared} facts; {absent} rows not in this release; \
             {differences} differences; {} not comparable",
            self.unchecked.len()
        )?;
        for Difference { row, fact, ours, theirs } in &self.differences {
            writeln!(out, "  differs: {row}: {fact}: ours {ours}, {release} has {theirs}")?;
        }
        for unchecked in &self.unchecked {
            writeln!(out, "  not comparable: {unchecked}")?;
        }
        for note in &self.notes {
            writeln!(out, "  note: {note}")?;
        }
        Ok(())
    }
}
