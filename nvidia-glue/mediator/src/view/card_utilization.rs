//! Load of the container's cards, as it is to see it.
//!
//! The container's scheduler measures what it used ([`CardUtilization::measured`]); the driver
//! samples how busy the card was. Both are upper bounds: a context that nobody displaces stays on
//! the engine when its work is done, and a card is busy with others' work, too. The smaller one,
//! against the container's share, is what it sees; sample by sample, it is what it achieved of the
//! card's time ([`work`](schedule::work)).

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::{Arc, Mutex, OnceLock},
};

use abi::{Abi, Handle, controls::NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2 as GET_SAMPLES};
use base::{now_us, real_time_ns};
use driver::{Driver, OwnClient};
use rustix::fs::{MemfdFlags, SealFlags};
use schedule::{
    meter::{Measured, Meter, UTILIZATION_US},
    work::{SAMPLE_US, Sample, Work, Worked},
};

use crate::{
    grant::OwnCard,
    locks::lock,
    mediator_pid,
    raw::Raw,
    view::utilization::{Busy, Load, PagePart, Used, ask, compute_samples, load},
};

/// The driver samples five times a second, and an answer takes 1.6 ms (H200, 580.159.04): it is
/// asked no more often than that, and half as often while it only confirms.
const ASKED_EVERY_US: u64 = 400_000;
const IN_DOUBT_EVERY_US: u64 = 1_000_000;
/// Time for which what it said is good.
const GOOD_US: u64 = 2_500_000;
/// Period at which the page is written; the driver's own period is 100 to 1000 ms.
pub(crate) const WRITTEN_EVERY_US: u64 = 90_000;
/// Of the page; the driver's has some 3 KiB, and whoever maps more finds zeros.
pub(crate) const PAGE: u64 = 1 << 16;

/// Load of one card, as far as it is known.
#[derive(Debug)]
pub(crate) struct CardUtilization {
    driver: Arc<dyn Driver>,
    abi: Abi,
    own: Arc<OwnClient>,
    /// The mediator's own.
    subdevice: Handle,
    /// Set if the container only looks at the card, and sees what there is.
    is_monitored: bool,
    known: Mutex<UtilizationState>,
    /// File that programs map in place of the driver's page.
    page: OnceLock<File>,
}

#[derive(Debug, Default)]
struct UtilizationState {
    meter: Meter,
    work: Work,
    load: Option<Load>,
    /// Samples of the driver's last answer, in order.
    samples: Vec<Sample>,
    /// Times at which the driver was asked, and the page was written.
    asked_us: Option<u64>,
    written_us: Option<u64>,
}

/// Activity of a container on a card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Use of its grant in the last second, in millionths; `None`: not known.
    pub utilization_ppm: Option<u32>,
    /// Work that it has had the card do, at some instants, in order: the first was known before.
    /// Empty where the driver was not to be asked.
    pub worked: Vec<Worked>,
}

impl CardUtilization {
    pub(crate) fn new(card: &OwnCard, driver: &Arc<dyn Driver>, abi: Abi, own: &Arc<OwnClient>) -> Self {
        Self {
            driver: Arc::clone(driver),
            abi,
            own: Arc::clone(own),
            subdevice: card.subdevice,
            is_monitored: card.granted.monitored,
            known: Mutex::default(),
            page: OnceLock::new(),
        }
    }

    pub(crate) const fn is_monitored(&self) -> bool {
        self.is_monitored
    }

    /// Notes what the container has used of the card until now, and returns what that was.
    pub(crate) fn measured(&self, measured: Measured, in_doubt: bool) -> Seen {
        let now_us = measured.at_us;
        let asks = {
            let UtilizationState { meter, work, .. } = &mut *lock(&self.known);
            meter.add(measured);
            if !in_doubt && !measured.rests {
                work.pass_over(now_us);
            }
            in_doubt && work.is_open(meter, now_us)
        };
        let load = if asks { self.load(now_us, IN_DOUBT_EVERY_US) } else { lock(&self.known).load_at(now_us) };
        let utilization_ppm = self.busy(now_us, load).map(|busy| busy.compute_ppm());
        let UtilizationState { meter, work, samples, .. } = &mut *lock(&self.known);
        let worked = if in_doubt { work.add(meter, samples, now_us) } else { Vec::new() };
        Seen { utilization_ppm, worked }
    }

    /// Part of a time until now for which the card was busy, in millionths, whosever work it was;
    /// `None`: the driver has no sample that lies within.
    pub(crate) fn card_busy_ppm(&self, now_us: u64, (from_us, until_us): (u64, u64)) -> Option<u32> {
        self.load(now_us, IN_DOUBT_EVERY_US);
        let known = lock(&self.known);
        let is_within =
            |sample: &&Sample| sample.at_us >= from_us.saturating_add(SAMPLE_US) && sample.at_us <= until_us;
        let (sum, count) = known
            .samples
            .iter()
            .filter(is_within)
            .fold((0, 0), |(sum, count), one| (sum + u64::from(one.busy_ppm), count + 1));
        sum.checked_div(count).and_then(|ppm| u32::try_from(ppm).ok())
    }

