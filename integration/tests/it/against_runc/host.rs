//! The host's side of generated specs: directories whose mounts have flags and propagation of their
//! own, an image, and namespaces of another container.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Path, PathBuf},
};

use integration::{Container, Node};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

const CONTROLLERS: &str = "/sys/fs/cgroup/cgroup.controllers";

/// Each with its flags and its propagation.
const VOLUMES: [(&str, MsFlags, MsFlags); 3] = [
    ("shared", MsFlags::MS_NODEV, MsFlags::MS_SHARED),
    ("private", MsFlags::empty(), MsFlags::MS_PRIVATE),
    ("read-only", MsFlags::MS_RDONLY.union(MsFlags::MS_NOEXEC).union(MsFlags::MS_NOATIME), MsFlags::MS_SHARED),
];

pub(super) struct Host<'node> {
    volumes: PathBuf,
    image: PathBuf,
    other: Container<'node>,
}

impl<'node> Host<'node> {
    pub(super) fn new(node: &'node Node, runc: &Path) -> Self {
        let volumes = node.directory().join("volumes");
        let image = node.directory().join("image");
        fs::create_dir_all(&image).unwrap();
        integration::rootfs::populate(&image);
        fs::create_dir(image.join("mnt")).unwrap();
        symlink("/mnt", image.join("link")).unwrap();
        symlink("../../../mnt", image.join("out")).unwrap();
        let own = |spec: &mut serde_json::Value| {
            spec["linux"]["namespaces"].as_array_mut().unwrap().push(serde_json::json!({ "type": "network" }));
        };
        let other = node.container("other").runc(runc).edit(own).start().unwrap();
        let host = Self { volumes, image, other };
        host.make_volumes();
        fs::write(host.volumes.join("file"), "").unwrap();
        host
    }

    fn make_volumes(&self) {
        for (name, flags, propagation) in VOLUMES {
            self.make_volume(name, flags, propagation);
        }
    }

    /// A tmpfs with another one in it.
    fn make_volume(&self, name: &str, flags: MsFlags, propagation: MsFlags) {
        let directory = self.volumes.join(name);
        fs::create_dir_all(&directory).unwrap();
        mount(Some("volume"), &directory, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        mount(None::<&str>, &directory, None::<&str>, propagation, None::<&str>).unwrap();
        let below = directory.join("below");
        fs::create_dir(&below).unwrap();
        mount(Some("below"), &below, Some("tmpfs"), MsFlags::MS_NOSUID, None::<&str>).unwrap();
        mount(None::<&str>, &directory, None::<&str>, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | flags, None::<&str>)
            .unwrap();
    }

    pub(super) fn directories(&self) -> Vec<String> {
        VOLUMES.map(|(name, _, _)| self.volumes.join(name).display().to_string()).to_vec()
    }

    pub(super) fn file(&self) -> String {
        self.volumes.join("file").display().to_string()
    }

    /// With symbolic links, inside of it and out.
    pub(super) fn image(&self) -> &Path {
        &self.image
    }

    /// Path of the other container's namespace.
    pub(super) fn namespace(&self, name: &str) -> String {
        format!("/proc/{}/ns/{name}", self.other.pid())
    }

    /// The owner of a namespace, as the kernel names it (`pid:[4026531836]`).
    pub(super) fn owner(&self, name: &str, link: &str) -> &'static str {
        let inode = |path: String| fs::metadata(path).map_or(0, |file| file.ino());
        let is = |path: String| link.ends_with(&format!("[{}]", inode(path)));
        match () {
            () if is(format!("/proc/self/ns/{name}")) => "the host's",
            () if is(self.namespace(name)) => "the other's",
            () if link.is_empty() => "unknown",
            () => "its own",
        }
    }

    pub(super) fn is_v2(&self) -> bool {
        Path::new(CONTROLLERS).exists()
    }

    /// True if v2 has the controller, or v1 where that is there.
    pub(super) fn has_controller(&self, name: &str) -> bool {
        fs::read_to_string(CONTROLLERS).is_ok_and(|all| all.split_whitespace().any(|one| one == name))
            || Path::new("/sys/fs/cgroup").join(name).exists()
    }

    /// Mounts of a container in the volumes that the host sees; the volumes are made anew then.
    pub(super) fn mounted_by_container(&self) -> String {
        let mut mounted = self.mounts();
        for (name, _, _) in VOLUMES {
            for own in [self.volumes.join(name), self.volumes.join(name).join("below")] {
                let position = mounted.iter().position(|point| *point == own);
                mounted.remove(position.expect("a volume's mount"));
            }
        }
        if !mounted.is_empty() {
            self.unmount();
            self.make_volumes();
        }
        mounted.sort_unstable();
        mounted.iter().map(|point| format!("{}; ", point.strip_prefix(&self.volumes).unwrap().display())).collect()
    }

    fn mounts(&self) -> Vec<PathBuf> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        points.filter(|point| point.starts_with(&self.volumes)).collect()
    }

    pub(super) fn end(self) {
        self.unmount();
        self.other.end();
    }

    fn unmount(&self) {
        while let Some(point) = self.mounts().last() {
            umount2(point, MntFlags::MNT_DETACH).unwrap();
        }
    }
}
