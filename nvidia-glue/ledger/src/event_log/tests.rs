//! Files of events: what is written, counted and kept, also by many at once.

use base::ContainerKey;
use proptest::prelude::*;

use super::*;

fn container(id: &str) -> ContainerKey {
    ContainerKey { containerd: "/run/containerd.sock".into(), namespace: "k8s.io".into(), id: id.into() }
}

fn lines(directory: &Path, file: &str) -> Vec<String> {
    let text = fs::read_to_string(directory.join("events").join(file)).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn every_kind_has_the_name_that_serde_gives_it() {
    for kind in Kind::ALL {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
    }
}

#[test]
fn a_line_is_the_entry_that_was_written() {
    let state = tempfile::tempdir().unwrap();
    let entry = Entry::new(Kind::Denied, &container("a")).on_card(Some("GPU-1")).counting(3).with_text("too \"much\"");
    EventLog::new(state.path()).write([entry.clone()]);
    let [line] = lines(state.path(), CURRENT).try_into().unwrap();
    let read = parse(line.as_bytes()).unwrap();
    assert!(read.time.parse::<Timestamp>().is_ok(), "{line}");
    assert_eq!(Entry { time: String::new(), ..read }, entry);
    let rest = line.split_once(",\"kind\"").unwrap().1;
    assert_eq!(
        rest,
        r#":"denied","namespace":"k8s.io","container":"a","card":"GPU-1","count":3,"text":"too \"much\""}"#
    );
}

#[test]
fn what_later_versions_add_does_not_hide_an_event() {
    let line = br#"{"time":"2030-01-01T00:00:00Z","kind":"melted","text":"x","heat":{"kelvin":2000}}"#;
    let entry = parse(line).unwrap();
    assert_eq!((entry.kind.as_str(), entry.count, entry.container, entry.pod), ("melted", 1, None, None));
    assert_eq!(parse(br#"{"time":"2030-01-01T00:00:00Z","kind":"mel"#), None, "half a line");
}

#[test]
fn files_are_bounded_and_counters_only_grow() {
    let state = tempfile::tempdir().unwrap();
    let log = EventLog { long_enough: 2000, ..EventLog::new(state.path()) };
    let mut before = 0;
    for round in 0..200 {
        let kind = if round % 2 == 0 { Kind::Refused } else { Kind::Admitted };
        log.write([Entry::new(kind, &container("a")).with_text("no"), Entry::new(kind, &container("b")).counting(2)]);
        let all: u64 = totals(state.path()).unwrap().values().sum();
        assert_eq!(all, before + 3);
        before = all;
    }
    assert_eq!(totals(state.path()).unwrap()["refused"], 300);
    for file in [CURRENT, PREVIOUS] {
        assert!(fs::metadata(state.path().join("events").join(file)).unwrap().len() < 3000);
    }
    let names: Vec<_> = fs::read_dir(state.path().join("events")).unwrap().collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn many_writers_lose_nothing_but_what_was_underway_while_a_file_was_begun() {
    let state = tempfile::tempdir().unwrap();
    let log = EventLog { long_enough: 8000, ..EventLog::new(state.path()) };
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let log = &log;
            scope.spawn(move || {
                for _ in 0..200 {
                    log.write([Entry::new(Kind::Denied, &container(&format!("c{writer}")))]);
                }
            });
        }
    });
    for file in [PREVIOUS, CURRENT] {
        for line in lines(state.path(), file) {
            let is_header = serde_json::from_str::<Header>(&line).is_ok();
            assert!(is_header || parse(line.as_bytes()).is_some(), "{file}: {line}");
        }
    }
    let all = totals(state.path()).unwrap()["denied"];
    // A file is begun no more than 20 times, and three others may be writing a line then.
    assert!((740..=800).contains(&all), "{all}");
}

/// The writer of a new file may be off the processor before its first line stands.
#[test]
fn nobody_begins_a_file_after_one_whose_first_line_is_not_there_yet() {
    let state = tempfile::tempdir().unwrap();
    let directory = directory(state.path());
    let log = EventLog::new(state.path());
    let log_events = |count| log.write([Entry::new(Kind::Refused, &container("a")).counting(count)]);
    let begin = || begin(&directory, OpenOptions::new().append(true).open(directory.join(CURRENT)).unwrap()).unwrap();
    let total = || totals(state.path()).unwrap()["refused"];
    log_events(7);
    let first = begin().unwrap();
    log_events(2);
    assert_eq!(total(), 9);
    let second = begin();
    first.write_header(&directory).unwrap();
    assert_eq!(total(), 9);
    assert!(second.is_none());
    begin().unwrap().write_header(&directory).unwrap();
    assert_eq!((total(), lines(state.path(), CURRENT).len()), (9, 1));
}

#[test]
fn a_torn_line_costs_itself_alone() {
    let state = tempfile::tempdir().unwrap();
    let log = EventLog::new(state.path());
    log.write([Entry::new(Kind::Refused, &container("a"))]);
    let path = state.path().join("events").join(CURRENT);
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"time\":\"20\n").unwrap();
    log.write([Entry::new(Kind::Refused, &container("a"))]);
    assert_eq!(totals(state.path()).unwrap()["refused"], 2);
}

#[test]
fn who_dies_while_a_file_is_begun_costs_no_count() {
    let state = tempfile::tempdir().unwrap();
    let log = EventLog::new(state.path());
    log.write([Entry::new(Kind::Refused, &container("a")).counting(7)]);
    let path = |name: &str| state.path().join("events").join(name);
    fs::rename(path(CURRENT), path(PREVIOUS)).unwrap();
    fs::write(path(NEXT), "").unwrap();
    log.write([Entry::new(Kind::Refused, &container("a"))]);
    assert_eq!(totals(state.path()).unwrap()["refused"], 8, "the file does not say what was before it");
    EventLog { long_enough: 1, ..log.clone() }.write([Entry::new(Kind::Refused, &container("a"))]);
    assert!(!path(NEXT).exists());
    assert_eq!(totals(state.path()).unwrap()["refused"], 9);
    assert_eq!(lines(state.path(), CURRENT), [r#"{"events_before":{"refused":9}}"#]);
}

#[test]
fn a_node_on_which_nothing_happened_has_no_totals() {
    let state = tempfile::tempdir().unwrap();
    assert_eq!(totals(state.path()).unwrap(), Totals::new());
    EventLog::new(state.path()).write([]);
    assert!(!state.path().join("events").exists());
}

#[test]
fn what_cannot_be_written_is_no_error() {
    EventLog::new(Path::new("/proc/no")).write([Entry::new(Kind::Refused, &container("a"))]);
    EventLog::disabled().write([Entry::new(Kind::Refused, &container("a"))]);
}

#[test]
fn the_directories_are_as_the_ledger_makes_them() {
    use std::os::unix::fs::PermissionsExt as _;
    let state = tempfile::tempdir().unwrap();
    let state_dir = state.path().join("egpu");
    EventLog::new(&state_dir).write([Entry::new(Kind::Refused, &container("a"))]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&state_dir), mode(&directory(&state_dir))), (0o711, 0o750));
}

proptest! {
    #[test]
    fn any_text_is_one_bounded_line_of_printable_ascii(id in any::<String>(), text in ".{0,3000}") {
        let entry = Entry::new(Kind::Warning, &container(&id)).with_text(&text);
        let line = serde_json::to_vec(&entry).unwrap();
        prop_assert!(line.iter().all(|byte| (b' '..=b'~').contains(byte)));
        prop_assert!(line.len() < 4096, "{}", line.len());
        prop_assert_eq!(parse(&line), Some(entry));
    }
}
