//! The group that may read the node's state: `state_group` of the configuration.
//!
//! The state directory has the group and the set-group-ID bit, so that what any program makes in it
//! has the group, too. What the group may read of it, the modes say.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::{MetadataExt, PermissionsExt, lchown},
    path::{Path, PathBuf},
};

use base::make_directory;
use runtime_config::Config;

const SET_GROUP_ID: u32 = 0o2000;
/// Directories of the state directory in which there is something for the group.
const READABLE: [&str; 5] = ["ledger", "timetable", "waiting", "events", "inject"];

/// The group cannot be given the state.
#[derive(Debug, thiserror::Error)]
pub enum StateGroupError {
    /// It does not exist.
    #[error("state_group = {name:?}: there is no such group in /etc/group; make it, or name another")]
    Unknown {
        /// As configured.
        name: String,
    },
    /// A file.
    #[error("cannot give {} to the group {gid} of state_group", path.display())]
    Give {
        path: PathBuf,
        /// The group.
        gid: u32,
        #[source]
        source: io::Error,
    },
}

/// Returns the number of the configured group; root's if there is none.
///
/// # Errors
/// When `/etc/group` does not have it.
pub fn gid(config: &Config) -> Result<u32, StateGroupError> {
    let name = config.state_group.as_str();
    let groups = || fs::read_to_string("/etc/group").unwrap_or_default();
    let found = match (name, name.parse()) {
        ("", _) => Some(0),
        (_, Ok(gid)) => Some(gid),
        _ => groups()
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.split(':').nth(1)?.parse().ok()),
    };
    found.ok_or_else(|| StateGroupError::Unknown { name: name.to_owned() })
}

/// Creates the state directory, if it is missing, and gives what is in it to the configured group,
/// if another has it.
///
/// # Errors
/// When the group does not exist, or files cannot be given to it.
pub(crate) fn apply(config: &Config) -> Result<(), StateGroupError> {
    let (directory, gid) = (&config.state_dir, gid(config)?);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| StateGroupError::Give { path, gid, source }
    };
    make_directory(directory, 0o711, 0o711).map_err(failed(directory))?;
    let is_given = |metadata: fs::Metadata| {
        metadata.gid() == gid && (gid == 0 || metadata.permissions().mode() & SET_GROUP_ID != 0)
    };
    if fs::metadata(directory).map(is_given).map_err(failed(directory))? {
        return Ok(());
    }
    for path in READABLE.map(|name| directory.join(name)).iter().filter(|path| path.is_dir()) {
        give(path, gid).map_err(failed(path))?;
    }
    // Its own files, and last itself: whoever finds that it is given has nothing more to do.
    for entry in entries(directory).filter(|path| path.is_file()) {
        lchown(&entry, None, Some(gid)).map_err(failed(&entry))?;
    }
    give_directory(directory, gid).map_err(failed(directory))
}

fn give(directory: &Path, gid: u32) -> io::Result<()> {
    for path in entries(directory) {
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => give(&path, gid)?,
            Ok(_) => lchown(&path, None, Some(gid)).or_else(gone)?,
            Err(error) => gone(error)?,
        }
    }
    give_directory(directory, gid).or_else(gone)
}

/// Not an error: others remove what they have made.
fn gone(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn give_directory(directory: &Path, gid: u32) -> io::Result<()> {
    lchown(directory, None, Some(gid))?;
    let mode = fs::metadata(directory)?.permissions().mode();
    let bit = if gid == 0 { 0 } else { SET_GROUP_ID };
    fs::set_permissions(directory, Permissions::from_mode(mode & !SET_GROUP_ID & 0o7777 | bit))
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_and_what_comes_has_the_configured_group() {
        let parent = tempfile::tempdir().unwrap();
        let state_dir = parent.path().join("state");
        let mut config = Config { state_dir: state_dir.clone(), ..Config::default() };
        if fs::write(parent.path().join("probe"), "")
            .and_then(|()| lchown(parent.path().join("probe"), None, Some(4242)))
            .is_err()
        {
            return testing::skipped("a group is given files: only root can");
        }
        apply(&config).unwrap();
        fs::create_dir_all(state_dir.join("inject/grant")).unwrap();
        fs::write(state_dir.join("inject/grant/usage"), "").unwrap();
        for gid in [4242, 0] {
            config.state_group = gid.to_string();
            apply(&config).unwrap();
            let name = format!("inject/of{gid}");
            fs::create_dir(state_dir.join(&name)).unwrap();
            fs::write(state_dir.join(&name).join("usage"), "").unwrap();
            for path in ["", "inject", "inject/grant", "inject/grant/usage", &name, &format!("{name}/usage")] {
                assert_eq!(fs::metadata(state_dir.join(path)).unwrap().gid(), gid, "{path:?}");
            }
        }
        assert_eq!(fs::metadata(&state_dir).unwrap().permissions().mode() & 0o7777, 0o711);
    }

    #[test]
    fn a_group_is_found_by_its_name_and_number() {
        let gid = |name: &str| gid(&Config { state_group: name.to_owned(), ..Config::default() });
        assert_eq!((gid("").unwrap(), gid("root").unwrap(), gid("4242").unwrap()), (0, 0, 4242));
        assert!(matches!(gid("no-such-group"), Err(StateGroupError::Unknown { .. })));
    }
}
