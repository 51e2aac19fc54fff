//! How busy a card is, as a container is to see it: with its own work, against its own share.
//!
//! Programs learn it from three places: the driver's samples (`NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2`), which are the
//! card's, each with the process that it is put down to; a page that they map (`RM_USER_SHARED_DATA`); and a control for each kind of video
//! engine.

use crate::{
    rm::{
        DriverRelease,
        layout::{read_u32, read_u64, write_u32},
    },
    schedule::{meter::of_share, work::Sample},
};

/// Of `NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS` (ctrl2080perf.h): type, size of the samples, their count and the
/// oldest stand before them.
const SAMPLES: usize = 16;
const SAMPLE_COUNT: usize = 72;
const TYPE: usize = 0;
const BUFFER_SIZE: usize = 4;
/// `NV2080_CTRL_GPUMON_SAMPLE_TYPE_PERFMON_UTIL`.
const UTILIZATION_SAMPLES: u32 = 2;
/// A sample begins with its time: nanoseconds of the card's clock, which the driver sets to the host's real time.
const SAMPLE_HEAD: usize = 8;
/// `NV2080_GPUMON_PID_INVALID`.
const NO_PID: u32 = u32::MAX;
/// Of an engine's part: how busy it was, in hundredths of a percent; a scale; whose process.
const PART_SCALE: usize = 4;
const PART_PID: usize = 8;
const PART_OTHER_PID: usize = 12;
/// What lies between two samples.
const PERIOD_NS: u64 = 200_000_000;
/// So much of the newest samples tells how busy the card is now, and not if they are older than that.
const RECENT_NS: u64 = 1_000_000_000;
const STALE_NS: u64 = 3_000_000_000;
/// All of an engine's time, in hundredths of a percent, and how many millionths one is.
const ALL: u32 = 10_000;
const PPM: u32 = 100;

/// Kinds of engines in the order of a sample: frame buffer (bandwidth), graphics and compute, encoders, decoders, JPEG, optical flow.
/// Before 550 there are four.
const KINDS: usize = 6;
const COMPUTE: usize = 1;
const FIRST_VIDEO: usize = 2;

/// How busy the engines of each kind were, in hundredths of a percent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::mediate) struct Busy([u32; KINDS]);

impl Busy {
    /// The one that computes, in millionths.
    pub(in crate::mediate) const fn compute_ppm(&self) -> u32 {
        self.0[COMPUTE].saturating_mul(PPM)
    }

    /// The same with another figure for the engine that computes.
    pub(in crate::mediate) const fn with_compute_ppm(mut self, ppm: u32) -> Self {
        self.0[COMPUTE] = ppm / PPM;
        self
    }

    fn percent(&self, kind: usize) -> u32 {
        self.0.get(kind).map_or(0, |hundredths| hundredths.saturating_add(PPM / 2) / PPM).min(100)
    }
}

/// How busy a card was lately, by the driver's samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::mediate) struct Load {
    /// With whosever work.
    pub(in crate::mediate) card: Busy,
    /// Of that, what the driver puts down to the container.
    pub(in crate::mediate) own: Busy,
}

/// What a container used of the compute engine in one sample's time, and what it was granted; millionths of the card's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::mediate) struct Used {
    /// `None`: not known, so that what the driver puts down to it counts.
    pub(in crate::mediate) used_ppm: Option<u32>,
    /// The share.
    pub(in crate::mediate) share_ppm: u32,
}

impl Used {
    /// Who used an engine was not busier than the engine was: a container stays on it when its work is done.
    pub(in crate::mediate) fn of_share_ppm(self, card_ppm: Option<u32>, own_ppm: Option<u32>) -> Option<u32> {
        let used_ppm = match self.used_ppm {
            Some(used_ppm) => used_ppm.min(card_ppm.unwrap_or(u32::MAX)),
            None => own_ppm?,
        };
        Some(of_share(used_ppm, self.share_ppm))
    }
}

/// Bytes of one engine's part of a sample (`NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE`), by the bytes of a sample: 525 has four engines,
/// 550 six, 570 a pointer more in each.
fn part_size(sample: usize) -> Option<usize> {
    [(4, 116), (6, 116), (6, 128)]
        .into_iter()
        .find(|(count, size)| SAMPLE_HEAD + count * size == sample)
        .map(|(_, size)| size)
}

/// The parameters that ask for the samples.
pub(in crate::mediate) fn ask(release: DriverRelease) -> Vec<u8> {
    let (parts, part) = match release.major {
        ..=545 => (4, 116),
        546..=569 => (6, 116),
        _ => (6, 128),
    };
    let samples = SAMPLE_COUNT * (SAMPLE_HEAD + parts * part);
    let mut params = vec![0; SAMPLES + samples];
    let _ = write_u32(&mut params, TYPE, UTILIZATION_SAMPLES);
    let _ = write_u32(&mut params, BUFFER_SIZE, u32::try_from(samples).unwrap_or(0));
    params
}

