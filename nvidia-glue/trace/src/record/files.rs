//! The driver's open files, by descriptor.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
};

use abi::Node;

/// Open files of the driver's, by process and descriptor, numbered as they are seen.
#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    descriptors: HashMap<i32, BTreeMap<i32, u32>>,
    nodes: BTreeMap<u32, OpenNode>,
    last: u32,
}

/// Node of an open file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenNode {
    /// The node's file name.
    pub(super) name: String,
    pub(super) node: Node,
}

/// A file that is seen for the first time.
pub(super) struct Seen {
    pub(super) file: u32,
    pub(super) is_new: bool,
}

impl OpenFiles {
    pub(super) fn node(&self, file: u32) -> Option<&OpenNode> {
        self.nodes.get(&file)
    }

    /// The open file of a process's descriptor; `None`: none of the driver's.
    pub(super) fn find(&mut self, pid: i32, fd: i32) -> Option<Seen> {
        if let Some(file) = self.descriptors.get(&pid).and_then(|table| table.get(&fd)) {
            return Some(Seen { file: *file, is_new: false });
        }
        let node = node_of(pid, fd).ok().flatten()?;
        Some(match self.same_as(pid, fd, &node) {
            Some(file) => {
                self.set(pid, fd, file);
                Seen { file, is_new: false }
            }
            None => Seen { file: self.add(pid, fd, node), is_new: true },
        })
    }

    /// Adds a descriptor that has just been opened; `None`: it is none of the driver's.
    pub(super) fn opened(&mut self, pid: i32, fd: i32) -> Option<u32> {
        let node = node_of(pid, fd).ok().flatten()?;
        Some(self.add(pid, fd, node))
    }

    fn add(&mut self, pid: i32, fd: i32, node: OpenNode) -> u32 {
        self.last += 1;
        self.nodes.insert(self.last, node);
        self.set(pid, fd, self.last);
        self.last
    }

    fn set(&mut self, pid: i32, fd: i32, file: u32) {
        self.descriptors.entry(pid).or_default().insert(fd, file);
    }

    /// A descriptor that came over a socket, or from before: is it another one's file?
    fn same_as(&self, pid: i32, fd: i32, node: &OpenNode) -> Option<u32> {
        let of_node = |file: &u32| self.nodes.get(file) == Some(node);
        self.descriptors
            .iter()
            .flat_map(|(other, table)| table.iter().map(move |(at, file)| (*other, *at, *file)))
            .find_map(|(other, at, file)| {
                let is_same = of_node(&file) && driver::share_open_file((pid, fd), (other, at)).unwrap_or(false);
                is_same.then_some(file)
            })
    }

    /// Makes `to` a duplicate of `from`. Returns the files that nobody has any more.
    pub(super) fn duplicated(&mut self, pid: i32, from: i32, to: i32) -> Vec<u32> {
        let file = self.descriptors.get(&pid).and_then(|table| table.get(&from)).copied();
        let closed = if from == to { Vec::new() } else { self.closed(pid, to, to) };
        if let Some(file) = file {
            self.set(pid, to, file);
            return closed.into_iter().filter(|other| *other != file).collect();
        }
        closed
    }

    /// Closes descriptors `first` to `last`. Returns the files that nobody has any more.
    pub(super) fn closed(&mut self, pid: i32, first: i32, last: i32) -> Vec<u32> {
        let Some(table) = self.descriptors.get_mut(&pid) else { return Vec::new() };
        let kept = table.clone().into_iter().filter(|(fd, _)| !(first..=last).contains(fd)).collect();
        *table = kept;
        self.unheld()
    }

    /// Copies the descriptors of a parent to its child. Returns whether any of the driver's are
    /// among them.
    pub(super) fn inherited(&mut self, parent: i32, child: i32) -> bool {
        let Some(table) = self.descriptors.get(&parent).filter(|table| !table.is_empty()).cloned() else {
            return false;
        };
        self.descriptors.insert(child, table);
        true
    }

