//! Files of each format that egpu writes, kept beside the code that reads them.

use std::{env, fs, path::Path};

/// Set to have a new format's fixture written.
const WRITE: &str = "EGPU_WRITE_FIXTURES";

/// Set to have the documents that are made of tables written.
const WRITE_DOCS: &str = "EGPU_WRITE_DOCS";

/// Checks that a page of `docs` is what `make` makes of the one that is there.
#[track_caller]
pub fn is_document(path: &str, make: impl FnOnce(&str) -> String) {
    let committed = fs::read_to_string(path).unwrap_or_default();
    let text = make(&committed);
    if env::var_os(WRITE_DOCS).is_some() {
        return fs::write(path, text).unwrap();
    }
    let first = text.lines().zip(committed.lines()).find(|(now, then)| now != then);
    assert!(committed == text, "{path} is stale, first at {first:?}; {WRITE_DOCS}=1 writes it anew");
}

/// Reads `fixtures/NAME` of the crate whose folder is `of_crate` (`CARGO_MANIFEST_DIR`).
#[track_caller]
pub fn fixture(of_crate: &str, name: &str) -> Vec<u8> {
    let path = Path::new(of_crate).join("fixtures").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Checks that what is written today is the newest format's fixture.
#[track_caller]
pub fn is_fixture(of_crate: &str, name: &str, written: &[u8]) {
    let path = Path::new(of_crate).join("fixtures").join(name);
    if env::var_os(WRITE).is_some() && !path.exists() {
        fs::write(&path, written).unwrap();
    }
    assert!(
        path.exists() && fixture(of_crate, name) == written,
        "what is written is not {}: a change of a format needs its next number, and its fixture, which \
         `{WRITE}=1 cargo test` writes (CONTRIBUTING.md)\n{}",
        path.display(),
        String::from_utf8_lossy(written)
    );
}
