//! Tests that cannot run on this machine say so.

use std::{fmt::Display, io::Write as _};

/// Prints the reason for which a test is skipped. Written to standard error itself: libtest
/// captures what macros print when a test passes.
pub(crate) fn skipped(why: impl Display) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {why}\n", thread.name().unwrap_or("a test"));
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}
