//! glibc's `ld.so.cache`, read and written (elf/cache.c and sysdeps/generic/dl-cache.h of glibc).
//!
//! A cache comes out of an image, so reading believes nothing: every offset is checked, every count
//! is bounded by the file's length, and what makes no sense is an error and never a panic.

use std::{borrow::Cow, cmp::Ordering, collections::BTreeSet};

/// One library that the loader can find by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Name that programs ask for: `libcuda.so.1`.
    pub name: Cow<'a, [u8]>,
    /// Its path: `/usr/lib/x86_64-linux-gnu/libcuda.so.1`.
    pub path: Cow<'a, [u8]>,
    /// Kind of library and machine (`FLAG_*` of glibc's ldconfig.h), see [`Abi`].
    pub flags: u32,
    /// Oldest kernel that it needs; no longer used.
    pub os_version: u32,
    /// Processor features that it needs.
    pub hwcap: Hwcap<'a>,
}

/// Processor features of an [`Entry`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hwcap<'a> {
    /// Bits as glibc before 2.33 wrote them; 0: none.
    Bits(u64),
    /// Name of a `glibc-hwcaps` subdirectory, `x86-64-v3`.
    Named(Cow<'a, [u8]>),
}

/// The machine that a library is for, as the cache marks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Abi {
    X86_64,
    I386,
    Aarch64,
}

impl Abi {
    /// `FLAG_ELF_LIBC6` with the machine's bits.
    pub const fn flags(self) -> u32 {
        match self {
            Self::X86_64 => 0x0303,
            Self::I386 => 0x0003,
            Self::Aarch64 => 0x0a03,
        }
    }
}

/// The machine's part of the flags (`FLAG_REQUIRED_MASK`).
pub const ABI_MASK: u32 = 0xff00;

/// A file that is no cache, or a damaged one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LdCacheError {
    /// Neither of the formats since glibc 2.2.
    #[error("not an ld.so.cache in the format of glibc 2.2 or later")]
    Magic,
    /// The file ends before what it announces.
    #[error("the ld.so.cache is cut off")]
    Truncated,
    /// An offset points outside of the file, or to a string without an end.
    #[error("the ld.so.cache refers to a place outside of itself")]
    Offset,
    /// More than [`LARGEST`] bytes or [`MOST_ENTRIES`].
    #[error("too many libraries for an ld.so.cache")]
    TooLarge,
}

/// The largest cache that is read or written. A full desktop's has some 200 KiB.
pub const LARGEST: usize = 4 << 20;
/// The most libraries that are read from a cache.
const MOST_ENTRIES: usize = 1 << 16;
/// The most names of `glibc-hwcaps` subdirectories; glibc knows four for a machine.
const MOST_HWCAPS: usize = 64;

const OLD_MAGIC: &[u8] = b"ld.so-1.7.0\0";
const OLD_HEADER: usize = 16;
const OLD_ENTRY: usize = 12;
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER: usize = 48;
const ENTRY: usize = 24;
/// `cache_file_new_flags_endian_little`.
const LITTLE_ENDIAN: u8 = 2;
const EXTENSION_MAGIC: u32 = 0xeaa4_2174;
const EXTENSION_HEADER: usize = 8;
const SECTION: usize = 16;
const TAG_GENERATOR: u32 = 0;
const TAG_GLIBC_HWCAPS: u32 = 1;
/// `DL_CACHE_HWCAP_EXTENSION`: the low half is an index into the section of names.
const HWCAP_EXTENSION: u64 = 1 << 62;
/// The index; above it are bits that say how the loader treats the name
/// (`DL_CACHE_HWCAP_ISA_LEVEL_MASK`).
const HWCAP_INDEX: u64 = 0xffff_ffff;
const GENERATOR: &[u8] = b"egpu";

/// Reads a cache.
///
/// # Errors
/// When the file is in an older format, damaged, or hostile.
pub fn parse(file: &[u8]) -> Result<Vec<Entry<'_>>, LdCacheError> {
    let cache = new_format(file)?;
    let count = usize::try_from(word(cache, 20)?).map_err(|_| LdCacheError::Truncated)?;
    if count > MOST_ENTRIES {
        return Err(LdCacheError::TooLarge);
    }
    let table = count.checked_mul(ENTRY).and_then(|length| cache.get(HEADER..HEADER.checked_add(length)?));
    let table = table.ok_or(LdCacheError::Truncated)?;
    let mut strings = Reader { cache, left: LARGEST };
    let names = hwcap_names(&mut strings)?;
    table
        .chunks_exact(ENTRY)
        .map(|entry| {
            let hwcap = u64::from(word(entry, 16)?) | u64::from(word(entry, 20)?) << 32;
            let hwcap = if hwcap & HWCAP_EXTENSION == 0 {
                Hwcap::Bits(hwcap)
            } else {
                let index = usize::try_from(hwcap & HWCAP_INDEX).map_err(|_| LdCacheError::Offset)?;
                Hwcap::Named(Cow::Borrowed(names.get(index).copied().ok_or(LdCacheError::Offset)?))
            };
            Ok(Entry {
                flags: word(entry, 0)?,
                name: Cow::Borrowed(strings.string(word(entry, 4)?, LONGEST_NAME)?),
                path: Cow::Borrowed(strings.string(word(entry, 8)?, LONGEST_PATH)?),
                os_version: word(entry, 12)?,
                hwcap,
            })
        })
        .collect()
}

