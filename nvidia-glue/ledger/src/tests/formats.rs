//! Formats: what other versions of egpu have written is read, kept or refused.

use std::fs;

use base::{CardGrant, CardPolicy, ComputeShare, Format, OverMemory, Period, Priority, format::WrittenFormat};
use runtime_config::request::{
    CardRequest, Condition, DeviceSelector, Dialect, DriverCapabilities, GpuRequest, Isolation, MemoryLimit,
    NvidiaExtras, Operator, PerCard, Placement, PodContainer, Property, Requirement, Share,
};
use schedule::{CardTurn, Epoch, Pass, Timetable, Turn, Window};
use serde_json::{Value, json};
use testing::{fixture, is_fixture};

use crate::{
    AdmitErrorKind, CardSetting, Change, ComputeEnforcement, Enforcement, GrantState, Record, ReleaseReason, Waiter,
    claims::{Claim, ClaimContainer, ClaimGrant, ClaimPod, Gang},
    decision_log::chain,
    event_log,
    formats::{RECORD, SETTINGS, TIMETABLE, WAITER},
    settings::{Changing, Settings},
    test_support::{Bench, FOR_LEAVING, cap, devices, key, mib, part, process, request},
};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");
const CARD: &str = "GPU-039be7ea-a108-510e-6157-7374c95c0000";