    /// Load of the card, by an answer of the driver's that is no older than `every_us`.
    fn load(&self, now_us: u64, every_us: u64) -> Option<Load> {
        {
            let mut known = lock(&self.known);
            if known.asked_us.is_some_and(|asked_us| now_us.saturating_sub(asked_us) < every_us) {
                return known.load_at(now_us);
            }
            known.asked_us = Some(now_us);
        }
        let raw = Raw { driver: self.driver.as_ref(), abi: self.abi, file: &self.own.control, client: self.own.client };
        let samples = raw.control(self.subdevice, GET_SAMPLES, ask(self.abi.release()));
        let samples = samples.ok().filter(|(status, _)| status.is_ok());
        let found = samples.as_ref().and_then(|(_, samples)| load(samples, mediator_pid(), real_time_ns()));
        let mut known = lock(&self.known);
        known.load = found;
        // What cannot be had now may be later; it is still there then.
        known.samples =
            samples.map(|(_, samples)| compute_samples(&samples, mediator_pid(), ahead_us())).unwrap_or_default();
        found
    }

    /// Load that the container is to see.
    fn busy(&self, now_us: u64, load: Option<Load>) -> Option<Busy> {
        if self.is_monitored {
            return load.map(|load| load.card);
        }
        let used = lock(&self.known).used(now_us.saturating_sub(UTILIZATION_US), now_us);
        let ppm =
            used.of_share_ppm(load.map(|load| load.card.compute_ppm()), load.map(|load| load.own.compute_ppm()))?;
        Some(load.map(|load| load.own).unwrap_or_default().with_compute_ppm(ppm))
    }

    /// The file that programs map in place of the driver's page about the card.
    pub(crate) fn page(&self) -> io::Result<&File> {
        if self.page.get().is_none() {
            // Whoever came first has made it.
            let _ = self.page.set(new_page()?);
        }
        self.page.get().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Writes the page, if the last time is as long ago.
    pub(crate) fn write_page(&self, every_us: u64) {
        let (Some(part), Ok(page)) = (PagePart::of(self.abi.release()), self.page()) else { return };
        let now_us = now_us();
        if !lock(&self.known).is_to_be_written(now_us, every_us) {
            return;
        }
        let load = self.load(now_us, ASKED_EVERY_US);
        let busy = self.busy(now_us, load);
        // Without a figure the page says, by no time, that it has none.
        let at_ns = if busy.is_some() { real_time_ns() } else { 0 };
        for (at, bytes) in part.writes(&busy.unwrap_or_default(), at_ns) {
            // It is the mediator's own, and can be neither cut nor sealed.
            let _ = page.write_all_at(&bytes, at);
        }
    }

    /// Use of the card by the container between two real times, nanoseconds.
    pub(crate) fn used(&self, from_ns: u64, until_ns: u64, ahead_us: u64) -> Used {
        let [from_us, until_us] = [from_ns, until_ns].map(|at_ns| (at_ns / 1_000).saturating_sub(ahead_us));
        lock(&self.known).used(from_us, until_us)
    }

    /// Load by the container itself, as the driver says.
    pub(crate) fn own_load(&self) -> Busy {
        self.load(now_us(), ASKED_EVERY_US).unwrap_or_default().own
    }
}

impl UtilizationState {
    fn load_at(&self, now_us: u64) -> Option<Load> {
        self.load.filter(|_| self.asked_us.is_some_and(|asked_us| now_us.saturating_sub(asked_us) < GOOD_US))
    }

    fn used(&self, from_us: u64, until_us: u64) -> Used {
        Used { used_ppm: self.meter.used_ppm(from_us, until_us), share_ppm: self.meter.share_ppm() }
    }

    fn is_to_be_written(&mut self, now_us: u64, every_us: u64) -> bool {
        let is_due = self.written_us.is_none_or(|written_us| now_us.saturating_sub(written_us) >= every_us);
        self.written_us = if is_due { Some(now_us) } else { self.written_us };
        is_due
    }
}

/// By how much the real time is ahead of the clock of all schedules.
pub(crate) fn ahead_us() -> u64 {
    (real_time_ns() / 1_000).saturating_sub(now_us())
}

/// A file of zeros that nobody can cut, make longer or seal: to a program, zeros mean that nothing
/// is valid.
fn new_page() -> io::Result<File> {
    let page = File::from(rustix::fs::memfd_create(c"egpu", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    // A mediator's own filter lets it cut no file (`ftruncate`).
    page.write_all_at(&[0], PAGE - 1)?;
    rustix::fs::fcntl_add_seals(&page, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(page)
}
