//! A root file system and OCI images made of the machine's static busybox: no registry is ever
//! asked.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Name of the image that containers run.
pub const IMAGE: &str = "egpu.test/busybox:latest";
/// Name of one that asks for all cards, as CUDA's do.
pub const CUDA_IMAGE: &str = "egpu.test/cuda:latest";
/// Name of one whose user is -1, by its own passwd.
pub const EVIL_IMAGE: &str = "egpu.test/evil:latest";
/// Name of the image of a pod's sandbox.
pub const PAUSE_IMAGE: &str = "egpu.test/pause:latest";

/// Returns the path of a static busybox. The GPU suite brings its own along, in the PATH.
pub fn busybox() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    ["/bin", "/usr/bin"]
        .into_iter()
        .map(PathBuf::from)
        .chain(std::env::split_paths(&path))
        .map(|directory| directory.join("busybox"))
        .find(|path| path.exists())
        .expect("busybox is missing: apt-get install busybox-static")
}

/// The static program that speaks to the driver without CUDA (`integration/rm-client`), where it
/// has been built.
pub fn rm_client() -> Option<PathBuf> {
    std::env::var_os("EGPU_TEST_RM_CLIENT").map(PathBuf::from).filter(|path| path.exists())
}

/// Fills `root` with busybox (and `rm-client`, where it has been built), its applets as symbolic
/// links, and the directories that mounts need.
pub fn populate(root: &Path) {
    for directory in ["bin", "sbin", "usr", "etc", "proc", "sys", "dev", "tmp", "run", "var", "root", "home"] {
        fs::create_dir_all(root.join(directory)).expect("create a directory of the root file system");
    }
    let binary = root.join("bin/busybox");
    fs::copy(busybox(), &binary).expect("copy busybox");
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).expect("make busybox executable");
    if let Some(program) = rm_client() {
        fs::copy(program, root.join("bin/rm-client")).expect("copy rm-client");
    }
    let applets = Command::new(&binary).arg("--list").output().expect("list busybox's applets").stdout;
    for applet in String::from_utf8_lossy(&applets).lines().filter(|applet| *applet != "busybox") {
        symlink("busybox", root.join("bin").join(applet)).expect("link an applet");
    }
    // The last one of each is -1, as an attacker's image may have it.
    let users =
        "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home:/bin/sh\nevil:x:4294967295:1000::/:/bin/sh\n";
    fs::write(root.join("etc/passwd"), users).expect("write passwd");
    fs::write(root.join("etc/group"), "root:x:0:\nuser:x:1000:\nevil:x:4294967295:\n").expect("write group");
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).expect("open tmp to all");
}

/// Writes an archive that `ctr images import` takes: one layer, and the images over it.
pub fn write_image_archive(scratch: &Path, archive: &Path) {
    let root = scratch.join("image-root");
    fs::create_dir_all(&root).expect("create the image's root");
    populate(&root);
    let layout = scratch.join("image-layout");
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("create the layout");

    let layer_path = scratch.join("layer.tar");
    tar(&root, &layer_path, &["."]);
    let layer = fs::read(&layer_path).expect("read the layer");
    let layer_blob = Blob::write(&blobs, "application/vnd.oci.image.layer.v1.tar", &layer);

    let images = [
        (IMAGE, json!({ "Env": [PATH], "Cmd": ["/bin/sh"] })),
        (
            CUDA_IMAGE,
            json!({ "Env": [PATH, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"] }),
        ),
        (EVIL_IMAGE, json!({ "Env": [PATH], "Cmd": ["/bin/id"], "User": "evil" })),
        (PAUSE_IMAGE, json!({ "Env": [PATH], "Entrypoint": ["/bin/sleep", "infinity"] })),
    ];
    let manifests: Vec<Value> = images
        .into_iter()
        .map(|(name, config)| {
            let config = json!({
                "architecture": architecture(), "os": "linux", "config": config,
                "rootfs": { "type": "layers", "diff_ids": [layer_blob.digest] },
            });
            let config = Blob::write(&blobs, "application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
            let manifest = json!({
                "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": config.descriptor(), "layers": [layer_blob.descriptor()],
            });
            let manifest =
                Blob::write(&blobs, "application/vnd.oci.image.manifest.v1+json", manifest.to_string().as_bytes());
            let mut descriptor = manifest.descriptor();
            descriptor["annotations"] = json!({ "io.containerd.image.name": name });
            descriptor
        })
        .collect();
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("write oci-layout");
    fs::write(layout.join("index.json"), json!({ "schemaVersion": 2, "manifests": manifests }).to_string())
        .expect("write index.json");
    tar(&layout, archive, &["oci-layout", "index.json", "blobs"]);
}

const PATH: &str = "PATH=/bin:/sbin";

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

fn tar(directory: &Path, archive: &Path, members: &[&str]) {
    let status = Command::new("tar")
        .args(["--numeric-owner", "--owner=0", "--group=0", "-C"])
        .arg(directory)
        .arg("-cf")
        .arg(archive)
        .args(members)
        .status()
        .expect("run tar");
    assert!(status.success(), "tar failed: {status}");
}

struct Blob {
    media_type: &'static str,
    digest: String,
    size: usize,
}

impl Blob {
    fn write(directory: &Path, media_type: &'static str, bytes: &[u8]) -> Self {
        let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(directory.join(&hex), bytes).expect("write a blob");
        Self { media_type, digest: format!("sha256:{hex}"), size: bytes.len() }
    }

    fn descriptor(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.size })
    }
}
