//! Making the directories that programs of egpu share.

use std::{
    fs::DirBuilder,
    io::{self, ErrorKind},
    os::unix::fs::DirBuilderExt,
    path::Path,
};

/// Makes a directory with `mode` if it is not there, and those above it with `parent_mode`.
///
/// # Errors
/// As those of `mkdir`; where something else is in the way, whoever uses it gets the error.
pub fn make_directory(directory: &Path, mode: u32, parent_mode: u32) -> io::Result<()> {
    let make = || DirBuilder::new().mode(mode).create(directory);
    let made = match make() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = directory.parent().unwrap_or(directory);
            DirBuilder::new().recursive(true).mode(parent_mode).create(parent)?;
            make()
        }
        made => made,
    };
    match made {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}
