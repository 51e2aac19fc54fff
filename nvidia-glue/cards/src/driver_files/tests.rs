use std::{fs, os::unix::fs::symlink};

use testing::{EM_386, EM_AARCH64, EM_X86_64, fake_host, fake_library, put};

use super::*;

const VERSION: &str = "580.159.04";

fn paths(files: &DriverFiles) -> Vec<String> {
    files.libraries.iter().map(|library| library.path.display().to_string()).collect()
}

#[test]
fn names_come_from_the_file() {
    let directory = tempfile::tempdir().unwrap();
    for (abi, machine) in [(Abi::X86_64, EM_X86_64), (Abi::I386, EM_386), (Abi::Aarch64, EM_AARCH64)] {
        put(directory.path(), "lib", fake_library("libx.so.1", machine));
        let found = elf::inspect(&directory.path().join("lib")).unwrap();
        assert_eq!(found, elf::ElfIdentity { abi, soname: Some("libx.so.1".into()) });
    }
    for hostile in ["../etc/passwd", "..", "", "a/b"] {
        put(directory.path(), "lib", fake_library(hostile, EM_X86_64));
        assert_eq!(elf::inspect(&directory.path().join("lib")).unwrap().soname, None, "{hostile}");
    }
    put(directory.path(), "text", "no library at all, but long enough");
    assert_eq!(elf::inspect(&directory.path().join("text")), None);
}

proptest::proptest! {
    #[test]
    fn a_damaged_library_is_read_or_refused(
        damage in proptest::collection::vec((proptest::prelude::any::<proptest::sample::Index>(), proptest::prelude::any::<u8>()), 0..8),
        length in proptest::prelude::any::<proptest::sample::Index>(),
    ) {
        let mut file = fake_library("libx.so.1", EM_X86_64);
        for (at, byte) in damage {
            let at = at.index(file.len());
            file[at] = byte;
        }
        file.truncate(length.index(file.len() + 1));
        let directory = tempfile::tempdir().unwrap();
        put(directory.path(), "lib", file);
        let found = elf::inspect(&directory.path().join("lib"));
        proptest::prop_assert!(found.and_then(|found| found.soname).is_none_or(|name| !name.contains('/')));
    }
}

#[test]
fn a_distributions_driver_is_found() {
    let root = tempfile::tempdir().unwrap();
    fake_host(root.path(), VERSION, "/usr/lib/x86_64-linux-gnu");
    put(root.path(), "/usr/lib/i386-linux-gnu/libcuda.so.580.159.04", fake_library("libcuda.so.1", EM_386));
    put(root.path(), "/usr/lib/x86_64-linux-gnu/libcuda.so.470.1", fake_library("libcuda.so.1", EM_X86_64));
    put(root.path(), "/usr/lib/x86_64-linux-gnu/libnvidia-cfg.so.580.159.04", "");
    symlink("libnvidia-ml.so.1", root.path().join("usr/lib/x86_64-linux-gnu/libnvidia-ml.so")).unwrap();
    symlink("libnvidia-ml.so.580.159.04", root.path().join("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")).unwrap();
    symlink("usr/lib", root.path().join("lib64")).unwrap();
    let files = find(root.path(), VERSION);
    assert_eq!(files.warnings, Vec::<String>::new());
    assert_eq!(
        paths(&files),
        [
            "libcuda.so.580.159.04",
            "libGLX_nvidia.so.580.159.04",
            "libcuda.so.580.159.04",
            "libnvidia-encode.so.580.159.04",
            "libnvidia-ml.so.580.159.04",
            "libnvidia-ptxjitcompiler.so.580.159.04",
            "vdpau/libvdpau_nvidia.so.580.159.04",
        ]
    );
    assert_eq!(files.libraries[0].abi, Abi::I386);
    let with_link: Vec<_> = files.libraries.iter().filter(|library| library.has_development_link).collect();
    assert_eq!(with_link.len(), 1);
    assert_eq!(with_link[0].soname.as_deref(), Some("libnvidia-ml.so.1"));
    assert_eq!(files.binaries.len(), 2);
    assert_eq!(files.firmware.len(), 1);
    assert_eq!(files.configs[0].container, Path::new("/etc/OpenCL/vendors/nvidia.icd"));
}

