//! Strings of a table as places in one text.
//!
//! A program that may be loaded anywhere has its pointers filled in when it starts, and every
//! process keeps a copy of its own of each page that had one. The tables have thousands: written
//! out with them, they would cost each shim on a node 190 KiB. So the tables that people read and
//! edit are constants, which do not get into the program, and what the program has is made of them
//! by the compiler: numbers only, in pages that all processes share.

/// Position of a string in the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    at: u32,
    length: u16,
}

impl Span {
    /// Position of no string.
    pub(super) const NONE: Self = Self { at: 0, length: 0 };

    /// The string; empty when the text is not the one that it was written to.
    pub(super) fn of(self, text: &'static str) -> &'static str {
        let at = usize::try_from(self.at).unwrap_or(usize::MAX);
        text.get(at..at.saturating_add(usize::from(self.length))).unwrap_or_default()
    }
}

/// A text as it is written, when the program is compiled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Writer<const BYTES: usize> {
    bytes: [u8; BYTES],
    used: usize,
}

impl<const BYTES: usize> Writer<BYTES> {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; BYTES], used: 0 }
    }

    /// Appends a string.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "compared with the largest right before; `try_from` is not for constants"
    )]
    pub(super) const fn put(&mut self, string: &str) -> Span {
        assert!(self.used <= u32::MAX as usize && string.len() <= u16::MAX as usize, "longer than a span can tell");
        let span = Span { at: self.used as u32, length: string.len() as u16 };
        let (_, rest) = self.bytes.split_at_mut(self.used);
        let (place, _) = rest.split_at_mut(string.len());
        place.copy_from_slice(string.as_bytes());
        self.used += string.len();
        span
    }

    /// Returns the text, which must be as long as was computed before.
    pub(super) const fn done(self) -> [u8; BYTES] {
        assert!(self.used == BYTES, "the text's length was reckoned otherwise");
        self.bytes
    }
}

/// The bytes that a [`Writer`] wrote. For constants only.
#[expect(clippy::panic, reason = "stops the compiler, not the program")]
pub(super) const fn text(bytes: &'static [u8]) -> &'static str {
    match str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => panic!("whole strings were written"),
    }
}

/// Returns whether two strings are equal: `==` is not for constants.
pub(super) const fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}