/// Writes a cache that glibc 2.2 and later read, sorted as their binary search expects.
///
/// # Errors
/// When it would be larger than [`LARGEST`].
pub fn write(mut entries: Vec<Entry<'_>>) -> Result<Vec<u8>, LdCacheError> {
    entries.sort_by(order);
    let names: BTreeSet<&[u8]> = entries
        .iter()
        .filter_map(|entry| match &entry.hwcap {
            Hwcap::Named(name) => Some(name.as_ref()),
            Hwcap::Bits(_) => None,
        })
        .collect();
    let names: Vec<&[u8]> = names.into_iter().collect();

    let mut strings = Strings { base: HEADER + entries.len() * ENTRY, bytes: Vec::new() };
    let name_offsets = names.iter().map(|name| strings.add(name)).collect::<Result<Vec<_>, _>>()?;
    let mut table = Vec::with_capacity(entries.len() * ENTRY);
    for entry in &entries {
        let hwcap = match &entry.hwcap {
            Hwcap::Bits(bits) => *bits & !HWCAP_EXTENSION,
            Hwcap::Named(name) => {
                let index = names.binary_search(&name.as_ref()).map_err(|_| LdCacheError::TooLarge)?;
                HWCAP_EXTENSION | u64::try_from(index).map_err(|_| LdCacheError::TooLarge)?
            }
        };
        let (key, value) = (strings.add(&entry.name)?, strings.add(&entry.path)?);
        for field in [entry.flags, key, value, entry.os_version] {
            table.extend_from_slice(&field.to_le_bytes());
        }
        table.extend_from_slice(&hwcap.to_le_bytes());
    }
    let extension_at = (strings.base + strings.bytes.len()).next_multiple_of(4);

    let mut file = Vec::with_capacity(extension_at + 64);
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&to_u32(entries.len())?.to_le_bytes());
    file.extend_from_slice(&to_u32(strings.bytes.len())?.to_le_bytes());
    file.extend_from_slice(&[LITTLE_ENDIAN, 0, 0, 0]);
    file.extend_from_slice(&to_u32(extension_at)?.to_le_bytes());
    file.resize(HEADER, 0);
    file.extend_from_slice(&table);
    file.extend_from_slice(&strings.bytes);
    file.resize(extension_at, 0);
    write_extension(&mut file, &name_offsets)?;
    Ok(file)
}

/// The generator's name and, if there are any, the names of `glibc-hwcaps` subdirectories.
fn write_extension(file: &mut Vec<u8>, name_offsets: &[u32]) -> Result<(), LdCacheError> {
    let sections = if name_offsets.is_empty() { 1 } else { 2 };
    let hwcaps_at = file.len() + EXTENSION_HEADER + sections * SECTION;
    let generator_at = hwcaps_at + name_offsets.len() * 4;
    let mut words = vec![EXTENSION_MAGIC, to_u32(sections)?];
    words.extend([TAG_GENERATOR, 0, to_u32(generator_at)?, to_u32(GENERATOR.len())?]);
    if !name_offsets.is_empty() {
        words.extend([TAG_GLIBC_HWCAPS, 0, to_u32(hwcaps_at)?, to_u32(name_offsets.len() * 4)?]);
    }
    words.extend_from_slice(name_offsets);
    file.extend(words.into_iter().flat_map(u32::to_le_bytes));
    file.extend_from_slice(GENERATOR);
    Ok(())
}

/// The part of the file that is in the new format: all of it, or what follows a table in the old
/// one.
fn new_format(file: &[u8]) -> Result<&[u8], LdCacheError> {
    let cache = if file.starts_with(OLD_MAGIC) {
        let count = usize::try_from(word(file, 12)?).map_err(|_| LdCacheError::Truncated)?;
        let end = count.checked_mul(OLD_ENTRY).and_then(|length| length.checked_add(OLD_HEADER));
        let at = end.and_then(|end| end.checked_next_multiple_of(8)).ok_or(LdCacheError::Truncated)?;
        file.get(at..).ok_or(LdCacheError::Truncated)?
    } else {
        file
    };
    if !cache.starts_with(MAGIC) {
        return Err(LdCacheError::Magic);
    }
    if cache.len() < HEADER { Err(LdCacheError::Truncated) } else { Ok(cache) }
}

