//! Files that others write and egpu reads: status and usage files (of mediators that may be
//! compromised), the card's log of switches (torn records), the timetable, and the library caches
//! of images. Never a panic, whatever the numbers.
#![no_main]

use base::{block_file::BlockFile, usage::Usage};
use cards::driver_files::ld_cache;
use libfuzzer_sys::fuzz_target;
use schedule::{
    Presence, Residency, Status, Switch, Timeline, Timetable,
    priority::Yielding,
    soft::{Groups, SoftMember, Steering},
};

// The first byte says which.
fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = input.split_first() else { return };
    match kind % 5 {
        0 => texts(rest),
        1 => switches(rest),
        2 => timetable(rest),
        3 => library_cache(rest),
        _ => blocks(rest),
    }
});

fn blocks(bytes: &[u8]) {
    let _ = (BlockFile::<Usage>::parse(bytes), BlockFile::<Status>::parse(bytes));
}

fn texts(text: &[u8]) {
    if let Ok(usage) = serde_json::from_slice::<Usage>(text) {
        let written = serde_json::to_vec(&usage).unwrap();
        assert_eq!(serde_json::from_slice::<Usage>(&written).unwrap(), usage);
    }
    if let Ok(status) = serde_json::from_slice::<Status>(text) {
        let written = serde_json::to_vec(&status).unwrap();
        assert_eq!(serde_json::from_slice::<Status>(&written).unwrap(), status);
    }
}

fn switches(bytes: &[u8]) {
    let (mut residency, mut steering, mut yielding) = (Residency::default(), Steering::default(), Yielding::default());
    let mut now_us = 0_u64;
    for record in bytes.chunks_exact(12) {
        let time = u64::from_le_bytes(record[..8].try_into().unwrap());
        let [process, context, presence, step] = record[8..] else { return };
        let presence = if presence % 2 == 0 { Presence::On } else { Presence::Off };
        residency.add(&Switch { at_ns: time, process: process.into(), context: context.into(), presence });
        // The clock of the reader is its own.
        now_us += u64::from(step) << 12;
        let now_ns = now_us * 1_000;
        let member = |process: u32| SoftMember {
            weight: process * 0x0101_0101,
            used_us: residency.used_us(process, now_ns),
            idle_us: residency.idle_us(process, now_ns),
        };
        let others = [member(u32::from(context)), member(3)];
        let groups = Groups { all: context.into(), working: (step % 3 > 0).then_some(usize::from(step)) };
        if let Some(slice_us) = steering.slice_us(now_us, member(process.into()), groups, &others, time >> 10) {
            assert!(slice_us > 0);
        }
        let came_us = residency.last_came_ns(process.into()).map(|ns| ns / 1_000);
        let verdict = yielding.verdict(now_us, u64::from(context) << 10, came_us);
        assert!(verdict.may_run || verdict.look_at_us >= now_us);
        let _ = (residency.contexts(process.into(), now_ns), residency.last_went_ns(process.into()));
        if step == 0xff {
            residency.forget(now_ns);
        }
    }
}

fn timetable(text: &[u8]) {
    let Ok(table) = serde_json::from_slice::<Timetable>(text) else { return };
    let turns = table.epochs.iter().flat_map(|epoch| &epoch.turns);
    let cards = turns.flat_map(|turn| turn.cards.iter().map(move |card| (turn, card)));
    for (turn, card) in cards.take(8) {
        let timeline = Timeline::of(&table, &turn.grant_id, &card.uuid, &Timeline::never());
        let instants = table.epochs.iter().map(|epoch| epoch.from_us).chain([0, 1, 1 << 40, u64::MAX]);
        for mut now_us in instants {
            let _ = timeline.is_unlimited(now_us);
            for _ in 0..4 {
                let Some(span) = timeline.span(now_us) else { break };
                assert!(span.start_us < span.end_us && span.end_us > now_us, "{span:?} after {now_us}");
                now_us = span.end_us;
            }
        }
    }
}

fn library_cache(bytes: &[u8]) {
    let Ok(entries) = ld_cache::parse(bytes) else { return };
    let count = entries.len();
    if let Ok(written) = ld_cache::write(entries) {
        assert_eq!(ld_cache::parse(&written).unwrap().len(), count, "what is written is read");
    }
}
