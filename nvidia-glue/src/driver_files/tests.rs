use std::{fs, os::unix::fs::symlink};

use super::*;

/// A shared library with nothing in it but its name: header, one segment for all, one for the dynamic section.
pub(crate) fn fake_library(soname: &str, abi: Abi) -> Vec<u8> {
    let (machine, wide) = match abi {
        Abi::X86_64 => (62u16, true),
        Abi::Aarch64 => (183, true),
        Abi::I386 => (3, false),
    };
    let word = |value: u64| {
        if wide { value.to_le_bytes().to_vec() } else { u32::try_from(value).unwrap().to_le_bytes().to_vec() }
    };
    let (header, segment) = if wide { (64u64, 56u64) } else { (52, 32) };
    let strings = format!("\0{soname}\0").into_bytes();
    let strings_at = header + 2 * segment;
    let dynamic_at = (strings_at + strings.len() as u64).next_multiple_of(8);
    let hash_at = dynamic_at + if wide { 16 } else { 8 } * 7;
    let symbols_at = hash_at + 16;
    let dynamic: Vec<u8> = [
        (14u64, 1u64),
        (5, strings_at),
        (10, strings.len() as u64),
        (4, hash_at),
        (6, symbols_at),
        (11, if wide { 24 } else { 16 }),
        (0, 0),
    ]
    .into_iter()
    .flat_map(|(tag, value)| [word(tag), word(value)].concat())
    .collect();
    let end = symbols_at + 24;
    let mut file = vec![0x7f, b'E', b'L', b'F', if wide { 2 } else { 1 }, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    file.extend(3u16.to_le_bytes());
    file.extend(machine.to_le_bytes());
    file.extend(1u32.to_le_bytes());
    file.extend([word(0), word(header), word(0)].concat());
    file.extend(0u32.to_le_bytes());
    for half in [header, segment, 2, 64, 0, 0] {
        file.extend(u16::try_from(half).unwrap().to_le_bytes());
    }
    for (kind, flags, at, length, align) in [(1u32, 6u32, 0, end, 4096), (2, 6, dynamic_at, dynamic.len() as u64, 8)] {
        file.extend(kind.to_le_bytes());
        if wide {
            file.extend(flags.to_le_bytes());
            file.extend([word(at), word(at), word(at), word(length), word(length), word(align)].concat());
        } else {
            file.extend([word(at), word(at), word(at), word(length), word(length)].concat());
            file.extend(flags.to_le_bytes());
            file.extend(word(align));
        }
    }
    file.extend(strings);
    file.resize(usize::try_from(dynamic_at).unwrap(), 0);
    file.extend(dynamic);
    // A hash table with one bucket and the one symbol that every table begins with.
    file.extend([1u32, 1, 0, 0].into_iter().flat_map(u32::to_le_bytes));
    file.resize(usize::try_from(end).unwrap(), 0);
    file
}

/// Puts a file with its parents below a made-up root.
pub(crate) fn put(root: &Path, path: &str, content: impl AsRef<[u8]>) {
    let path = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// A host with the libraries, programs and so on of one driver.
pub(crate) fn fake_host(root: &Path, version: &str, libraries: &str) {
    for (name, soname) in [
        ("libcuda", "libcuda.so.1"),
        ("libnvidia-ml", "libnvidia-ml.so.1"),
        ("libnvidia-ptxjitcompiler", "libnvidia-ptxjitcompiler.so.1"),
        ("libGLX_nvidia", "libGLX_nvidia.so.0"),
        ("libnvidia-encode", "libnvidia-encode.so.1"),
    ] {
        put(root, &format!("{libraries}/{name}.so.{version}"), fake_library(soname, Abi::X86_64));
    }
    put(
        root,
        &format!("{libraries}/vdpau/libvdpau_nvidia.so.{version}"),
        fake_library("libvdpau_nvidia.so.1", Abi::X86_64),
    );
    put(root, "/usr/bin/nvidia-smi", fake_library("smi", Abi::X86_64));
    put(root, "/usr/bin/nvidia-cuda-mps-server", fake_library("mps", Abi::X86_64));
    put(root, &format!("/lib/firmware/nvidia/{version}/gsp_ga10x.bin"), "firmware");
    put(root, "/etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1");
}

const VERSION: &str = "580.159.04";

fn paths(files: &DriverFiles) -> Vec<String> {
    files.libraries.iter().map(|library| library.path.display().to_string()).collect()
}

#[test]
fn names_come_from_the_file() {
    let directory = tempfile::tempdir().unwrap();
    for abi in [Abi::X86_64, Abi::I386, Abi::Aarch64] {
        put(directory.path(), "lib", fake_library("libx.so.1", abi));
        let found = elf::inspect(&directory.path().join("lib")).unwrap();
        assert_eq!(found, elf::Library { abi, soname: Some("libx.so.1".into()) });
    }
    for hostile in ["../etc/passwd", "..", "", "a/b"] {
        put(directory.path(), "lib", fake_library(hostile, Abi::X86_64));
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
        let mut file = fake_library("libx.so.1", Abi::X86_64);
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
    put(root.path(), "/usr/lib/i386-linux-gnu/libcuda.so.580.159.04", fake_library("libcuda.so.1", Abi::I386));
    put(root.path(), "/usr/lib/x86_64-linux-gnu/libcuda.so.470.1", fake_library("libcuda.so.1", Abi::X86_64));
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
        put(root.path(), "/usr/local/nvidia/bin/nvidia-smi", fake_library("smi", Abi::X86_64));
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
    put(root.path(), "/usr/lib64/libnvidia-new.so.580.159.04", fake_library("libnvidia-new.so.1", Abi::X86_64));
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