/// The names in the `glibc-hwcaps` section.
fn hwcap_names<'a>(strings: &mut Reader<'a>) -> Result<Vec<&'a [u8]>, LdCacheError> {
    let cache = strings.cache;
    let at = offset(word(cache, 32)?)?;
    if at == 0 {
        return Ok(Vec::new());
    }
    let extension = cache.get(at..).ok_or(LdCacheError::Offset)?;
    if word(extension, 0)? != EXTENSION_MAGIC {
        return Ok(Vec::new());
    }
    let count = offset(word(extension, 4)?)?;
    let sections = count.checked_mul(SECTION).and_then(|length| extension.get(EXTENSION_HEADER..)?.get(..length));
    for section in sections.ok_or(LdCacheError::Truncated)?.chunks_exact(SECTION) {
        if word(section, 0)? == TAG_GLIBC_HWCAPS {
            let (start, length) = (offset(word(section, 8)?)?, offset(word(section, 12)?)?);
            let list = cache.get(start..).and_then(|rest| rest.get(..length)).ok_or(LdCacheError::Offset)?;
            if list.len() / 4 > MOST_HWCAPS {
                return Err(LdCacheError::TooLarge);
            }
            return list.chunks_exact(4).map(|name| strings.string(word(name, 0)?, LONGEST_NAME)).collect();
        }
    }
    Ok(Vec::new())
}

/// The order of glibc's table: names descending, then flags descending, then libraries for
/// particular processors before those for all.
fn order(one: &Entry<'_>, other: &Entry<'_>) -> Ordering {
    compare_names(&other.name, &one.name).then(other.flags.cmp(&one.flags)).then_with(|| {
        match (&one.hwcap, &other.hwcap) {
            (Hwcap::Named(one), Hwcap::Named(other)) => one.cmp(other),
            (Hwcap::Named(_), Hwcap::Bits(_)) => Ordering::Less,
            (Hwcap::Bits(_), Hwcap::Named(_)) => Ordering::Greater,
            (Hwcap::Bits(one), Hwcap::Bits(other)) => other.count_ones().cmp(&one.count_ones()).then(other.cmp(one)),
        }
    })
}

/// `_dl_cache_libcmp()`: like strcmp, but runs of digits compare as (32-bit, wrapping) numbers.
pub fn compare_names(one: &[u8], other: &[u8]) -> Ordering {
    let (mut one, mut other) = (one.iter().copied().peekable(), other.iter().copied().peekable());
    let number = |from: &mut std::iter::Peekable<_>| {
        let mut value = 0i32;
        while let Some(digit) = from.next_if(u8::is_ascii_digit) {
            value = value.wrapping_mul(10).wrapping_add(i32::from(digit - b'0'));
        }
        value
    };
    loop {
        let digits = (one.peek().is_some_and(u8::is_ascii_digit), other.peek().is_some_and(u8::is_ascii_digit));
        match (one.peek().copied(), other.peek().copied(), digits) {
            (None, None, _) => return Ordering::Equal,
            (Some(_), Some(_), (true, true)) => {
                // glibc returns the difference, which can overflow; no real version is that long.
                match number(&mut one).cmp(&number(&mut other)) {
                    Ordering::Equal => {}
                    unequal => return unequal,
                }
            }
            (Some(_), _, (true, false)) => return Ordering::Greater,
            (_, Some(_), (false, true)) => return Ordering::Less,
            (left, right, _) if left != right => {
                return left.map_or(0, u8::cast_signed).cmp(&right.map_or(0, u8::cast_signed));
            }
            _ => {
                one.next();
                other.next();
            }
        }
    }
}

/// The string table in the making; offsets count from the start of the file.
struct Strings {
    base: usize,
    bytes: Vec<u8>,
}

impl Strings {
    fn add(&mut self, string: &[u8]) -> Result<u32, LdCacheError> {
        if self.bytes.len() > LARGEST {
            return Err(LdCacheError::TooLarge);
        }
        let offset = to_u32(self.base + self.bytes.len())?;
        self.bytes.extend(string.iter().copied().take_while(|byte| *byte != 0));
        self.bytes.push(0);
        Ok(offset)
    }
}

fn to_u32(number: usize) -> Result<u32, LdCacheError> {
    u32::try_from(number).map_err(|_| LdCacheError::TooLarge)
}

fn offset(number: u32) -> Result<usize, LdCacheError> {
    usize::try_from(number).map_err(|_| LdCacheError::Offset)
}

fn word(bytes: &[u8], at: usize) -> Result<u32, LdCacheError> {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()).ok_or(LdCacheError::Truncated)?;
    Ok(u32::from_le_bytes(*word))
}

/// `NAME_MAX` and `PATH_MAX`: what is longer names no file.
const LONGEST_NAME: usize = 255;
const LONGEST_PATH: usize = 4096;

/// Takes strings out of a cache. All entries may point to one long string, so what is taken is
/// bounded as a whole: reading, sorting and writing cost no more than for an honest file of
/// [`LARGEST`] bytes.
struct Reader<'a> {
    cache: &'a [u8],
    left: usize,
}

impl<'a> Reader<'a> {
    /// The string at an offset, without its end mark.
    fn string(&mut self, at: u32, longest: usize) -> Result<&'a [u8], LdCacheError> {
        let rest = self.cache.get(offset(at)?..).ok_or(LdCacheError::Offset)?;
        let end = rest.iter().take(longest + 1).position(|byte| *byte == 0).ok_or(LdCacheError::Offset)?;
        self.left = self.left.checked_sub(end + 1).ok_or(LdCacheError::TooLarge)?;
        rest.get(..end).ok_or(LdCacheError::Offset)
    }
}

#[cfg(test)]
mod tests;
