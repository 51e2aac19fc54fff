//! The files that stand for `/dev/nvidia*` where cards are simulated.

use std::{
    collections::BTreeMap,
    fs::{OpenOptions, Permissions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use base::make_directory;

use crate::Inventory;

/// Mode that the driver gives its nodes.
const MODE: u32 = 0o666;

/// Paths of the simulated nodes on the host. Bind-mount it at the place that the field's comment
/// names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimulatedNodes {
    /// `/dev/nvidia<minor>` for each card, by minor number.
    pub cards: BTreeMap<u32, PathBuf>,
    /// `/dev/nvidiactl`.
    pub control: PathBuf,
    /// `/dev/nvidia-uvm`.
    pub uvm: PathBuf,
    /// `/dev/nvidia-uvm-tools`.
    pub uvm_tools: PathBuf,
}

/// A simulated node could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the simulated device node {}", path.display())]
pub struct SimulatedNodesError {
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

/// Creates the files below `<state_dir>/simulated/dev` that are not there yet.
///
/// They are plain files, one for each node, so that the identity of an open file distinguishes the
/// cards as the device number does on real ones; what simulated programs write into those of cards
/// says what work they have. Any number of callers may do this at once.
///
/// # Errors
/// When the state directory cannot be written, or something else than a plain file is in the way.
pub fn make_simulated_nodes(state_dir: &Path, inventory: &Inventory) -> Result<SimulatedNodes, SimulatedNodesError> {
    let directory = state_dir.join("simulated/dev");
    make_directory(&directory, 0o755, 0o755)
        .map_err(|source| SimulatedNodesError { path: directory.clone(), source })?;
    let node = |name: &str| {
        let path = directory.join(name);
        make(&path).map_err(|source| SimulatedNodesError { path: path.clone(), source })?;
        Ok(path)
    };
    let cards = inventory
        .cards
        .iter()
        .map(|card| Ok((card.minor, node(&format!("nvidia{}", card.minor))?)))
        .collect::<Result<_, SimulatedNodesError>>()?;
    Ok(SimulatedNodes {
        cards,
        control: node("nvidiactl")?,
        uvm: node("nvidia-uvm")?,
        uvm_tools: node("nvidia-uvm-tools")?,
    })
}

fn make(path: &Path) -> io::Result<()> {
    // The node itself must not be a link: it is mounted into containers.
    let open = OpenOptions::new().write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW).open(path)?;
    let metadata = open.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something that is not a plain file is in the way"));
    }
    // `open` alone applies the umask.
    if metadata.mode() & 0o7777 == MODE { Ok(()) } else { open.set_permissions(Permissions::from_mode(MODE)) }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt};

    use super::*;
    use crate::simulated::tests::inventory_of;

    #[test]
    fn nodes_are_distinct_and_making_them_again_changes_nothing() {
        let state = tempfile::tempdir().unwrap();
        let inventory = inventory_of(3);
        let first = make_simulated_nodes(state.path(), &inventory).unwrap();
        let inodes = |nodes: &SimulatedNodes| -> Vec<u64> {
            let others = [&nodes.control, &nodes.uvm, &nodes.uvm_tools];
            nodes.cards.values().chain(others).map(|path| fs::metadata(path).unwrap().ino()).collect()
        };
        let before = inodes(&first);
        let mut distinct = before.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 6);
        let again = make_simulated_nodes(state.path(), &inventory).unwrap();
        assert_eq!(again, first);
        assert_eq!(inodes(&again), before);
        assert_eq!(fs::metadata(&first.control).unwrap().mode() & 0o777, 0o666);
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let state = tempfile::tempdir().unwrap();
        let directory = state.path().join("simulated/dev");
        fs::create_dir_all(&directory).unwrap();
        std::os::unix::fs::symlink(state.path().join("elsewhere"), directory.join("nvidia0")).unwrap();
        let error = make_simulated_nodes(state.path(), &inventory_of(1)).unwrap_err();
        assert!(error.to_string().ends_with("simulated/dev/nvidia0"), "{error}");
        assert!(!state.path().join("elsewhere").exists());
    }
}
