//! glibc's `ld.so.cache`, read and written (elf/cache.c and sysdeps/generic/dl-cache.h of glibc).
//!
//! A cache comes out of an image, so reading believes nothing: every offset is checked, every count is bounded by the
//! file's length, and what makes no sense is an error and never a panic.

use std::{borrow::Cow, cmp::Ordering, collections::BTreeSet};

/// One library that the loader can find by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What programs ask for: `libcuda.so.1`.
    pub name: Cow<'a, [u8]>,
    /// Where it is: `/usr/lib/x86_64-linux-gnu/libcuda.so.1`.
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
    /// x86-64.
    X86_64,
    /// i386.
    I386,
    /// AArch64.
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
/// The index; above it are bits that say how the loader treats the name (`DL_CACHE_HWCAP_ISA_LEVEL_MASK`).
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

/// The part of the file that is in the new format: all of it, or what follows a table in the old one.
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

/// The order of glibc's table: names descending, then flags descending, then libraries for particular processors before
/// those for all.
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

/// Takes strings out of a cache. All entries may point to one long string, so what is taken is bounded as a whole: reading,
/// sorting and writing cost no more than for an honest file of [`LARGEST`] bytes.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(name: &str, flags: u32) -> Entry<'static> {
        let path = format!("/usr/lib/{name}").into_bytes().into();
        Entry { name: name.as_bytes().to_vec().into(), path, flags, os_version: 0, hwcap: Hwcap::Bits(0) }
    }

    #[test]
    fn names_compare_as_the_loader_compares_them() {
        for (one, other, expected) in [
            ("libc.so.6", "libc.so.6", Ordering::Equal),
            ("libc.so.10", "libc.so.6", Ordering::Greater),
            ("liba.so", "libb.so", Ordering::Less),
            ("lib1", "liba", Ordering::Greater),
            ("liba", "lib1", Ordering::Less),
            ("lib", "liba", Ordering::Less),
            ("lib", "lib1", Ordering::Less),
            ("lib01", "lib1", Ordering::Equal),
            ("lib\u{e9}", "liba", Ordering::Less),
        ] {
            assert_eq!(compare_names(one.as_bytes(), other.as_bytes()), expected, "{one} {other}");
        }
    }

    #[test]
    fn written_caches_are_sorted_and_read_back() {
        let mut hwcaps = entry("libz.so.1", 0x303);
        hwcaps.hwcap = Hwcap::Named(b"x86-64-v3".into());
        let mut old = entry("libz.so.1", 0x303);
        old.hwcap = Hwcap::Bits(1 << 40);
        let entries = vec![entry("liba.so.1", 3), entry("libz.so.1", 0x303), old, entry("liba.so.1", 0x303), hwcaps];
        let file = write(entries.clone()).unwrap();
        let read = parse(&file).unwrap();
        let order: Vec<usize> =
            read.iter().map(|read| entries.iter().position(|entry| entry == read).unwrap()).collect();
        assert_eq!(order, [4, 2, 1, 3, 0]);
    }

    #[test]
    fn a_table_in_the_old_format_is_skipped() {
        let new = write(vec![entry("liba.so.1", 3)]).unwrap();
        for old_entries in 0u32..4 {
            let mut file = OLD_MAGIC.to_vec();
            file.extend_from_slice(&old_entries.to_le_bytes());
            file.resize(file.len() + usize::try_from(old_entries).unwrap() * OLD_ENTRY, 7);
            file.resize(file.len().next_multiple_of(8), 0);
            file.extend_from_slice(&new);
            assert_eq!(parse(&file).unwrap(), [entry("liba.so.1", 3)]);
        }
    }

    #[test]
    fn damaged_caches_are_refused() {
        let good = write(vec![entry("liba.so.1", 3)]).unwrap();
        assert_eq!(parse(b""), Err(LdCacheError::Magic));
        assert_eq!(parse(b"ld.so-1.7.0\0\xff\xff\xff\xff"), Err(LdCacheError::Truncated));
        let patched = |at: usize, value: u32| {
            let mut file = good.clone();
            file[at..at + 4].copy_from_slice(&value.to_le_bytes());
            parse(&file).map(|entries| entries.len())
        };
        assert_eq!(patched(20, u32::MAX), Err(LdCacheError::TooLarge));
        assert_eq!(patched(20, 1000), Err(LdCacheError::Truncated));
        assert_eq!(patched(HEADER + 4, u32::MAX), Err(LdCacheError::Offset));
        assert_eq!(patched(HEADER + 8, to_u32(good.len()).unwrap()), Err(LdCacheError::Offset));
        assert_eq!(patched(HEADER + 20, 1 << 30), Err(LdCacheError::Offset), "a name that is not there");
        assert_eq!(patched(32, u32::MAX), Err(LdCacheError::Offset));
        assert!(parse(&good[..good.len() / 2]).is_err());
    }

    /// This machine's own cache, as its ldconfig wrote it, read and written again, is the same to ldconfig.
    /// As many entries as are read, all with the longest path there is: what reading them costs is bounded before that.
    #[test]
    fn many_entries_with_one_long_string_are_refused() {
        let count = u32::try_from(MOST_ENTRIES).unwrap();
        let strings = u32::try_from(HEADER + MOST_ENTRIES * ENTRY).unwrap();
        let mut file = MAGIC.to_vec();
        file.extend(count.to_le_bytes());
        file.resize(HEADER, 0);
        for _ in 0..count {
            file.extend([0x0303, strings + 4000, strings, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes));
        }
        file.extend([b'a'; 4090]);
        file.push(0);
        assert!(file.len() < LARGEST);
        assert_eq!(parse(&file), Err(LdCacheError::TooLarge));
    }

    #[test]
    fn the_hosts_ldconfig_reads_what_is_written() {
        let Ok(file) = std::fs::read("/etc/ld.so.cache") else {
            crate::skipped::skipped("this machine has no /etc/ld.so.cache");
            return;
        };
        let list = |path: &std::path::Path| {
            let mut command = std::process::Command::new("/sbin/ldconfig");
            command.arg("-p").arg("-C").arg(path);
            let output = crate::forks::fork(|| command.output()).ok()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let mut lines: Vec<String> =
                text.lines().filter(|line| line.starts_with('\t')).map(str::to_owned).collect();
            lines.sort();
            output.status.success().then_some(lines)
        };
        let Some(expected) = list(std::path::Path::new("/etc/ld.so.cache")) else {
            crate::skipped::skipped("ldconfig cannot be run here");
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cache");
        std::fs::write(&path, write(parse(&file).unwrap()).unwrap()).unwrap();
        assert_eq!(list(&path), Some(expected));
    }

    fn any_entry() -> impl Strategy<Value = Entry<'static>> {
        let hwcap = prop_oneof![
            Just(Hwcap::Bits(0)),
            (0u64..1 << 61).prop_map(Hwcap::Bits),
            "[a-z0-9-]{1,9}".prop_map(|name| Hwcap::Named(name.into_bytes().into())),
        ];
        ("[a-z0-9.]{0,12}", "/[a-z0-9./]{0,20}", any::<u32>(), any::<u32>(), hwcap).prop_map(
            |(name, path, flags, os_version, hwcap)| Entry {
                name: name.into_bytes().into(),
                path: path.into_bytes().into(),
                flags,
                os_version,
                hwcap,
            },
        )
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(mut file in prop::collection::vec(any::<u8>(), 0..400), start in 0usize..3) {
            let magic: &[u8] = [MAGIC, OLD_MAGIC, b""][start];
            file.splice(0..0, magic.iter().copied());
            if let Ok(entries) = parse(&file) {
                prop_assert!(entries.len() <= file.len() / ENTRY);
            }
        }

        #[test]
        fn a_damaged_cache_is_read_or_refused(
            entries in prop::collection::vec(any_entry(), 0..8),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut file = write(entries).unwrap();
            for (at, byte) in damage {
                let at = at.index(file.len());
                file[at] = byte;
            }
            let _ = parse(&file);
        }

        #[test]
        fn nothing_is_lost_in_writing(entries in prop::collection::vec(any_entry(), 0..20)) {
            let mut expected = entries.clone();
            expected.sort_by(order);
            let file = write(entries).unwrap();
            prop_assert_eq!(parse(&file).unwrap(), expected);
        }

        #[test]
        fn the_order_is_total(one in "[a-c0-2.]{0,6}", two in "[a-c0-2.]{0,6}", three in "[a-c0-2.]{0,6}") {
            let compare = |left: &str, right: &str| compare_names(left.as_bytes(), right.as_bytes());
            prop_assert_eq!(compare(&one, &two), compare(&two, &one).reverse());
            if compare(&one, &two).is_le() && compare(&two, &three).is_le() {
                prop_assert!(compare(&one, &three).is_le());
            }
        }
    }
}
