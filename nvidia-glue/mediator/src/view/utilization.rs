//! Load of a card, as a container is to see it: with its own work, against its own share.
//!
//! Programs learn it from three places: the driver's samples
//! (`NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2`), which are the card's, each with the
//! process that it is put down to; a page that they map (`RM_USER_SHARED_DATA`); and a control for
//! each kind of video engine.

use abi::{
    DriverRelease,
    layout::read_u32,
    params::{
        NV00DE_ALLOC_PARAMETERS, NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS as Samples,
        NV2080_CTRL_PERF_GET_VID_ENG_PERFMON_SAMPLE_PARAMS as VideoSample,
        NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE as EnginePart,
        NV2080_CTRL_PERF_GPUMON_PERFMON_UTIL_SAMPLE as UtilSample,
    },
};
use schedule::{meter::of_share, work::Sample};

/// Offset of the samples in the parameters.
const SAMPLES: usize = Samples::samples.at();
const SAMPLE_COUNT: usize = 72;
/// `NV2080_CTRL_GPUMON_SAMPLE_TYPE_PERFMON_UTIL`.
const UTILIZATION_SAMPLES: u8 = 2;
/// Bytes of a sample's time: nanoseconds of the card's clock, which the driver sets to the host's
/// real time.
const SAMPLE_HEAD: usize = UtilSample::fb.at();
/// `NV2080_GPUMON_PID_INVALID`.
const NO_PID: u32 = u32::MAX;
/// Time between two samples.
const PERIOD_NS: u64 = 200_000_000;
/// So much of the newest samples tells how busy the card is now, and not if they are older than
/// that.
const RECENT_NS: u64 = 1_000_000_000;
const STALE_NS: u64 = 3_000_000_000;
/// All of an engine's time, in hundredths of a percent, and how many millionths one is.
const ALL: u32 = 10_000;
const PPM: u32 = 100;

/// Kinds of engines in the order of a sample: frame buffer (bandwidth), graphics and compute,
/// encoders, decoders, JPEG, optical flow. Before 550 there are four.
const KINDS: usize = 6;
const COMPUTE: usize = 1;
const FIRST_VIDEO: usize = 2;

/// Load of the engines of each kind, in hundredths of a percent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Busy([u32; KINDS]);

impl Busy {
    /// The one that computes, in millionths.
    pub(crate) const fn compute_ppm(&self) -> u32 {
        self.0[COMPUTE].saturating_mul(PPM)
    }

    /// The same with another figure for the engine that computes.
    pub(crate) const fn with_compute_ppm(mut self, ppm: u32) -> Self {
        self.0[COMPUTE] = ppm / PPM;
        self
    }

    fn percent(&self, kind: usize) -> u32 {
        self.0.get(kind).map_or(0, |hundredths| hundredths.saturating_add(PPM / 2) / PPM).min(100)
    }
}

/// Load of a card lately, by the driver's samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// With whosever work.
    pub(crate) card: Busy,
    /// Of that, what the driver puts down to the container.
    pub(crate) own: Busy,
}

/// Use of the compute engine by a container in one sample's time, and its grant; millionths of the
/// card's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    /// `None`: not known, so that what the driver puts down to it counts.
    pub(crate) used_ppm: Option<u32>,
    pub(crate) share_ppm: u32,
}

impl Used {
    /// Bounds the use by the load: who used an engine was not busier than the engine was: a
    /// container stays on it when its work is done.
    pub(crate) fn of_share_ppm(self, card_ppm: Option<u32>, own_ppm: Option<u32>) -> Option<u32> {
        let used_ppm = match self.used_ppm {
            Some(used_ppm) => used_ppm.min(card_ppm.unwrap_or(u32::MAX)),
            None => own_ppm?,
        };
        Some(of_share(used_ppm, self.share_ppm))
    }
}

/// Bytes of one engine's part of a sample (`NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE`), by the
/// bytes of a sample: 525 has four engines, 550 six, 570 a pointer more in each.
fn part_size(sample: usize) -> Option<usize> {
    [(4, 116), (6, 116), (6, 128)]
        .into_iter()
        .find(|(count, size)| SAMPLE_HEAD + count * size == sample)
        .map(|(_, size)| size)
}

/// The parameters that ask for the samples.
pub(crate) fn ask(release: DriverRelease) -> Vec<u8> {
    let (parts, part) = match release.major {
        ..=545 => (4, 116),
        546..=569 => (6, 116),
        _ => (6, 128),
    };
    let samples = SAMPLE_COUNT * (SAMPLE_HEAD + parts * part);
    let mut params = vec![0; SAMPLES + samples];
    let _ = Samples::r#type.set(&mut params, UTILIZATION_SAMPLES);
    let _ = Samples::bufSize.set(&mut params, u32::try_from(samples).unwrap_or(0));
    params
}

/// Load of the last second before `now_ns` (real time), by the samples. `None`: nothing
/// that recent.
pub(crate) fn load(params: &[u8], mediator: u32, now_ns: u64) -> Option<Load> {
    let samples = params.get(SAMPLES..)?;
    let size = samples.len() / SAMPLE_COUNT;
    let part = part_size(size)?;
    let at = |sample: &&[u8]| UtilSample::timeStamp.get(sample).unwrap_or(0);
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
            let busy = EnginePart::util.get(part).unwrap_or(0).min(ALL);
            *card += busy;
            *own += if EnginePart::procId.get(part) == Some(mediator) { busy } else { 0 };
        }
    }
    for sum in load.card.0.iter_mut().chain(&mut load.own.0) {
        *sum = sum.checked_div(count).unwrap_or(0);
    }
    Some(load)
}