    /// Drops the descriptors that were closed on exec. Returns the files that nobody has any more.
    pub(super) fn executed(&mut self, pid: i32) -> Vec<u32> {
        if let Some(table) = self.descriptors.get_mut(&pid) {
            table.retain(|fd, _| matches!(node_of(pid, *fd), Ok(Some(_))));
        }
        self.unheld()
    }

    /// Drops the descriptors of a process that has ended. Returns the files that nobody has any
    /// more.
    pub(super) fn ended(&mut self, pid: i32) -> Vec<u32> {
        self.descriptors.remove(&pid);
        self.unheld()
    }

    /// Files without a descriptor, which are then forgotten.
    fn unheld(&mut self) -> Vec<u32> {
        let is_held = |file: &u32| self.descriptors.values().any(|table| table.values().any(|held| held == file));
        let unheld: Vec<u32> = self.nodes.keys().filter(|file| !is_held(file)).copied().collect();
        for file in &unheld {
            self.nodes.remove(file);
        }
        unheld
    }
}

/// Node that a descriptor is open on, by the file's name, so that a simulated card's nodes are seen
/// as well; the calls themselves tell what they are.
fn node_of(pid: i32, fd: i32) -> io::Result<Option<OpenNode>> {
    let path = fs::read_link(format!("/proc/{pid}/fd/{fd}"))?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name = name.trim_end_matches(" (deleted)").to_owned();
    Ok(by_name(&name).map(|node| OpenNode { name, node }))
}

fn by_name(name: &str) -> Option<Node> {
    match name {
        "nvidiactl" => Some(Node::Control),
        "nvidia-uvm" => Some(Node::Uvm),
        _ => {
            let number = name.strip_prefix("nvidia")?;
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| number.parse().ok().map(Node::Card)).flatten()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsRawFd};

    use super::*;

    #[test]
    fn nodes_are_identified_by_their_names() {
        assert_eq!(by_name("nvidiactl"), Some(Node::Control));
        assert_eq!(by_name("nvidia12"), Some(Node::Card(12)));
        assert_eq!(by_name("nvidia-uvm"), Some(Node::Uvm));
        for other in ["nvidia", "nvidia-uvm-tools", "nvidia-modeset", "nvidia1x", "nvidia+1", "null"] {
            assert_eq!(by_name(other), None, "{other}");
        }
    }

    #[test]
    fn a_file_is_closed_with_its_last_descriptor() {
        let directory = tempfile::tempdir().unwrap();
        let open = || File::create(directory.path().join("nvidiactl")).unwrap();
        let (first, second) = (open(), open());
        let me = i32::try_from(std::process::id()).unwrap();
        let mut files = OpenFiles::default();
        let one = files.opened(me, first.as_raw_fd()).unwrap();
        let two = files.opened(me, second.as_raw_fd()).unwrap();
        assert_ne!(one, two);
        assert_eq!(files.find(me, first.as_raw_fd()).unwrap().file, one);
        assert_eq!(files.duplicated(me, first.as_raw_fd(), 1000), Vec::<u32>::new());
        assert!(files.inherited(me, 999_999));
        assert!(!files.inherited(999_998, 999_997));
        assert_eq!(files.closed(me, first.as_raw_fd(), first.as_raw_fd()), Vec::<u32>::new());
        assert_eq!(files.closed(me, 0, i32::MAX), Vec::<u32>::new());
        assert_eq!(files.closed(999_999, second.as_raw_fd(), second.as_raw_fd()), [two]);
        assert_eq!(files.ended(999_999), [one]);
        assert_eq!(files.node(one), None);
    }

    #[test]
    fn a_descriptor_over_another_closes_what_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create(directory.path().join("nvidia0")).unwrap();
        let me = i32::try_from(std::process::id()).unwrap();
        let mut files = OpenFiles::default();
        let card = files.opened(me, file.as_raw_fd()).unwrap();
        assert_eq!(files.duplicated(me, 2000, file.as_raw_fd()), [card]);
    }
}
