//! Tests that cannot run on this machine say so.

use std::{fmt::Display, io::Write as _};

/// Says why a test is skipped. Written to standard error itself: what macros print is kept back
/// when a test passes.
pub fn skipped(why: impl Display) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {why}\n", thread.name().unwrap_or("a test"));
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}
