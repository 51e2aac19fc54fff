//! Identity of an ELF library, from its headers.

use std::{fs::File, path::Path};

use object::{
    Endianness, ReadCache, ReadRef, elf,
    read::elf::{Dyn, FileHeader, ProgramHeader},
};

use super::ld_cache::Abi;

/// Result of [`inspect`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ElfIdentity {
    /// Machine and word size.
    pub(super) abi: Abi,
    /// `DT_SONAME`; what programs that were linked with the library ask for.
    pub(super) soname: Option<String>,
}

/// Reads a library's headers. `None` for what is no library of a machine that NVIDIA supports.
///
/// Only the headers are read: a driver has libraries of 100 MB and more.
pub(super) fn inspect(path: &Path) -> Option<ElfIdentity> {
    let file = ReadCache::new(File::open(path).ok()?);
    let ident = (&file).read_bytes_at(0, 20).ok()?;
    match (ident.get(4)?, ident.get(18)?) {
        (&2, &62) => read::<elf::FileHeader64<Endianness>, _>(&file, Abi::X86_64),
        (&2, &183) => read::<elf::FileHeader64<Endianness>, _>(&file, Abi::Aarch64),
        (&1, &3) => read::<elf::FileHeader32<Endianness>, _>(&file, Abi::I386),
        _ => None,
    }
}

fn read<'data, Header: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(file: R, abi: Abi) -> Option<ElfIdentity> {
    let header = Header::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, file).ok()?;
    let (mut soname, mut strings) = (None, None);
    let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, file).ok().flatten());
    for item in dynamic.unwrap_or_default() {
        match item.tag(endian) {
            elf::DT_SONAME => soname = Some(item.val(endian)),
            elf::DT_STRTAB => strings = Some(item.val(endian)),
            _ => {}
        }
    }
    let soname = soname.zip(strings).and_then(|(name, table)| {
        let address = table.checked_add(name)?;
        let segment = segments.iter().find(|segment| {
            let start: u64 = segment.p_vaddr(endian).into();
            let length: u64 = segment.p_filesz(endian).into();
            segment.p_type(endian) == elf::PT_LOAD && address >= start && address - start < length
        })?;
        let start: u64 = segment.p_vaddr(endian).into();
        let at = (address - start).checked_add(segment.p_offset(endian).into())?;
        let end = at.checked_add(LONGEST_NAME)?.min(file.len().ok()?);
        let name = file.read_bytes_at_until(at..end, 0).ok()?;
        let name = std::str::from_utf8(name).ok()?;
        // A name with a slash would lead out of the library's directory.
        (!name.is_empty() && !name.contains('/') && name != "." && name != "..").then(|| name.to_owned())
    });
    Some(ElfIdentity { abi, soname })
}

/// `NAME_MAX` and the end mark.
const LONGEST_NAME: u64 = 256;