/// Load of the compute engine, sample by sample, in order. `ahead_us`: the real time
/// less the clock of all schedules.
pub(crate) fn compute_samples(params: &[u8], mediator: u32, ahead_us: u64) -> Vec<Sample> {
    let samples = params.get(SAMPLES..).unwrap_or_default();
    let size = samples.len() / SAMPLE_COUNT;
    let Some(part) = part_size(size) else { return Vec::new() };
    let sample = |sample: &[u8]| {
        // One that was never taken has no time.
        let at_ns = UtilSample::timeStamp.get(sample).filter(|at_ns| *at_ns > 0)?;
        let part_of = sample.get(SAMPLE_HEAD + COMPUTE * part..)?;
        let (busy, owner) = (EnginePart::util.get(part_of)?.min(ALL), EnginePart::procId.get(part_of)?);
        let at_us = (at_ns / 1_000).checked_sub(ahead_us)?;
        Some(Sample { at_us, busy_ppm: busy * PPM, is_own: owner == mediator })
    };
    let mut all: Vec<Sample> = samples.chunks_exact(size).filter_map(sample).collect();
    all.sort_unstable_by_key(|sample| sample.at_us);
    all
}

/// Leaves of the samples what is the container's: `mediator` is what the driver knows it by, `pid`
/// its own process that they are put down to. `used` says what it used of the compute engine
/// between two instants of real time, in nanoseconds. With no process, or in a layout that is not
/// known, nothing is left.
pub(crate) fn own_samples(params: &mut [u8], mediator: u32, pid: Option<u32>, used: impl Fn(u64, u64) -> Used) {
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

/// Leaves how busy the card was, and not with whose work: for who looks at a card and has no part
/// in it.
pub(crate) fn nameless_samples(params: &mut [u8]) {
    each_part(params, true, |_, _, busy, _| (busy, None));
}

/// Writes the parts of all samples anew: how busy, and whose process, from when, which engine, how
/// busy, whose process.
fn each_part(params: &mut [u8], is_any: bool, shown: impl Fn(u64, usize, u32, u32) -> (u32, Option<u32>)) {
    let Some(samples) = params.get_mut(SAMPLES..) else { return };
    let size = samples.len() / SAMPLE_COUNT;
    let Some(part_size) = part_size(size).filter(|_| is_any) else { return samples.fill(0) };
    for sample in samples.chunks_exact_mut(size) {
        let at_ns = UtilSample::timeStamp.get(sample).unwrap_or(0);
        let parts = sample.get_mut(SAMPLE_HEAD..).unwrap_or_default().chunks_exact_mut(part_size);
        for (kind, part) in parts.enumerate() {
            let (busy, owner) =
                (EnginePart::util.get(part).unwrap_or(0).min(ALL), EnginePart::procId.get(part).unwrap_or(NO_PID));
            let scale = EnginePart::vgpuScale.get(part).unwrap_or(0);
            // A sample that was never taken.
            let (busy, pid) = if at_ns == 0 { (0, None) } else { shown(at_ns, kind, busy, owner) };
            // The name of a virtual machine's process, and a pointer into the kernel, go in any
            // case.
            part.fill(0);
            let _ = EnginePart::procId.set(part, pid.unwrap_or(NO_PID));
            let _ = EnginePart::subProcessID.set(part, NO_PID);
            let _ = EnginePart::util.set(part, busy);
            let _ = EnginePart::vgpuScale.set(part, if busy > 0 { scale } else { 0 });
        }
    }
}

/// Writes how busy video engines are with the container's work.
pub(crate) fn video_engine(params: &mut [u8], own: &Busy) {
    let engine = VideoSample::engineType.get(params).and_then(|engine| usize::try_from(engine).ok()).unwrap_or(0);
    let kind = engine.checked_sub(1).map_or(KINDS, |engine| engine.saturating_add(FIRST_VIDEO));
    let _ = VideoSample::clkPercentBusy.set(params, own.percent(kind));
}

/// `NV00DE_RUSD_POLL_PERF` (class/cl00de.h): who asks for that wants to know how busy the card is.
/// What is asked for is the first number of the class's parameters, and of
/// `NV00DE_CTRL_CMD_REQUEST_DATA_POLL`'s.
pub(crate) fn asks_for_load(params: &[u8]) -> bool {
    const POLL_PERF: u32 = 2;
    read_u32(params, NV00DE_ALLOC_PARAMETERS::polledDataMask.at()).is_some_and(|mask| mask & POLL_PERF != 0)
}

/// Place where `NV00DE_SHARED_DATA` has `perfDevUtil`, and how it is written there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PagePart {
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
    pub(crate) fn of(release: DriverRelease) -> Option<Self> {
        PAGE_PARTS.iter().rev().find(|(since, _)| *since <= release).map(|(_, part)| *part)
    }

    /// Bytes to be written, and where, one after the other, so that who reads meanwhile
    /// notices. `at_ns`: real time.
    pub(crate) fn writes(self, busy: &Busy, at_ns: u64) -> [(u64, Vec<u8>); 3] {
        // gpuPercentBusy, memoryPercentBusy, {clkPercentBusy, samplingPeriodUs} of each kind of
        // video engine.
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
mod tests;
