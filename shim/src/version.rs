//! Version of this build.

use std::sync::LazyLock;

/// Number of the release, as in Cargo.toml.
pub const NUMBER: &str = env!("CARGO_PKG_VERSION");

/// Commit that this was built from, with `-dirty` behind it where files had changed since; empty:
/// who built it did not say.
pub const REVISION: &str = match option_env!("EGPU_REVISION") {
    Some(revision) => revision,
    None => "",
};

/// Returns number and commit for people: `0.1.0 (12cae4f8a0b1)`.
pub fn text() -> &'static str {
    static TEXT: LazyLock<String> =
        LazyLock::new(|| if REVISION.is_empty() { NUMBER.to_owned() } else { format!("{NUMBER} ({REVISION})") });
    &TEXT
}