/// What the samples say of the last second before `now_ns` (real time). `None`: nothing that recent.
pub(in crate::mediate) fn load(params: &[u8], mediator: u32, now_ns: u64) -> Option<Load> {
    let samples = params.get(SAMPLES..)?;
    let size = samples.len() / SAMPLE_COUNT;
    let part = part_size(size)?;
    let at = |sample: &&[u8]| read_u64(sample, 0).unwrap_or(0);
    let newest_ns = samples.chunks_exact(size).map(|sample| at(&sample)).max()?;
    if newest_ns == 0 || now_ns.saturating_sub(newest_ns) > STALE_NS {
        return None;
    }
    let recent = samples.chunks_exact(size).filter(|sample| newest_ns - at(sample) < RECENT_NS);
    let (mut load, mut count) = (Load::default(), 0_u32);
    for sample in recent {
        count += 1;
        let parts = sample.get(SAMPLE_HEAD..).unwrap_or_default().chunks_exact(part);
        for ((part, card), own) in parts.zip(&mut load.card.0).zip(&mut load.own.0) {
            let busy = read_u32(part, 0).unwrap_or(0).min(ALL);
            *card += busy;
            *own += if read_u32(part, PART_PID) == Some(mediator) { busy } else { 0 };
        }
    }
    for sum in load.card.0.iter_mut().chain(&mut load.own.0) {
        *sum = sum.checked_div(count).unwrap_or(0);
    }
    Some(load)
}

/// How busy the compute engine was, sample by sample, in order. `ahead_us`: the real time less the clock of all schedules.
pub(in crate::mediate) fn compute_samples(params: &[u8], mediator: u32, ahead_us: u64) -> Vec<Sample> {
    let samples = params.get(SAMPLES..).unwrap_or_default();
    let size = samples.len() / SAMPLE_COUNT;
    let Some(part) = part_size(size) else { return Vec::new() };
    let sample = |sample: &[u8]| {
        // One that was never taken has no time.
        let at_ns = read_u64(sample, 0).filter(|at_ns| *at_ns > 0)?;
        let at = SAMPLE_HEAD + COMPUTE * part;
        let (busy, owner) = (read_u32(sample, at)?.min(ALL), read_u32(sample, at + PART_PID)?);
        let at_us = (at_ns / 1_000).checked_sub(ahead_us)?;
        Some(Sample { at_us, busy_ppm: busy * PPM, is_own: owner == mediator })
    };
    let mut all: Vec<Sample> = samples.chunks_exact(size).filter_map(sample).collect();
    all.sort_unstable_by_key(|sample| sample.at_us);
    all
}

/// Leaves of the samples what is the container's: `mediator` is what the driver knows it by, `pid` its own process that they are put down
/// to. `used` says what it used of the compute engine between two instants of real time, in nanoseconds. With no process, or in a layout
/// that is not known, nothing is left.
pub(in crate::mediate) fn own_samples(
    params: &mut [u8],
    mediator: u32,
    pid: Option<u32>,
    used: impl Fn(u64, u64) -> Used,
) {
    each_part(params, pid.is_some(), |at_ns, kind, busy, owner| {
        let own = if owner == mediator { busy } else { 0 };
        let shown = if kind == COMPUTE {
            let used = used(at_ns.saturating_sub(PERIOD_NS), at_ns);
            let ppm = used.of_share_ppm(Some(busy.saturating_mul(PPM)), Some(own.saturating_mul(PPM)));
            ppm.unwrap_or(0) / PPM
        } else {
            own
        };
        (shown, pid.filter(|_| shown > 0 || owner == mediator))
    });
}

/// Leaves how busy the card was, and not with whose work: for who looks at a card and has no part in it.
pub(in crate::mediate) fn nameless_samples(params: &mut [u8]) {
    each_part(params, true, |_, _, busy, _| (busy, None));
}

/// Writes the parts of all samples anew: how busy, and whose process, from when, which engine, how busy, whose process.
fn each_part(params: &mut [u8], is_any: bool, shown: impl Fn(u64, usize, u32, u32) -> (u32, Option<u32>)) {
    let Some(samples) = params.get_mut(SAMPLES..) else { return };
    let size = samples.len() / SAMPLE_COUNT;
    let Some(part_size) = part_size(size).filter(|_| is_any) else { return samples.fill(0) };
    for sample in samples.chunks_exact_mut(size) {
        let at_ns = read_u64(sample, 0).unwrap_or(0);
        let parts = sample.get_mut(SAMPLE_HEAD..).unwrap_or_default().chunks_exact_mut(part_size);
        for (kind, part) in parts.enumerate() {
            let (busy, owner) = (read_u32(part, 0).unwrap_or(0).min(ALL), read_u32(part, PART_PID).unwrap_or(NO_PID));
            let scale = read_u32(part, PART_SCALE).unwrap_or(0);
            // A sample that was never taken.
            let (busy, pid) = if at_ns == 0 { (0, None) } else { shown(at_ns, kind, busy, owner) };
            // The name of a virtual machine's process, and a pointer into the kernel, go in any case.
            part.fill(0);
            let _ = write_u32(part, PART_PID, pid.unwrap_or(NO_PID));
            let _ = write_u32(part, PART_OTHER_PID, NO_PID);
            let _ = write_u32(part, 0, busy);
            let _ = write_u32(part, PART_SCALE, if busy > 0 { scale } else { 0 });
        }
    }
}

