//! A mount's options, read as runc reads them.

use rustix::mount::MountAttrFlags;
use sys::MountAttributes;

/// A flag of mount(2), and whether the option clears it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OptionFlag(&'static str, bool, u64);

const fn sets(name: &'static str, flag: u64) -> OptionFlag {
    OptionFlag(name, false, flag)
}

const fn clears(name: &'static str, flag: u64) -> OptionFlag {
    OptionFlag(name, true, flag)
}

/// Flags of one mount, or of a file system.
const FLAGS: [OptionFlag; 28] = [
    clears("async", libc::MS_SYNCHRONOUS),
    clears("atime", libc::MS_NOATIME),
    sets("bind", libc::MS_BIND),
    clears("dev", libc::MS_NODEV),
    clears("diratime", libc::MS_NODIRATIME),
    sets("dirsync", libc::MS_DIRSYNC),
    clears("exec", libc::MS_NOEXEC),
    sets("lazytime", libc::MS_LAZYTIME),
    sets("mand", libc::MS_MANDLOCK),
    sets("noatime", libc::MS_NOATIME),
    sets("nodev", libc::MS_NODEV),
    sets("nodiratime", libc::MS_NODIRATIME),
    sets("noexec", libc::MS_NOEXEC),
    clears("nolazytime", libc::MS_LAZYTIME),
    clears("nomand", libc::MS_MANDLOCK),
    clears("norelatime", libc::MS_RELATIME),
    clears("nostrictatime", libc::MS_STRICTATIME),
    sets("nosuid", libc::MS_NOSUID),
    sets("nosymfollow", libc::MS_NOSYMFOLLOW),
    sets("rbind", libc::MS_BIND | libc::MS_REC),
    sets("relatime", libc::MS_RELATIME),
    sets("remount", libc::MS_REMOUNT),
    sets("ro", libc::MS_RDONLY),
    clears("rw", libc::MS_RDONLY),
    sets("strictatime", libc::MS_STRICTATIME),
    clears("suid", libc::MS_NOSUID),
    clears("symfollow", libc::MS_NOSYMFOLLOW),
    sets("sync", libc::MS_SYNCHRONOUS),
];

/// Flags that say nothing about a bind mount's own flags.
const NOT_OF_BINDS: u64 = libc::MS_BIND | libc::MS_REC | libc::MS_REMOUNT;

/// Flags that a file system as a whole may have, by the names that fsconfig(2) knows.
const OF_FILE_SYSTEMS: [(&str, u64); 5] = [
    ("ro", libc::MS_RDONLY),
    ("sync", libc::MS_SYNCHRONOUS),
    ("dirsync", libc::MS_DIRSYNC),
    ("lazytime", libc::MS_LAZYTIME),
    ("mand", libc::MS_MANDLOCK),
];