#[test]
fn a_driver_outside_of_the_usual_places_is_found() {
    for (dir, in_cache) in [("/usr/local/nvidia/lib64", false), ("/srv/odd/lib", true)] {
        let root = tempfile::tempdir().unwrap();
        fake_host(root.path(), VERSION, dir);
        put(root.path(), "/usr/bin/nvidia-smi", "#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi\n");
        put(root.path(), "/usr/local/nvidia/bin/nvidia-smi", fake_library("smi", EM_X86_64));
        if in_cache {
            let entry = ld_cache::Entry {
                name: b"libcuda.so.1".into(),
                path: b"/srv/odd/lib/libcuda.so.1".into(),
                flags: Abi::X86_64.flags(),
                os_version: 0,
                hwcap: ld_cache::Hwcap::Bits(0),
            };
            put(root.path(), "/etc/ld.so.cache", ld_cache::write(vec![entry]).unwrap());
        }
        let files = find(root.path(), VERSION);
        assert_eq!(files.libraries.len(), 6, "{dir}");
        assert_eq!(files.warnings, Vec::<String>::new());
        let smi = files.binaries.iter().find(|binary| binary.host.ends_with("nvidia-smi")).unwrap();
        assert!(smi.host.ends_with("usr/local/nvidia/bin/nvidia-smi"), "{:?}", smi.host);
    }
}

#[test]
fn another_version_is_a_warning_that_says_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    fake_host(root.path(), "470.1", "/usr/lib64");
    let files = find(root.path(), VERSION);
    assert_eq!(files.libraries, []);
    assert!(files.warnings[0].contains("no libcuda.so.580.159.04 below"), "{:?}", files.warnings);
}

#[test]
fn the_cache_is_used_until_a_file_is_gone() {
    let (root, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fake_host(root.path(), VERSION, "/usr/lib64");
    let first = find_cached(root.path(), VERSION, state.path());
    put(root.path(), "/usr/lib64/libnvidia-new.so.580.159.04", fake_library("libnvidia-new.so.1", EM_X86_64));
    assert_eq!(find_cached(root.path(), VERSION, state.path()), first, "from the cache");
    fs::remove_file(root.path().join("usr/lib64/libcuda.so.580.159.04")).unwrap();
    assert_eq!(find_cached(root.path(), VERSION, state.path()).libraries.len(), 6, "looked for again");
    fs::write(state.path().join("driver-files.json"), "{").unwrap();
    assert_eq!(find_cached(root.path(), VERSION, state.path()).libraries.len(), 6);
    assert_eq!(find_cached(root.path(), "1.2", state.path()).libraries, []);
}

#[test]
fn this_machines_driver_is_found_whole() {
    let Ok(loaded) = fs::read_to_string("/sys/module/nvidia/version") else {
        testing::skipped("this machine has no NVIDIA driver");
        return;
    };
    let files = find(Path::new("/"), loaded.trim());
    assert_eq!(files.warnings, Vec::<String>::new());
    for library in &files.libraries {
        println!("{} {:?} {:?}", library.host.display(), library.soname, library.capabilities);
        assert!(library.soname.is_some(), "{}", library.host.display());
    }
    for name in ["libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"] {
        assert!(files.libraries.iter().any(|library| library.soname.as_deref() == Some(name)), "{name}");
    }
    let others = [&files.binaries, &files.firmware, &files.configs, &files.sockets];
    for file in others.into_iter().flatten() {
        println!("{} -> {}", file.host.display(), file.container.display());
    }
}
