use abi::layout::{read_u64, write_u32, write_u64};
use proptest::prelude::*;

use super::*;

const PART_PID: usize = EnginePart::procId.at();
const MEDIATOR: u32 = 777;
const OTHER: u32 = 888;
const NOW: u64 = 1_795_000_000_000_000_000;
const RELEASES: [(u16, usize, usize); 3] = [(525, 4, 34_000), (550, 6, 50_704), (580, 6, 55_888)];

fn release(major: u16) -> DriverRelease {
    DriverRelease::new(major, 0, 0)
}

fn part(params: &[u8], place: usize, kind: usize) -> [u32; 2] {
    let size = (params.len() - SAMPLES) / SAMPLE_COUNT;
    let at = SAMPLES + place * size + SAMPLE_HEAD + kind * part_size(size).unwrap();
    [0, PART_PID].map(|field| read_u32(params, at + field).unwrap())
}

fn put_part(params: &mut [u8], place: usize, kind: usize, values: [u32; 2]) {
    let size = (params.len() - SAMPLES) / SAMPLE_COUNT;
    let at = SAMPLES + place * size + SAMPLE_HEAD + kind * part_size(size).unwrap();
    for (field, value) in [0, PART_PID].into_iter().zip(values) {
        assert!(write_u32(params, at + field, value));
    }
}

/// Writes a sample as a driver does, at a place of the parameters' ring.
fn put_sample(params: &mut [u8], place: usize, at_ns: u64, busy: u32, process: u32) {
    let size = (params.len() - SAMPLES) / SAMPLE_COUNT;
    assert!(write_u64(params, SAMPLES + place * size, at_ns));
    for kind in 0..(size - SAMPLE_HEAD) / part_size(size).unwrap() {
        put_part(params, place, kind, if kind == COMPUTE { [busy, process] } else { [0, NO_PID] });
    }
}

/// A second: 40, 60, 100 % of the container's, 100, 50 % of others', and older ones.
fn samples(major: u16) -> Vec<u8> {
    let mut params = ask(release(major));
    for (place, (busy, process)) in
        [(4000, MEDIATOR), (6000, MEDIATOR), (10_000, MEDIATOR), (10_000, OTHER), (5000, OTHER), (9900, MEDIATOR)]
            .into_iter()
            .enumerate()
    {
        put_sample(&mut params, place, NOW - place as u64 * PERIOD_NS, busy, process);
    }
    params
}

const fn all(share_ppm: u32) -> Used {
    Used { used_ppm: None, share_ppm }
}

#[test]
fn the_parameters_are_as_long_as_the_release_says() {
    for (major, _, size) in RELEASES {
        assert_eq!(ask(release(major)).len(), size, "{major}");
    }
}

#[test]
fn samples_are_in_order_on_the_clock_of_schedules() {
    for (major, ..) in RELEASES {
        let found = compute_samples(&samples(major), MEDIATOR, NOW / 1_000 - 50_000_000);
        let expected = [
            (990_000, true),
            (500_000, false),
            (1_000_000, false),
            (1_000_000, true),
            (600_000, true),
            (400_000, true),
        ];
        let sample =
            |(place, (busy_ppm, is_own)): (u64, _)| Sample { at_us: 49_000_000 + place * 200_000, busy_ppm, is_own };
        assert_eq!(found, (0..).zip(expected).map(sample).collect::<Vec<_>>(), "{major}");
    }
    assert!(compute_samples(&ask(release(580)), MEDIATOR, 0).is_empty() && compute_samples(&[0; 100], 0, 0).is_empty());
}

#[test]
fn the_last_second_is_the_cards_and_the_containers() {
    for (major, ..) in RELEASES {
        let load = load(&samples(major), MEDIATOR, NOW + 290_000_000).unwrap();
        assert_eq!((load.card.compute_ppm(), load.own.compute_ppm()), (700_000, 400_000));
    }
    assert_eq!(load(&samples(580), MEDIATOR, NOW + STALE_NS + 1), None, "nothing recent");
    assert_eq!(load(&ask(release(580)), MEDIATOR, NOW), None, "nothing was ever sampled");
    assert_eq!(load(&[0; 100], MEDIATOR, NOW), None);
}

