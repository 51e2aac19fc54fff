//! Mounts that come and go while a container runs, as drivers of volumes make them.

use std::path::{Path, PathBuf};

use integration::{ContainerBuilder, Node};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::plain("mounts::shared_ones_go_both_ways", shared_ones_go_both_ways),
        Case::plain("mounts::slaves_receive_only", slaves_receive_only),
        Case::plain("mounts::private_ones_stay", private_ones_stay),
    ]
}

/// A directory of the node whose mounts are shared, as a node's `/` is under systemd.
struct Shared(PathBuf);

impl Shared {
    fn new(node: &Node) -> Self {
        let directory = node.directory().join("volumes");
        for name in ["host", "container"] {
            std::fs::create_dir_all(directory.join(name)).unwrap();
        }
        mount(Some(&directory), &directory, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        mount(None::<&str>, &directory, None::<&str>, MsFlags::MS_SHARED, None::<&str>).unwrap();
        Self(directory)
    }

    /// A file system appears in `host/` while the container runs; its file is there and nowhere else.
    fn mount_on_host(&self) {
        let target = self.0.join("host");
        mount(Some("test"), &target, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        std::fs::write(target.join("file"), "").unwrap();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for directory in [self.0.join("container"), self.0.join("host"), self.0.clone()] {
            let _ = umount2(&directory, MntFlags::MNT_DETACH);
        }
    }
}

/// A container with the volume, as CRI writes one: mounts something in it, then tells whether it sees what the host mounted.
fn with_volume<'node>(node: &'node Node, volume: &Path, propagation: &'static str) -> ContainerBuilder<'node> {
    let script = "mount -t tmpfs test /volumes/container && touch /volumes/container/file && echo mounted; read line; \
                  [ -e /volumes/host/file ] && echo seen; exit 0";
    let volume = volume.display().to_string();
    node.container("a").stdin().script(script).edit(move |spec| {
        spec["linux"]["rootfsPropagation"] = json!(propagation);
        let mount = json!({
            "destination": "/volumes", "type": "bind", "source": volume, "options": ["rbind", propagation, "rw"],
        });
        spec["mounts"].as_array_mut().unwrap().push(mount);
        for set in ["bounding", "effective", "permitted"] {
            spec["process"]["capabilities"][set].as_array_mut().unwrap().push(json!("CAP_SYS_ADMIN"));
        }
    })
}

/// Whether the container's mount reached the host, and the host's the container.
fn reaches(node: &Node, propagation: &'static str) -> (bool, bool) {
    let volume = Shared::new(node);
    let mut container = with_volume(node, &volume.0, propagation).start().unwrap();
    container.stdio.wait_for("mounted");
    let out = volume.0.join("container/file").exists();
    volume.mount_on_host();
    container.stdio.write(b"go\n");
    assert_eq!(container.wait().unwrap(), 0);
    container.delete().unwrap();
    (out, container.stdio.finish().stdout().contains("seen\n"))
}

fn shared_ones_go_both_ways(node: &Node) {
    assert_eq!(reaches(node, "rshared"), (true, true));
}

fn slaves_receive_only(node: &Node) {
    assert_eq!(reaches(node, "rslave"), (false, true));
}

fn private_ones_stay(node: &Node) {
    assert_eq!(reaches(node, "rprivate"), (false, false));
}
