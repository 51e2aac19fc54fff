//! A made-up driver's files.

use std::{fs, path::Path};

/// `EM_386` of elf(5).
pub const EM_386: u16 = 3;
/// `EM_X86_64`.
pub const EM_X86_64: u16 = 62;
/// `EM_AARCH64`.
pub const EM_AARCH64: u16 = 183;

/// A shared library with nothing in it but its name: header, one segment for all, one for the
/// dynamic section.
pub fn fake_library(soname: &str, machine: u16) -> Vec<u8> {
    let wide = machine != EM_386;
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
pub fn put(root: &Path, path: &str, content: impl AsRef<[u8]>) {
    let path = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// A host with the libraries, programs and so on of one driver.
pub fn fake_host(root: &Path, version: &str, libraries: &str) {
    for (name, soname) in [
        ("libcuda", "libcuda.so.1"),
        ("libnvidia-ml", "libnvidia-ml.so.1"),
        ("libnvidia-ptxjitcompiler", "libnvidia-ptxjitcompiler.so.1"),
        ("libGLX_nvidia", "libGLX_nvidia.so.0"),
        ("libnvidia-encode", "libnvidia-encode.so.1"),
    ] {
        put(root, &format!("{libraries}/{name}.so.{version}"), fake_library(soname, EM_X86_64));
    }
    put(
        root,
        &format!("{libraries}/vdpau/libvdpau_nvidia.so.{version}"),
        fake_library("libvdpau_nvidia.so.1", EM_X86_64),
    );
    put(root, "/usr/bin/nvidia-smi", fake_library("smi", EM_X86_64));
    put(root, "/usr/bin/nvidia-cuda-mps-server", fake_library("mps", EM_X86_64));
    put(root, &format!("/lib/firmware/nvidia/{version}/gsp_ga10x.bin"), "firmware");
    put(root, "/etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1");
}