/// Flags of a mount alone, as mount_setattr(2) and fsmount(2) name them; all about access times is
/// apart.
const ATTRIBUTES: [(u64, MountAttrFlags); 5] = [
    (libc::MS_RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
    (libc::MS_NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
    (libc::MS_NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
    (libc::MS_NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    (libc::MS_NOSYMFOLLOW, MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
];

const ACCESS_TIMES: u64 = libc::MS_NOATIME | libc::MS_NODIRATIME | libc::MS_RELATIME | libc::MS_STRICTATIME;

/// Attributes of all mounts of a tree, without the `r` before.
const RECURSIVE: [(&str, bool, MountAttrFlags); 18] = [
    ("ro", false, MountAttrFlags::MOUNT_ATTR_RDONLY),
    ("rw", true, MountAttrFlags::MOUNT_ATTR_RDONLY),
    ("nosuid", false, MountAttrFlags::MOUNT_ATTR_NOSUID),
    ("suid", true, MountAttrFlags::MOUNT_ATTR_NOSUID),
    ("nodev", false, MountAttrFlags::MOUNT_ATTR_NODEV),
    ("dev", true, MountAttrFlags::MOUNT_ATTR_NODEV),
    ("noexec", false, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ("exec", true, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ("nodiratime", false, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
    ("diratime", true, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
    ("relatime", false, MountAttrFlags::MOUNT_ATTR_RELATIME),
    ("norelatime", true, MountAttrFlags::MOUNT_ATTR_RELATIME),
    ("noatime", false, MountAttrFlags::MOUNT_ATTR_NOATIME),
    ("atime", true, MountAttrFlags::MOUNT_ATTR_NOATIME),
    ("strictatime", false, MountAttrFlags::MOUNT_ATTR_STRICTATIME),
    ("nostrictatime", true, MountAttrFlags::MOUNT_ATTR_STRICTATIME),
    ("nosymfollow", false, MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
    ("symfollow", true, MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
];

/// A change of propagation: of one mount, or of all below it, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Propagation {
    pub(super) kind: u64,
    pub(super) recursive: bool,
}

impl Propagation {
    /// The kind that an option names, with or without an `r` before it.
    pub(crate) fn named(word: &str) -> Option<Self> {
        let kind = |word| match word {
            "private" => Some(libc::MS_PRIVATE),
            "shared" => Some(libc::MS_SHARED),
            "slave" => Some(libc::MS_SLAVE),
            "unbindable" => Some(libc::MS_UNBINDABLE),
            _ => None,
        };
        let of_one = kind(word).map(|kind| Self { kind, recursive: false });
        of_one.or_else(|| Some(Self { kind: kind(word.strip_prefix('r')?)?, recursive: true }))
    }

    /// True if it makes mounts of their own what other mounts are: libcontainer does that to the
    /// root alone.
    pub(super) fn spreads(self) -> bool {
        self.recursive && [libc::MS_SHARED, libc::MS_UNBINDABLE].contains(&self.kind)
    }

    pub(super) fn attributes(self) -> MountAttributes {
        MountAttributes { propagation: self.kind, ..Default::default() }
    }
}

/// All options of a mount.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Options {
    flags: u64,
    cleared: u64,
    /// Changes of propagation in their order; the last one counts, but of `slave` and `shared` both
    /// do.
    pub(super) propagation: Vec<Propagation>,
    recursive: MountAttributes,
    /// `idmap` (false) or `ridmap` (true).
    pub(super) id_mapped: Option<bool>,
    /// The file system's own.
    pub(super) data: Vec<String>,
}

impl Options {
    pub(super) fn parse(words: &[String]) -> Self {
        let mut options = Self::default();
        for word in words {
            if !options.take(word) {
                options.data.push(word.clone());
            }
        }
        options
    }

    /// False for an option of the file system's.
    fn take(&mut self, word: &str) -> bool {
        let flag = FLAGS.iter().find(|flag| flag.0 == word);
        let recursive = word.strip_prefix('r').and_then(|word| RECURSIVE.iter().find(|one| one.0 == word));
        match (flag, Propagation::named(word), recursive) {
            (Some(OptionFlag(_, true, flag)), ..) => {
                self.flags &= !flag;
                self.cleared |= flag;
            }
            (Some(OptionFlag(_, false, flag)), ..) => {
                self.flags |= flag;
                self.cleared &= !flag;
            }
            (_, Some(propagation), _) => self.propagation.push(propagation),
            (_, _, Some((_, cleared, attribute))) => self.take_recursive(*cleared, attribute.bits().into()),
            _ => match word {
                "defaults" | "loud" | "silent" => {}
                "idmap" => self.id_mapped = Some(false),
                "ridmap" => self.id_mapped = Some(true),
                _ => return false,
            },
        }
        true
    }

    fn take_recursive(&mut self, cleared: bool, attribute: u64) {
        let (to, from) = match cleared {
            true => (&mut self.recursive.cleared, &mut self.recursive.set),
            false => (&mut self.recursive.set, &mut self.recursive.cleared),
        };
        *to |= attribute;
        *from &= !attribute;
        // One of three values, which the kernel wants cleared as a whole.
        if attribute & libc::MOUNT_ATTR__ATIME == attribute {
            self.recursive.cleared |= libc::MOUNT_ATTR__ATIME;
        }
    }

    pub(super) fn is_bind(&self) -> bool {
        self.flags & libc::MS_BIND != 0
    }

    pub(super) fn is_recursive(&self) -> bool {
        self.flags & libc::MS_REC != 0
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.flags & libc::MS_RDONLY != 0
    }

    /// The flags of the file system itself.
    pub(super) fn of_file_system(&self) -> impl Iterator<Item = &'static str> {
        let flags = self.flags;
        OF_FILE_SYSTEMS.iter().filter(move |(_, flag)| flags & flag != 0).map(|(name, _)| *name)
    }

    /// The flags of a new file system's mount.
    pub(super) fn of_mount(&self) -> MountAttrFlags {
        attributes_of(self.flags) | access_times_of(self.flags)
    }

    /// Returns the change of a bind mount's flags to those that are asked for: all others go, but
    /// those of access times stay unless one of them is named. `None`: none is named, so they stay
    /// the source's.
    pub(super) fn exactly(&self) -> Option<MountAttributes> {
        if self.flags & !NOT_OF_BINDS == 0 && self.cleared == 0 {
            return None;
        }
        let wanted = attributes_of(self.flags);
        // Kernels before 5.14 do not know this one, which next to no source has.
        let known = MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW & !attributes_of(self.cleared);
        let others = attributes_of(u64::MAX) & !wanted & !known;
        Some(self.with_access_times(wanted, others))
    }

    /// Returns the same change, but leaves flags that are not named as they are: for a source whose
    /// flags this user namespace may not take away.
    pub(super) fn besides(&self) -> MountAttributes {
        self.with_access_times(attributes_of(self.flags), attributes_of(self.cleared))
    }

    fn with_access_times(&self, set: MountAttrFlags, cleared: MountAttrFlags) -> MountAttributes {
        let (mut set, mut cleared): (u64, u64) = (set.bits().into(), cleared.bits().into());
        if self.flags & ACCESS_TIMES != 0 {
            set |= u64::from(access_times_of(self.flags).bits());
            cleared |= libc::MOUNT_ATTR__ATIME | libc::MOUNT_ATTR_NODIRATIME;
        }
        MountAttributes { set, cleared, ..Default::default() }
    }

    /// The attributes of the whole tree, if any are asked for.
    pub(super) fn of_tree(&self) -> Option<MountAttributes> {
        (self.recursive != MountAttributes::default()).then_some(self.recursive)
    }
}

fn attributes_of(flags: u64) -> MountAttrFlags {
    let wanted = ATTRIBUTES.iter().filter(|(flag, _)| flags & flag != 0);
    wanted.fold(MountAttrFlags::empty(), |all, (_, attribute)| all | *attribute)
}

/// Returns the access times as mount(2) reads them: `strictatime` before `noatime`, and `relatime`
/// where neither is named.
fn access_times_of(flags: u64) -> MountAttrFlags {
    let of_directories = match flags & libc::MS_NODIRATIME {
        0 => MountAttrFlags::empty(),
        _ => MountAttrFlags::MOUNT_ATTR_NODIRATIME,
    };
    of_directories
        | match (flags & libc::MS_STRICTATIME, flags & libc::MS_NOATIME) {
            (0, 0) => MountAttrFlags::MOUNT_ATTR_RELATIME,
            (0, _) => MountAttrFlags::MOUNT_ATTR_NOATIME,
            _ => MountAttrFlags::MOUNT_ATTR_STRICTATIME,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &str) -> Options {
        Options::parse(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_last_word_counts_and_unknown_ones_are_the_file_systems() {
        let parsed = options("ro nosuid rw size=1m private rslave mode=755 defaults rbind");
        assert!(parsed.is_bind() && parsed.is_recursive() && !parsed.is_read_only());
        assert_eq!(parsed.data, ["size=1m", "mode=755"]);
        let propagation = |word| Propagation::named(word).unwrap();
        assert_eq!(parsed.propagation, [propagation("private"), propagation("rslave")]);
        assert_eq!(propagation("runbindable"), Propagation { kind: libc::MS_UNBINDABLE, recursive: true });
        assert_eq!([Propagation::named("rro"), Propagation::named("rrslave")], [None, None]);
    }

    #[test]
    fn a_bind_mount_has_the_flags_that_are_named_and_no_others() {
        let changes = |words| options(words).exactly().map(|change| (change.set, change.cleared));
        let (ro, nosuid, nodev, noexec) =
            (libc::MOUNT_ATTR_RDONLY, libc::MOUNT_ATTR_NOSUID, libc::MOUNT_ATTR_NODEV, libc::MOUNT_ATTR_NOEXEC);
        let times = libc::MOUNT_ATTR__ATIME | libc::MOUNT_ATTR_NODIRATIME;
        assert_eq!(changes("rbind rprivate"), None);
        assert_eq!(changes("bind rw"), Some((0, ro | nosuid | nodev | noexec)));
        assert_eq!(changes("bind ro noexec"), Some((ro | noexec, nosuid | nodev)));
        assert_eq!(changes("bind sync"), Some((0, ro | nosuid | nodev | noexec)));
        let (set, cleared) = changes("bind noatime nodiratime").unwrap();
        assert_eq!(set, libc::MOUNT_ATTR_NOATIME | libc::MOUNT_ATTR_NODIRATIME);
        assert_eq!(cleared, ro | nosuid | nodev | noexec | times);
        assert_eq!(changes("bind strictatime noatime").unwrap().0, libc::MOUNT_ATTR_STRICTATIME);
        let besides = options("bind noexec dev").besides();
        assert_eq!((besides.set, besides.cleared), (noexec, nodev));
    }

    #[test]
    fn a_file_systems_own_flags_are_apart_from_its_mounts() {
        let sysfs = options("nosuid noexec nodev ro sync dirsync");
        assert_eq!(sysfs.of_file_system().collect::<Vec<_>>(), ["ro", "sync", "dirsync"]);
        let all = MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        assert_eq!(sysfs.of_mount(), all);
    }

    #[test]
    fn attributes_of_a_tree_have_an_r_before() {
        let tree = |words| options(words).of_tree().map(|tree| (tree.set, tree.cleared));
        assert_eq!(tree("ro"), None);
        assert_eq!(tree("rro rexec"), Some((libc::MOUNT_ATTR_RDONLY, libc::MOUNT_ATTR_NOEXEC)));
        assert_eq!(tree("rnoatime"), Some((libc::MOUNT_ATTR_NOATIME, libc::MOUNT_ATTR__ATIME)));
        assert_eq!(tree("rro rrw"), Some((0, libc::MOUNT_ATTR_RDONLY)));
    }
}