/// Of `NV2080_CTRL_PERF_GET_VID_ENG_PERFMON_SAMPLE_PARAMS`: which engine (`NV2080_CTRL_CMD_PERF_VID_ENG`, from 1), how busy in percent.
const VIDEO_ENGINE: usize = 0;
const VIDEO_BUSY: usize = 4;

/// How busy video engines are with the container's work.
pub(in crate::mediate) fn video_engine(params: &mut [u8], own: &Busy) {
    let engine = read_u32(params, VIDEO_ENGINE).and_then(|engine| usize::try_from(engine).ok()).unwrap_or(0);
    let kind = engine.checked_sub(1).map_or(KINDS, |engine| engine.saturating_add(FIRST_VIDEO));
    let _ = write_u32(params, VIDEO_BUSY, own.percent(kind));
}

/// `NV00DE_RUSD_POLL_PERF` (class/cl00de.h): who asks for that wants to know how busy the card is. What is asked for is the first number of
/// the class's parameters, and of `NV00DE_CTRL_CMD_REQUEST_DATA_POLL`'s.
pub(in crate::mediate) fn asks_for_load(params: &[u8]) -> bool {
    const POLL_PERF: u32 = 2;
    read_u32(params, 0).is_some_and(|mask| mask & POLL_PERF != 0)
}

/// Where `NV00DE_SHARED_DATA` has `perfDevUtil`, and how it is written there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::mediate) struct PagePart {
    at: u64,
    /// Two bytes; since 555 two words, and two for each kind of video engine.
    is_wide: bool,
}

/// From which release on it is where (class/cl00de.h of the open releases from 525 to 595).
const PAGE_PARTS: [(DriverRelease, PagePart); 6] = [
    (DriverRelease::new(545, 0, 0), PagePart { at: 56, is_wide: false }),
    (DriverRelease::new(550, 0, 0), PagePart { at: 72, is_wide: false }),
    (DriverRelease::new(555, 0, 0), PagePart { at: 72, is_wide: true }),
    (DriverRelease::new(560, 0, 0), PagePart { at: 112, is_wide: true }),
    (DriverRelease::new(575, 0, 0), PagePart { at: 1976, is_wide: true }),
    (DriverRelease::new(590, 0, 0), PagePart { at: 1992, is_wide: true }),
];
/// `RUSD_TIMESTAMP_WRITE_IN_PROGRESS`.
const BEING_WRITTEN: u64 = u64::MAX;

impl PagePart {
    /// `None`: the release's page does not tell how busy the card is.
    pub(in crate::mediate) fn of(release: DriverRelease) -> Option<Self> {
        PAGE_PARTS.iter().rev().find(|(since, _)| *since <= release).map(|(_, part)| *part)
    }

    /// What is to be written where, one after the other, so that who reads meanwhile notices. `at_ns`: real time.
    pub(in crate::mediate) fn writes(self, busy: &Busy, at_ns: u64) -> [(u64, Vec<u8>); 3] {
        // gpuPercentBusy, memoryPercentBusy, {clkPercentBusy, samplingPeriodUs} of each kind of video engine.
        const PERIOD_US: u32 = 1_000_000;
        let (gpu, memory) = (busy.percent(COMPUTE), busy.percent(0));
        let mut info = Vec::new();
        if self.is_wide {
            let video = (FIRST_VIDEO..KINDS).flat_map(|kind| [busy.percent(kind), PERIOD_US]);
            [gpu, memory].into_iter().chain(video).for_each(|number| info.extend(number.to_ne_bytes()));
        } else {
            info.extend([gpu, memory].map(|percent| u8::try_from(percent).unwrap_or(100)));
        }
        let stamp = |stamp: u64| (self.at, stamp.to_ne_bytes().to_vec());
        [stamp(BEING_WRITTEN), (self.at + 8, info), stamp(at_ns)]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rm::layout::write_u64;

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
            let sample = |(place, (busy_ppm, is_own)): (u64, _)| Sample {
                at_us: 49_000_000 + place * 200_000,
                busy_ppm,
                is_own,
            };
            assert_eq!(found, (0..).zip(expected).map(sample).collect::<Vec<_>>(), "{major}");
        }
        assert!(
            compute_samples(&ask(release(580)), MEDIATOR, 0).is_empty() && compute_samples(&[0; 100], 0, 0).is_empty()
        );
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
            // A cap of 25 % that is used up, half, not at all, and by whoever stays on an engine that has nothing to do.
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
}
