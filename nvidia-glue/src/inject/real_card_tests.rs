//! On a machine with NVIDIA's driver: a made-up image with nothing of the driver in it, in which
//! `nvidia-smi` works and sees one card once the injection has been applied. The mounts and nodes
//! of the spec are made by hand; the runtime's own part is the integration tests' matter.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use base::Roots;
use cards::{Inventory, driver_files};
use runtime_config::request::Share;
use serde_json::Value;
use testing::put;

use super::{
    tests::{grant, record, spec},
    *,
};

/// Copies a program and what it is linked with.
fn copy_program(program: &Path, at: &str, rootfs: &Path) {
    let copy = |from: &Path, at: &str| {
        put(rootfs, at, fs::read(from).unwrap());
        fs::set_permissions(rootfs.join(at.trim_start_matches('/')), fs::Permissions::from_mode(0o755)).unwrap();
    };
    copy(program, at);
    let listed = testing::fork(|| Command::new("ldd").arg(program).output().unwrap());
    for word in String::from_utf8(listed.stdout).unwrap().split_whitespace().filter(|word| word.starts_with('/')) {
        copy(Path::new(word), word);
    }
}

/// Applies the spec's mounts and devices below `rootfs` in a mount namespace of its own, and runs
/// `script` in it.
fn run_in(spec: &Value, rootfs: &Path, script: &str) -> String {
    let root = rootfs.display();
    let mut lines = vec![
        "set -e".to_owned(),
        format!(
            "mkdir -p {root}/proc {root}/dev {root}/run; mount -t proc proc {root}/proc; mount -t tmpfs dev {root}/dev"
        ),
    ];
    for mount in crate::spec::items(spec.get("mounts")).iter().filter(|mount| mount["type"] == "bind") {
        let (source, destination) = (mount["source"].as_str().unwrap(), mount["destination"].as_str().unwrap());
        lines.push(format!("mount --bind {source} {root}{destination}"));
    }
    for node in crate::spec::items(spec.pointer("/linux/devices")) {
        let path = node["path"].as_str().unwrap();
        lines.push(format!(
            "mkdir -p $(dirname {root}{path}); mknod -m 666 {root}{path} c {} {}",
            node["major"], node["minor"]
        ));
    }
    lines.push(format!("exec chroot {root} {script}"));
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &lines.join("\n")]);
    let output = testing::fork(|| command.output().unwrap());
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}\n{}", said(&output.stdout), said(&output.stderr), lines.join("\n"));
    said(&output.stdout)
}

#[test]
fn nvidia_smi_works_in_an_image_without_the_driver() {
    let Ok(version) = fs::read_to_string("/sys/module/nvidia/version") else {
        testing::skipped("this machine has no NVIDIA driver");
        return;
    };
    let nvml = nvml_wrapper::Nvml::init().unwrap();
    let first = nvml.device_by_index(0).unwrap();
    let (uuid, minor) = (first.uuid().unwrap(), first.minor_number().unwrap());
    let pci = first.pci_info().unwrap();
    let mut card = super::tests::card(0, minor, &uuid);
    card.pci.domain = pci.domain;
    card.pci.bus = u8::try_from(pci.bus).unwrap();
    card.pci.device = u8::try_from(pci.device).unwrap();
    let inventory = Inventory {
        source: cards::Source::Nvidia,
        driver_version: version.trim().to_owned(),
        cuda_version: "13.0".to_owned(),
        cards: vec![card],
    };
    testing::fork(|| ensure_uvm_loaded(&Roots::host(), Path::new("/"))).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let rootfs = directory.path().join("rootfs");
    let started = std::time::Instant::now();
    let driver_files = driver_files::find(Path::new("/"), version.trim());
    println!("driver files found in {:?}: {:?}", started.elapsed(), driver_files.warnings);
    let smi = driver_files.binaries.iter().find(|binary| binary.host.ends_with("nvidia-smi")).unwrap();
    copy_program(&smi.host, "/usr/bin/smi", &rootfs);
    copy_program(Path::new("/bin/cat"), "/bin/cat", &rootfs);
    let mut record = record(Share::Exclusive);
    record.cards = vec![grant(&uuid)];
    let settings = Settings {
        roots: Roots::host(),
        state_dir: directory.path().join("state"),
        host_memory_limit: None,
        hami_compat: true,
    };
    let input = PlanInput { record: &record, inventory: &inventory, driver_files: &driver_files, settings: &settings };
    let started = std::time::Instant::now();
    let plan = Injection::plan(&input).unwrap();
    println!("planned in {:?}: {:?}", started.elapsed(), plan.warnings);
    let mut spec = spec();
    let started = std::time::Instant::now();
    let warnings = plan.complete(&rootfs, &mut spec).unwrap();
    println!("completed in {:?}: {warnings:?}", started.elapsed());
    assert_eq!(run_in(&spec, &rootfs, "/usr/bin/smi -L").matches("UUID: GPU-").count(), 1);
    assert!(run_in(&spec, &rootfs, "/usr/bin/smi -L").contains(&uuid));
    assert!(run_in(&spec, &rootfs, "/bin/cat /proc/driver/nvidia/params").contains("ModifyDeviceFiles: 0"));
}