/// The fixture of a format, as a build reads it.
fn parsed<T: serde::de::DeserializeOwned>(name: &str, format: Format) -> T {
    let text = fixture(CRATE, &format!("{name}-{}.json", format.number));
    format.check_shares(serde_json::from_slice(&text).unwrap()).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn is_newest(name: &str, format: Format, value: &impl serde::Serialize) {
    let text = serde_json::to_vec_pretty(value).unwrap();
    is_fixture(CRATE, &format!("{name}-{}.json", format.number), &text);
}

/// Every field, and none at its default.
fn full_request() -> GpuRequest {
    GpuRequest {
        dialect: Dialect::Native.into(),
        cards: CardRequest::Devices(vec![DeviceSelector::Index(0), DeviceSelector::Uuid(CARD.to_owned())]),
        whole_cards: CardRequest::Count(1),
        within: Some(CardRequest::PresentNodes { cards: vec![0], capabilities: vec![3] }),
        share: Share::Part {
            memory: PerCard::same(vec![MemoryLimit::bytes(mib(10 << 10))]),
            compute: PerCard::same(cap(30)),
            isolation: Isolation::Memory,
        },
        policy: Some(CardPolicy::Fixed),
        placement: Placement::Spread,
        group: Some("replicas".to_owned()),
        pod: Some(PodContainer { namespace: "team".into(), pod: "train-0".into(), container: "main".into() }),
        priority: Priority::Low,
        pinned_memory: Some(mib(64)),
        over_memory: OverMemory::Kill,
        oom_script: Some("/oom.sh".into()),
        live_update: true,
        driver_capabilities: DriverCapabilities::all(),
        requirements: vec![Requirement {
            variable: "NVIDIA_REQUIRE_CUDA".to_owned(),
            alternatives: vec![vec![Condition {
                property: Property::Cuda,
                operator: Operator::GreaterOrEqual,
                value: "12.0".to_owned(),
            }]],
        }],
        extras: NvidiaExtras {
            imex_channels: vec![1],
            mig_config: true,
            mig_monitor: true,
            gds: true,
            mofed: true,
            gdrcopy: true,
            nvswitch: true,
        },
        asked: vec!["EGPU_MEMORY=10GiB".to_owned()],
        visible_devices_alone: Vec::new(),
        warnings: vec!["ignored".to_owned()],
    }
}

fn full_claim() -> ClaimGrant {
    ClaimGrant {
        claim: Claim {
            uid: "0f4f9f6e-27b5-4fbe-a5c5-5b1f31b5a5e5".to_owned(),
            namespace: "team".to_owned(),
            name: "train-gpu-7xk2v".to_owned(),
            pod: ClaimPod { name: "train".to_owned(), uid: "6d0d4e62-8a43-4cb3-8bd5-f6b5f7c9a3ab".to_owned() },
        },
        request: "gpu".to_owned(),
        gang: Some(Gang { leader: "grant".to_owned(), order: 6, cards: vec![CARD.to_owned()] }),
        containers: vec![ClaimContainer {
            key: key("main"),
            name: "main".to_owned(),
            cgroups: vec!["/sys/fs/cgroup/two".to_owned()],
            init: Some(process(3)),
            leaving: true,
        }],
    }
}

fn full_record() -> Record {
    let WrittenFormat { version, format } = RECORD.written();
    Record {
        version,
        format,
        egpu_version: Some("0.1.0 (0123456789ab)".to_owned()),
        boot_id: "5e9cdc76-8c52-4f49-ac0e-3e1689fb6ddc".to_owned(),
        grant_id: "65a9c89a-7637-4f00-983d-115db0ad70dc".to_owned(),
        container: key("two"),
        state: GrantState::Bound,
        pid_namespace: 4_026_531_836,
        shim: process(1),
        creators: vec![process(2)],
        init: Some(process(3)),
        mediator: Some(process(4)),
        cgroups: vec!["/sys/fs/cgroup/two".to_owned()],
        order: 7,
        priority: Some(Priority::Low),
        present: true,
        leaving: true,
        leaving_since_us: Some(50_890_000_000),
        claim: Some(full_claim()),
        request: full_request(),
        cards: vec![CardGrant {
            index: 0,
            uuid: CARD.to_owned(),
            mig_uuid: Some("MIG-a".to_owned()),
            memory: mib(12 << 10),
            compute: cap(20),
            policy: CardPolicy::Fixed,
            exclusive: true,
            enforcement: Enforcement::Mediated,
            compute_by: ComputeEnforcement::Windows,
            window_loss_us: 150,
            channels: Some(512),
            pinned_memory: Some(mib(300)),
        }],
        exclusive: true,
        admitted_at: "2026-11-23T13:48:29.913343168Z".to_owned(),
    }
}

/// A build cannot act on what names a policy that it does not know.
#[test]
fn another_policy_is_another_version_of_what_names_it() {
    let versions = (RECORD.version, SETTINGS.version, WAITER.version);
    let policies = ["fair", "preemptive", "weighted", "fixed", "soft", "native", "adaptive"];
    assert_eq!((versions, CardPolicy::NAMES), ((6, 3, 4), policies.as_slice()), "each version has its policies");
}

#[test]
fn a_record_is_read_as_it_was_written() {
    is_newest("record", RECORD, &full_record());
    assert_eq!(parsed::<Record>("record", RECORD), full_record());
}

#[test]
fn a_timetable_is_read_as_it_was_written() {
    let turn = |grant: &str, pass| Turn {
        grant_id: grant.to_owned(),
        period_us: 100_000,
        priority: Priority::High,
        cards: vec![CardTurn { uuid: CARD.to_owned(), memory: mib(10 << 10), pass, share_ppm: 300_000 }],
    };
    let windows = Pass::Windows(vec![Window { start_us: 30_000, end_us: 60_000 }]);
    let turns = vec![
        turn("65a9c89a-7637-4f00-983d-115db0ad70dc", windows),
        turn("weight", Pass::Weight(2)),
        turn("free", Pass::Free),
        turn("turns", Pass::Turns(3)),
    ];
    let WrittenFormat { version, format } = TIMETABLE.written();
    let epochs = vec![Epoch { from_us: 50_890_933_321, turns }];
    let table = Timetable { version, format, boot_id: "boot".to_owned(), revision: 9, epochs };
    is_newest("timetable", TIMETABLE, &table);
    assert_eq!(parsed::<Timetable>("timetable", TIMETABLE), table);
}

#[test]
fn settings_are_read_as_they_were_written() {
    let set = CardSetting { policy: Some(CardPolicy::Fixed), period: Some(Period::Us(50_000)) };
    let changing = Changing { uuid: CARD.to_owned(), policy: CardPolicy::Soft, hard_caps: true };
    let settings = Settings { cards: [(CARD.to_owned(), set)].into(), changing: Some(changing), ..Settings::default() };
    is_newest("settings", SETTINGS, &settings);
    assert_eq!(parsed::<Settings>("settings", SETTINGS), settings);
}

#[test]
fn a_waiter_is_read_as_it_was_written() {
    let bench = Bench::new(1);
    bench.admit("a", &request(devices(&[0]), part(30 << 10, ComputeShare::Unlimited))).unwrap();
    bench.leave("a");
    let mut attempt = bench.attempt("three", &full_request_of(8 << 10), FOR_LEAVING);
    assert!(attempt.try_once(&bench.log).unwrap().is_none(), "it waits");
    let mut waiter = serde_json::to_value(bench.ledger.waiting().unwrap().remove(0)).unwrap();
    // What differs each time.
    for (field, value) in
        [("since", json!("2026-11-23T13:48:29Z")), ("until_us", json!(7)), ("pid_namespace", json!(8))]
    {
        waiter[field] = value;
    }
    is_newest("waiter", WAITER, &waiter);
    let read = parsed::<Waiter>("waiter", WAITER);
    assert_eq!((read.container.id.as_str(), read.order), ("three", 0));
}

/// A request that can be met.
fn full_request_of(memory_mib: u64) -> GpuRequest {
    request(devices(&[0]), part(memory_mib, ComputeShare::Unlimited))
}

#[test]
fn events_are_read_also_of_a_kind_that_is_not_known() {
    let text = fixture(CRATE, "events-1.jsonl");
    let entries: Vec<_> = text.split(|byte| *byte == b'\n').filter_map(event_log::parse).collect();
    let kinds: Vec<&str> = entries.iter().map(|entry| entry.kind.as_str()).collect();
    assert_eq!(kinds, ["admitted", "admitted", "changed", "policy", "waiting"]);
    let later = br#"{"time":"2026-11-23T13:48:29Z","kind":"of-later","new":{},"text":"x"}"#;
    assert_eq!(event_log::parse(later).unwrap().kind, "of-later");
}

/// Adds fields, as a later format would, to what a file says: to itself, a card's part, a request.
fn add_fields(bench: &Bench, file: &str) {
    let path = bench.directory.path().join(file);
    let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    value["format"] = json!(RECORD.number + 5);
    value["new"] = json!({ "kept": 1 });
    if file.starts_with("ledger/") {
        value["cards"][0]["new"] = json!(2);
        value["request"]["new"] = json!([3]);
    }
    fs::write(&path, serde_json::to_vec(&value).unwrap()).unwrap();
}

fn read(bench: &Bench, file: &str) -> Value {
    serde_json::from_slice(&fs::read(bench.directory.path().join(file)).unwrap()).unwrap()
}

fn record_file(bench: &Bench) -> String {
    format!("ledger/{}", bench.files()[0].0)
}

#[test]
fn a_later_formats_fields_outlive_every_change() {
    let bench = Bench::new(1);
    let share = request(devices(&[0]), part(8 << 10, cap(20)));
    bench.admit("a", &share).unwrap();
    let file = record_file(&bench);
    let is_kept = |after: &str| {
        let record = read(&bench, &file);
        let fields = [&record["new"]["kept"], &record["cards"][0]["new"], &record["request"]["new"][0]];
        assert_eq!(fields, [1, 2, 3], "{after}");
        assert_eq!(
            (&record["format"], &record["version"]),
            (&json!(RECORD.number + 5), &json!(RECORD.version)),
            "{after}"
        );
    };
    add_fields(&bench, &file);
    assert!(bench.leave("a"));
    is_kept("bind, and its leaving");
    bench.ledger.set_present(&key("a"), true).unwrap();
    is_kept("its presence");
    let change = Change { compute: Some(PerCard::same(cap(30))), ..Change::default() };
    bench.ledger.set(&bench.inventory, &bench.limits, &key("a"), &change, &bench.log).unwrap();
    is_kept("set");
    assert_eq!(read(&bench, &file)["cards"][0]["compute"]["cap"]["percent"], 30);
    let uuid = &bench.inventory.cards[0].uuid;
    let policy = |period_us| {
        let setting = CardSetting { policy: Some(CardPolicy::Fixed), period: Some(Period::Us(period_us)) };
        bench.ledger.set_policy(&bench.inventory, &bench.limits, uuid, setting, &bench.log).unwrap();
    };
    policy(60_000);
    add_fields(&bench, "settings.json");
    policy(80_000);
    is_kept("policy");
    let settings = read(&bench, "settings.json");
    assert_eq!((&settings["new"]["kept"], &settings["cards"][uuid]["period"]), (&json!(1), &json!(80_000)));
    // Another container of the name has none of it.
    bench.ledger.release(&key("a"), ReleaseReason::Ended, &bench.log).unwrap();
    bench.admit("a", &share).unwrap();
    assert_eq!(read(&bench, &file).get("new"), None);
}

/// Makes a file one of a later, incompatible format.
fn make_incompatible(bench: &Bench, file: &str) {
    let path = bench.directory.path().join(file);
    let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    (value["version"], value["format"]) = (json!(70), json!(71));
    fs::write(path.with_extension("new"), serde_json::to_vec(&value).unwrap()).unwrap();
    fs::rename(path.with_extension("new"), path).unwrap();
}

#[test]
fn beside_an_incompatible_record_nothing_is_granted_and_everything_given_back() {
    let bench = Bench::new(2);
    let share = |card| request(devices(&[card]), part(8 << 10, cap(20)));
    bench.admit("new", &share(0)).unwrap();
    let file = record_file(&bench);
    bench.admit("own", &share(0)).unwrap();
    bench.admit("other", &share(1)).unwrap();
    let timetable = |bench: &Bench| crate::Ledger::timetable(bench.directory.path()).unwrap();
    let before = timetable(&bench);
    make_incompatible(&bench, &file);
    let error = bench.admit("late", &share(1)).unwrap_err();
    assert_eq!(error.kind(), AdmitErrorKind::Internal);
    let text = chain(&error);
    for part in
        [file.as_str(), "format 71, for readers of format 70", "end its container with the egpu that started it"]
    {
        assert!(text.contains(part), "{text}");
    }
    let change = Change { compute: Some(PerCard::same(cap(30))), ..Change::default() };
    bench.ledger.set(&bench.inventory, &bench.limits, &key("own"), &change, &bench.log).unwrap_err();
    for id in ["own", "other"] {
        bench.ledger.release(&key(id), ReleaseReason::Ended, &bench.log).unwrap().expect("it had a grant");
    }
    bench.ledger.release(&key("new"), ReleaseReason::Ended, &bench.log).unwrap_err();
    assert_eq!(timetable(&bench), before, "nobody's windows have changed");
    assert_eq!(bench.files().len(), 1);
    fs::remove_file(bench.directory.path().join(file)).unwrap();
    bench.admit("late", &share(0)).unwrap();
    let turns = timetable(&bench).epochs.last().map(|epoch| epoch.turns.len());
    assert_eq!(turns, Some(1), "the timetables are made anew");
}

#[test]
fn settings_of_an_incompatible_format_are_not_guessed() {
    let bench = Bench::new(1);
    let share = request(devices(&[0]), part(8 << 10, cap(20)));
    bench.admit("a", &share).unwrap();
    let setting = CardSetting { policy: Some(CardPolicy::Fixed), period: Some(Period::Us(60_000)) };
    let uuid = &bench.inventory.cards[0].uuid;
    bench.ledger.set_policy(&bench.inventory, &bench.limits, uuid, setting, &bench.log).unwrap();
    make_incompatible(&bench, "settings.json");
    let text = chain(&bench.admit("b", &share).unwrap_err());
    assert!(text.contains("settings.json") && text.contains("format 71"), "{text}");
    bench.ledger.release(&key("a"), ReleaseReason::Ended, &bench.log).unwrap().expect("it had a grant");
    assert_eq!(read(&bench, "settings.json")["version"], 70, "they are left as they are");
}

#[test]
fn a_place_in_the_queue_of_an_incompatible_format_counts_for_nobody_and_stays() {
    let bench = Bench::new(1);
    bench.admit("a", &full_request_of(30 << 10)).unwrap();
    bench.leave("a");
    let mut attempt = bench.attempt("b", &full_request_of(8 << 10), FOR_LEAVING);
    assert!(attempt.try_once(&bench.log).unwrap().is_none());
    let directory = bench.directory.path().join("waiting");
    let name = fs::read_dir(&directory).unwrap().next().unwrap().unwrap().file_name();
    make_incompatible(&bench, &format!("waiting/{}", name.to_str().unwrap()));
    assert!(bench.waiting().is_empty());
    bench.admit("c", &full_request_of(1 << 10)).unwrap();
    assert!(directory.join(name).exists());
}

#[test]
fn a_damaged_record_hides_no_other() {
    let bench = Bench::new(1);
    bench.admit("a", &request(devices(&[0]), part(1 << 10, cap(20)))).unwrap();
    let file = record_file(&bench);
    bench.admit("b", &request(devices(&[0]), part(1 << 10, cap(20)))).unwrap();
    fs::write(bench.directory.path().join(&file), "{").unwrap();
    let (records, errors) = bench.ledger.readable_records().unwrap();
    assert_eq!(records.iter().map(|record| record.container.id.as_str()).collect::<Vec<_>>(), ["b"]);
    assert!(matches!(&errors[..], [error] if chain(error).contains(&file)), "{errors:?}");
    assert!(bench.ledger.records().is_err(), "who decides needs all of them");
}
