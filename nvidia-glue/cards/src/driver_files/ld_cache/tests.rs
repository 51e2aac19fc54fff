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
    let order: Vec<usize> = read.iter().map(|read| entries.iter().position(|entry| entry == read).unwrap()).collect();
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

/// This machine's own cache, as its ldconfig wrote it, read and written again, is the same to
/// ldconfig. As many entries as are read, all with the longest path there is: what reading them
/// costs is bounded before that.
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
        testing::skipped("this machine has no /etc/ld.so.cache");
        return;
    };
    let list = |path: &std::path::Path| {
        let mut command = std::process::Command::new("/sbin/ldconfig");
        command.arg("-p").arg("-C").arg(path);
        let output = testing::fork(|| command.output()).ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines: Vec<String> = text.lines().filter(|line| line.starts_with('\t')).map(str::to_owned).collect();
        lines.sort();
        output.status.success().then_some(lines)
    };
    let Some(expected) = list(std::path::Path::new("/etc/ld.so.cache")) else {
        testing::skipped("ldconfig cannot be run here");
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