#[test]
fn utilization_is_what_was_used_of_the_share() {
    for (used_ppm, card, own, share_ppm, expected) in [
        // A cap of 25 % that is used up, half, not at all, and by whoever stays on an engine that
        // has nothing to do.
        (Some(250_000), Some(250_000), Some(0), 250_000, Some(1_000_000)),
        (Some(125_000), Some(1_000_000), Some(0), 250_000, Some(500_000)),
        (Some(0), Some(1_000_000), Some(0), 250_000, Some(0)),
        (Some(1_000_000), Some(10_000), Some(10_000), 1_000_000, Some(10_000)),
        // The driver does not sample.
        (Some(125_000), None, None, 250_000, Some(500_000)),
        // No log of switches: what the driver puts down to it, never the card's.
        (None, Some(1_000_000), Some(300_000), 600_000, Some(500_000)),
        (None, Some(1_000_000), Some(0), 1_000_000, Some(0)),
        (None, Some(1_000_000), None, 1_000_000, None),
        // Others' idle time.
        (Some(900_000), Some(900_000), Some(900_000), 300_000, Some(1_000_000)),
    ] {
        let used = Used { used_ppm, share_ppm };
        assert_eq!(used.of_share_ppm(card, own), expected, "{used:?} {card:?} {own:?}");
    }
}

#[test]
fn samples_of_others_are_not_told() {
    for (major, kinds, _) in RELEASES {
        let mut params = samples(major);
        put_part(&mut params, 0, FIRST_VIDEO, [7000, OTHER]);
        put_part(&mut params, 3, 0, [2200, OTHER]);
        put_part(&mut params, 1, 0, [2200, MEDIATOR]);
        own_samples(&mut params, MEDIATOR, Some(30), |_, _| all(1_000_000));
        let told: Vec<_> = (0..6).map(|place| part(&params, place, COMPUTE)).collect();
        let none = [0, NO_PID];
        assert_eq!(told, [[4000, 30], [6000, 30], [10_000, 30], none, none, [9900, 30]], "{major}");
        assert_eq!((part(&params, 0, FIRST_VIDEO), part(&params, 3, 0)), (none, none));
        assert_eq!((part(&params, 1, 0), part(&params, 40, kinds - 1)), ([2200, 30], none));
    }
}

#[test]
fn samples_tell_what_was_used_at_their_time_whoever_they_are_put_down_to() {
    let mut params = samples(580);
    // 10 % of the card in the newest two, nothing before.
    own_samples(&mut params, MEDIATOR, Some(30), |from_ns, until_ns| {
        assert_eq!(until_ns - from_ns, PERIOD_NS);
        let used_ppm = if until_ns > NOW - 2 * PERIOD_NS { 100_000 } else { 0 };
        Used { used_ppm: Some(used_ppm), share_ppm: 250_000 }
    });
    let told: Vec<_> = (0..5).map(|place| part(&params, place, COMPUTE)).collect();
    assert_eq!(told, [[4000, 30], [4000, 30], [0, 30], [0, NO_PID], [0, NO_PID]]);
}

#[test]
fn nothing_is_left_for_nobody_and_of_what_is_not_known() {
    let mut params = samples(580);
    own_samples(&mut params, MEDIATOR, None, |_, _| all(1_000_000));
    assert!(params[SAMPLES..].iter().all(|byte| *byte == 0));
    let mut unknown = vec![9; SAMPLES + SAMPLE_COUNT * 100];
    own_samples(&mut unknown, MEDIATOR, Some(30), |_, _| all(1_000_000));
    assert!(unknown[SAMPLES..].iter().all(|byte| *byte == 0));
    let mut unknown = vec![9; SAMPLES + SAMPLE_COUNT * 100];
    nameless_samples(&mut unknown);
    assert!(unknown[SAMPLES..].iter().all(|byte| *byte == 0));
}

