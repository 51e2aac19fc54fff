//! Attachment of mounts below a container's root, which is not yet its `/`.

use std::{
    fs::{self, Permissions},
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
};

use base::find_in_root;
use nix::{
    mount::{MntFlags, umount2},
    sys::statfs::{PROC_SUPER_MAGIC, fstatfs},
};
use pathrs::{Root, error::ErrorKind};
use rustix::{
    fs::{Mode, OFlags, mkdirat, openat},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, FsPickFlags, OpenTreeFlags, fsconfig_create, fsconfig_reconfigure,
        fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, fspick, open_tree,
    },
};
use sys::{MountAttributes, set_mount_attributes};

use super::{
    DEV, MountKind, MountPlan, PlannedMount, destination,
    options::{Options, Propagation},
    source::Sources,
    tree,
};

/// A mount that could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} the mount {source_text}at {}", destination.display())]
pub(crate) struct AttachError {
    action: &'static str,
    /// `of SOURCE `, where it has one.
    source_text: String,
    destination: PathBuf,
    #[source]
    source: io::Error,
}

/// File systems with one instance for all, whose flags the kernel takes from whoever mounted them
/// last.
const SHARED: [&str; 3] = ["debugfs", "tracefs", "pstore"];

/// Files of procfs that lxcfs stands in for.
const IN_PROC: [&str; 10] = [
    "cpuinfo",
    "diskstats",
    "meminfo",
    "stat",
    "swaps",
    "uptime",
    "loadavg",
    "slabinfo",
    "sys/kernel/ns_last_pid",
    "sys/crypto/fips_enabled",
];

impl MountPlan {
    /// Attaches all in the namespaces that the calling process has joined. `root` is the
    /// container's.
    pub(crate) fn attach<'a>(&'a self, root: &'a Root, sources: Sources) -> Result<Attached<'a>, AttachError> {
        let attacher = Attacher { root, cgroup: &self.cgroup };
        attacher.set_root_propagation(self.root).map_err(failed("set the propagation of", Path::new("/")))?;
        let mut attached = Vec::new();
        for made in &self.made {
            let mount = attacher.complete(made).map_err(failed("set the options of", &made.destination))?;
            attached.push((mount, made));
        }
        if self.dev_is_dummy {
            attacher.unmount(DEV).map_err(failed("undo", Path::new(DEV)))?;
        }
        let mut sources = sources.0.into_iter();
        for planned in &self.planned {
            let tree = if planned.is_bind() { sources.next() } else { None };
            attached.push((attacher.attach(planned, tree)?, planned));
        }
        Ok(Attached { root, mounts: self, attached })
    }
}

/// Mounts in which other things may still be made.
pub(crate) struct Attached<'a> {
    root: &'a Root,
    mounts: &'a MountPlan,
    attached: Vec<(OwnedFd, &'a PlannedMount)>,
}

impl Attached<'_> {
    /// Sets the properties of the mounts that must come last.
    pub(crate) fn complete(self) -> Result<(), AttachError> {
        for (mount, planned) in &self.attached {
            self.spread(mount).map_err(failed("set the propagation of", &planned.destination))?;
            let is_later = self.mounts.has_console && planned.is_dev();
            if is_tmpfs(&planned.kind) && planned.options.is_read_only() && !is_later {
                tree::make_read_only(mount).map_err(failed("make read-only", &planned.destination))?;
            }
        }
        for path in &self.mounts.read_only_paths {
            self.bind_read_only(path).map_err(failed("make read-only", Path::new(path)))?;
        }
        Ok(())
    }

    /// Sets the root's propagation as runc does: on private mounts, too, which then share with
    /// copies of themselves alone.
    fn spread(&self, mount: &OwnedFd) -> io::Result<()> {
        let propagation = self.mounts.root.filter(|root| root.spreads());
        propagation.map_or(Ok(()), |root| set_mount_attributes(mount.as_fd(), true, root.attributes()))
    }

    fn bind_read_only(&self, path: &str) -> io::Result<()> {
        let place = match find_in_root(self.root, Path::new(path), OFlags::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            place => place?,
        };
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let mount = open_tree(&place, "", flags | OpenTreeFlags::AT_RECURSIVE | OpenTreeFlags::AT_EMPTY_PATH)?;
        tree::make_read_only(&mount)?;
        tree::attach(&mount, &place)?;
        self.spread(&mount)
    }
}

fn failed(action: &'static str, destination: &Path) -> impl Fn(io::Error) -> AttachError {
    let destination = destination.to_owned();
    move |source| AttachError { action, source_text: String::new(), destination: destination.clone(), source }
}

fn is_tmpfs(kind: &MountKind) -> bool {
    matches!(kind, MountKind::FileSystem { kind, .. } if kind == "tmpfs")
}