#[test]
fn who_only_looks_sees_the_card_and_nobody() {
    let mut params = samples(580);
    nameless_samples(&mut params);
    let told: Vec<_> = (0..6).map(|place| part(&params, place, COMPUTE)).collect();
    assert_eq!(told, [4000, 6000, 10_000, 10_000, 5000, 9900].map(|busy| [busy, NO_PID]));
}

#[test]
fn a_pointer_and_a_name_are_never_told() {
    let mut params = samples(580);
    for place in 0..SAMPLE_COUNT {
        let at = SAMPLES + place * 776 + SAMPLE_HEAD;
        params[at + 16..at + 128].fill(9);
    }
    own_samples(&mut params, MEDIATOR, Some(30), |_, _| all(1_000_000));
    assert!((0..SAMPLE_COUNT).all(|place| {
        let at = SAMPLES + place * 776 + SAMPLE_HEAD;
        params[at + 16..at + 128].iter().all(|byte| *byte == 0)
    }));
}

#[test]
fn video_engines_are_busy_with_own_work_only() {
    let own = Busy([1, 2, 3000, 4050, 0, 9999]);
    for (engine, percent) in [(1_u32, 30), (2, 41), (3, 0), (4, 100), (0, 0), (5, 0), (u32::MAX, 0)] {
        let mut params = [engine.to_ne_bytes(), 99_u32.to_ne_bytes(), 7_u32.to_ne_bytes()].concat();
        video_engine(&mut params, &own);
        assert_eq!(params, [engine.to_ne_bytes(), u32::to_ne_bytes(percent), 7_u32.to_ne_bytes()].concat());
    }
}

#[test]
fn the_page_is_written_where_the_release_has_it() {
    let busy = Busy([1200, 6249, 0, 300, 0, 0]);
    let written = |release: DriverRelease| {
        let mut page = vec![0; 4096];
        for (at, bytes) in PagePart::of(release)?.writes(&busy, 5) {
            let at = usize::try_from(at).unwrap();
            page[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Some(page)
    };
    assert_eq!(written(release(535)), None);
    for (release, at) in [
        (release(545), 56),
        (DriverRelease::new(550, 163, 1), 72),
        (release(555), 72),
        (release(570), 112),
        (DriverRelease::new(580, 159, 4), 1976),
        (DriverRelease::new(595, 45, 4), 1992),
    ] {
        let page = written(release).unwrap();
        assert_eq!(read_u64(&page, at), Some(5), "{release}");
        let info = &page[at + 8..];
        if release.major < 555 {
            assert_eq!(info[..4], [62, 12, 0, 0]);
        } else {
            let numbers: Vec<u32> = (0..6).map(|number| read_u32(info, 4 * number).unwrap()).collect();
            assert_eq!(numbers, [62, 12, 0, 1_000_000, 3, 1_000_000]);
        }
        assert!(page[..at].iter().all(|byte| *byte == 0), "nothing else is valid");
    }
    let writes = PagePart::of(release(580)).unwrap().writes(&busy, 5);
    assert_eq!(writes[0], (1976, vec![0xff; 8]), "who reads meanwhile notices");
    assert!(asks_for_load(&2_u64.to_ne_bytes()) && asks_for_load(&0x1e_u64.to_ne_bytes()));
    assert!(!asks_for_load(&4_u64.to_ne_bytes()) && !asks_for_load(&[]));
}

proptest! {
    #[test]
    fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..500), now: u64, whole: bool, fill: u8) {
        let mut copy = if whole { vec![fill; 55_888] } else { bytes };
        let length = copy.len();
        if let Some(load) = load(&copy, u32::from(fill), now) {
            prop_assert!(load.own.compute_ppm() <= load.card.compute_ppm() && load.card.compute_ppm() <= 1_000_000);
        }
        prop_assert!(compute_samples(&copy, u32::from(fill), now).iter().all(|sample| sample.busy_ppm <= 1_000_000));
        own_samples(&mut copy.clone(), u32::from(fill), Some(1), |_, _| all(1));
        nameless_samples(&mut copy);
        video_engine(&mut copy, &Busy::default());
        prop_assert_eq!(copy.len(), length);
    }
}