/// Flags that the container's user namespace may not take away stay, unless that is asked for by
/// name.
fn set_flags(tree: &OwnedFd, options: &Options) -> io::Result<()> {
    let Some(exactly) = options.exactly() else { return Ok(()) };
    match set_mount_attributes(tree.as_fd(), false, exactly) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            set_mount_attributes(tree.as_fd(), false, options.besides())
        }
        result => result,
    }
}

fn set_propagation(mount: &OwnedFd, changes: &[Propagation]) -> io::Result<()> {
    changes.iter().try_for_each(|one| set_mount_attributes(mount.as_fd(), one.recursive, one.attributes()))
}

/// A place for a mount.
struct MountPoint {
    file: OwnedFd,
    /// Made for it.
    is_new: bool,
}

struct Attacher<'a> {
    root: &'a Root,
    cgroup: &'a Path,
}

impl Attacher<'_> {
    /// libcontainer makes the root receive what the host mounts, whatever the spec says.
    fn set_root_propagation(&self, asked: Option<Propagation>) -> io::Result<()> {
        if asked.is_some_and(|root| root.kind == libc::MS_SLAVE) {
            return Ok(());
        }
        let change = MountAttributes { propagation: libc::MS_PRIVATE, ..Default::default() };
        set_mount_attributes(self.root.as_fd(), false, change)
    }

    /// Sets the options that libcontainer has left out of a mount of its own.
    fn complete(&self, made: &PlannedMount) -> io::Result<OwnedFd> {
        let PlannedMount { destination, options, kind } = made;
        let mount = OwnedFd::from(self.root.resolve(destination).map_err(plain)?);
        set_propagation(&mount, &options.propagation)?;
        if !is_tmpfs(kind) && options.of_file_system().next().is_some() {
            let context = fspick(&mount, "", FsPickFlags::FSPICK_EMPTY_PATH | FsPickFlags::FSPICK_CLOEXEC)?;
            options.of_file_system().try_for_each(|flag| fsconfig_set_flag(&context, flag))?;
            fsconfig_reconfigure(&context)?;
        }
        Ok(mount)
    }

    fn unmount(&self, place: &str) -> io::Result<()> {
        let mount = self.root.resolve(place).map_err(plain)?;
        let path = format!("/proc/self/fd/{}", mount.as_fd().as_raw_fd());
        Ok(umount2(path.as_str(), MntFlags::MNT_DETACH)?)
    }

    /// `tree` is a bind mount's source.
    fn attach(&self, planned: &PlannedMount, tree: Option<OwnedFd>) -> Result<OwnedFd, AttachError> {
        let failed = |action| {
            move |source| {
                let source_text = format!("of {} ", planned.described());
                AttachError { action, source_text, destination: planned.destination.clone(), source }
            }
        };
        let point = self.mount_point(planned, tree.as_ref()).map_err(failed("find a place for"))?;
        let mount = match (&planned.kind, tree) {
            (MountKind::FileSystem { kind, source }, _) => self.file_system(planned, kind, source, &point),
            (MountKind::Bind { .. }, Some(tree)) => set_flags(&tree, &planned.options).map(|()| tree),
            (MountKind::Bind { .. }, None) => Err(io::ErrorKind::NotFound.into()),
        };
        let mount = mount.map_err(failed("make"))?;
        // mount(2) says so, and Docker's hint goes by the words; move_mount(2) has EINVAL for it.
        if is_directory(&mount).and_then(|is| Ok(is != is_directory(&point.file)?)).map_err(failed("attach"))? {
            return Err(failed("attach")(io::ErrorKind::NotADirectory.into()));
        }
        tree::attach(&mount, &point.file).map_err(failed("attach"))?;
        set_propagation(&mount, &planned.options.propagation).map_err(failed("set the propagation of"))?;
        if let Some(change) = planned.options.of_tree() {
            set_mount_attributes(mount.as_fd(), true, change).map_err(failed("set the options of"))?;
        }
        Ok(mount)
    }

    /// Opens the mount point, made if missing: a file for a file, else a directory.
    fn mount_point(&self, planned: &PlannedMount, tree: Option<&OwnedFd>) -> io::Result<MountPoint> {
        let place = &planned.destination;
        let source = tree.filter(|_| planned.is_bind());
        let is_file = match source {
            Some(tree) => !is_directory(tree)?,
            None => false,
        };
        // A link would be the image's, and could lead anywhere in it.
        let is_special = matches!(&planned.kind, MountKind::FileSystem { kind, .. } if kind == "sysfs");
        let there = find_in_root(self.root, place, if is_special { OFlags::NOFOLLOW } else { OFlags::empty() });
        let is_new = there.is_err();
        let point = match there {
            Ok(point) if is_special && !is_directory(&point)? => return Err(io::ErrorKind::NotADirectory.into()),
            Err(Errno::NOENT) => self.make_place(&destination::resolve(self.root, place)?, is_file)?,
            there => there?,
        };
        self.check_place(&point, planned, source)?;
        Ok(MountPoint { file: point, is_new })
    }

    /// Makes the place, which no link leads to.
    fn make_place(&self, place: &Path, is_file: bool) -> io::Result<OwnedFd> {
        let (parent, name) = place.parent().zip(place.file_name()).ok_or(io::ErrorKind::InvalidInput)?;
        let parent = match find_in_root(self.root, parent, OFlags::DIRECTORY) {
            Err(Errno::NOENT) => self.root.mkdir_all(parent, &Permissions::from_mode(0o755)).map_err(plain)?.into(),
            found => found?,
        };
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if is_file {
            return Ok(openat(&parent, name, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(0o644))?);
        }
        match mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
            // Another container of these files has made it, or it is where a link leads.
            Ok(()) | Err(Errno::EXIST) => {}
            made => made?,
        }
        Ok(openat(&parent, name, flags | OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?)
    }

    /// Refuses the places that runc refuses: the root itself and, but for a few files, anything in
    /// `/proc`, wherever the image's links have led.
    fn check_place(&self, point: &OwnedFd, planned: &PlannedMount, source: Option<&OwnedFd>) -> io::Result<()> {
        let path = |fd: &dyn AsRawFd| fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let (root, point) = (path(&self.root.as_fd())?, path(point)?);
        let inside = point.strip_prefix(&root).map_err(|_| io::Error::other("it is outside of the container"))?;
        if inside == Path::new("") {
            return Err(io::Error::other("nothing can be mounted over the container's root"));
        }
        let Ok(in_proc) = inside.strip_prefix("proc") else { return Ok(()) };
        let is_proc = match (&planned.kind, source) {
            (MountKind::Bind { .. }, Some(tree)) => fstatfs(tree)?.filesystem_type() == PROC_SUPER_MAGIC,
            _ => false,
        };
        // The injection's copy of what NVIDIA's driver says belongs to the driver's directory.
        let is_allowed = in_proc.starts_with("driver") || IN_PROC.iter().any(|file| in_proc == Path::new(file));
        match is_allowed || (in_proc == Path::new("") && is_proc) {
            true => Ok(()),
            false => Err(io::Error::other("only procfs can be mounted at /proc, and nothing else below it")),
        }
    }

    /// A new mount, or one of what there is of a cgroup hierarchy that this user namespace cannot
    /// mount.
    fn file_system(&self, planned: &PlannedMount, kind: &str, source: &str, point: &MountPoint) -> io::Result<OwnedFd> {
        if kind != "cgroup" {
            return new_file_system(planned, kind, source, point);
        }
        match new_file_system(planned, "cgroup2", source, point) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EBUSY)) => {
                let tree = tree::open(self.cgroup, false)?;
                set_flags(&tree, &planned.options)?;
                Ok(tree)
            }
            made => made,
        }
    }
}

fn new_file_system(planned: &PlannedMount, kind: &str, source: &str, point: &MountPoint) -> io::Result<OwnedFd> {
    let (options, context) = (&planned.options, fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?);
    fsconfig_set_string(&context, "source", source)?;
    let is_tmpfs = kind == "tmpfs";
    if is_tmpfs && !point.is_new {
        // As the directory that it hides, unless the options say otherwise.
        let mode = rustix::fs::fstat(&point.file)?.st_mode & 0o7777;
        fsconfig_set_string(&context, "mode", format!("{mode:o}"))?;
    }
    for option in &options.data {
        match option.split_once('=') {
            Some((key, value)) => fsconfig_set_string(&context, key, value)?,
            None => fsconfig_set_flag(&context, option.as_str())?,
        }
    }
    let delayed = |flag: &&str| is_tmpfs && *flag == "ro";
    // An instance that is there already keeps its flags: the kernel gives them to new ones only.
    for flag in options.of_file_system().filter(|flag| !delayed(flag) && !SHARED.contains(&kind)) {
        fsconfig_set_flag(&context, flag)?;
    }
    fsconfig_create(&context)?;
    let mut attributes = options.of_mount();
    if is_tmpfs {
        attributes.remove(rustix::mount::MountAttrFlags::MOUNT_ATTR_RDONLY);
    }
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

fn is_directory(file: impl AsFd) -> io::Result<bool> {
    Ok(rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode).is_dir())
}

/// Converts an error of a lookup below a root to the kernel's own, where there is one.
pub(crate) fn plain(error: pathrs::error::Error) -> io::Error {
    match error.kind() {
        ErrorKind::OsError(Some(number)) => io::Error::from_raw_os_error(number),
        _ => io::Error::other(error),
    }
}
