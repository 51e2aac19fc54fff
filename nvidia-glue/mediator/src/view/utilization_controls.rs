//! Load of the container's cards, as it is to see it.
//!
//! Whoever schedules the container tells what it used ([`Session::measured`]); the driver samples
//! how busy the card was. Both are upper bounds: a context that nobody displaces stays on the
//! engine when its work is done, and a card is busy with others' work, too. The smaller one,
//! against the container's share, is what it sees; sample by sample, it is what it achieved of the
//! card's time ([`work`](schedule::work)).

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::{Mutex, OnceLock},
};

use abi::{Status, controls::NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2 as GET_SAMPLES, decode::Control};
use account::Card;
use base::{now_us, real_time_ns};
use rustix::fs::{MemfdFlags, SealFlags};
use schedule::{
    meter::{Measured, Meter, UTILIZATION_US},
    work::{Sample, Work, Worked},
};

use super::utilization::{
    Busy, Load, PagePart, Used, ask, asks_for_load, compute_samples, load, nameless_samples, own_samples, video_engine,
};
use crate::{
    Answer, Session,
    calls::{
        control::mediator_pid,
        in_flight::{CallEnd, InFlightCall},
    },
    locks::lock,
    raw::Raw,
};

/// The driver samples five times a second, and an answer takes 1.6 ms (H200, 580.159.04): it is
/// asked no more often than that, and half as often while it only confirms.
const ASKED_EVERY_US: u64 = 400_000;
const IN_DOUBT_EVERY_US: u64 = 1_000_000;
/// Time for which what it said is good.
const GOOD_US: u64 = 2_500_000;
/// Period at which the page is written; the driver's own period is 100 to 1000 ms.
const WRITTEN_EVERY_US: u64 = 90_000;
/// Of the page; the driver's has some 3 KiB, and whoever maps more finds zeros.
pub(crate) const PAGE: u64 = 1 << 16;

/// Load of one card, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct CardUtilization {
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

impl Session {
    /// Notes what the container has used of the card `uuid` until now, and returns what that was.
    /// `in_doubt`: it may have stayed on the card without work, so that the driver is asked, once a
    /// second while it stays.
    pub fn measured(&self, uuid: &str, measured: Measured, in_doubt: bool) -> Seen {
        let card = self.grant.by_uuid(uuid);
        let Some((card, utilization)) = card.and_then(|card| Some((card, self.utilization(card)?))) else {
            return Seen::default();
        };
        let now_us = measured.at_us;
        let asks = {
            let UtilizationState { meter, work, .. } = &mut *lock(&utilization.known);
            meter.add(measured);
            if !in_doubt && !measured.rests {
                work.pass_over(now_us);
            }
            in_doubt && work.is_open(meter, now_us)
        };
        let load =
            if asks { self.load(card, now_us, IN_DOUBT_EVERY_US) } else { lock(&utilization.known).load_at(now_us) };
        let utilization_ppm = self.busy(card, now_us, load).map(|busy| busy.compute_ppm());
        let UtilizationState { meter, work, samples, .. } = &mut *lock(&utilization.known);
        let worked = if in_doubt { work.add(meter, samples, now_us) } else { Vec::new() };
        Seen { utilization_ppm, worked }
    }

    /// Tells the programs that want to know on their pages. To be called some times a second while
    /// there are programs.
    pub fn tell_utilization(&self) {
        let watched = lock(&self.objects.topology).watched();
        watched.into_iter().for_each(|card| self.write_page(card, WRITTEN_EVERY_US));
    }

    fn utilization(&self, card: Card) -> Option<&CardUtilization> {
        self.view.utilizations.get(usize::from(card.0))
    }

    /// Returns how busy the card was lately, by an answer that is no older.
    fn load(&self, card: Card, now_us: u64, every_us: u64) -> Option<Load> {
        let known = &self.utilization(card)?.known;
        {
            let mut known = lock(known);
            if known.asked_us.is_some_and(|asked_us| now_us.saturating_sub(asked_us) < every_us) {
                return known.load_at(now_us);
            }
            known.asked_us = Some(now_us);
        }
        let raw = Raw { driver: self.driver.as_ref(), abi: self.abi, file: &self.own.control, client: self.own.client };
        let samples = raw.control(self.grant.get(card)?.subdevice, GET_SAMPLES, ask(self.abi.release()));
        let samples = samples.ok().filter(|(status, _)| status.is_ok());
        let found = samples.as_ref().and_then(|(_, samples)| load(samples, mediator_pid(), real_time_ns()));
        let mut known = lock(known);
        known.load = found;
        // What cannot be had now may be later; it is still there then.
        known.samples =
            samples.map(|(_, samples)| compute_samples(&samples, mediator_pid(), ahead_us())).unwrap_or_default();
        found
    }

    fn is_monitored(&self, card: Card) -> bool {
        self.grant.get(card).is_none_or(|card| card.granted.monitored)
    }

    /// Returns what the container is to see.
    fn busy(&self, card: Card, now_us: u64, load: Option<Load>) -> Option<Busy> {
        if self.is_monitored(card) {
            return load.map(|load| load.card);
        }
        let used = lock(&self.utilization(card)?.known).used(now_us.saturating_sub(UTILIZATION_US), now_us);
        let ppm =
            used.of_share_ppm(load.map(|load| load.card.compute_ppm()), load.map(|load| load.own.compute_ppm()))?;
        Some(load.map(|load| load.own).unwrap_or_default().with_compute_ppm(ppm))
    }

    /// The file that programs map in place of the driver's page about the card.
    pub(crate) fn page(&self, card: Card) -> io::Result<&File> {
        let page = &self.utilization(card).ok_or(io::ErrorKind::NotFound)?.page;
        if page.get().is_none() {
            // Whoever came first has made it.
            let _ = page.set(new_page()?);
        }
        page.get().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write_page(&self, card: Card, every_us: u64) {
        let Some(part) = PagePart::of(self.abi.release()) else { return };
        let (Some(utilization), Ok(page)) = (self.utilization(card), self.page(card)) else { return };
        let now_us = now_us();
        if !lock(&utilization.known).is_to_be_written(now_us, every_us) {
            return;
        }
        let load = self.load(card, now_us, ASKED_EVERY_US);
        let busy = self.busy(card, now_us, load);
        // Without a figure the page says, by no time, that it has none.
        let at_ns = if busy.is_some() { real_time_ns() } else { 0 };
        for (at, bytes) in part.writes(&busy.unwrap_or_default(), at_ns) {
            // It is the mediator's own, and can be neither cut nor sealed.
            let _ = page.write_all_at(&bytes, at);
        }
    }

    /// `NV00DE_CTRL_CMD_REQUEST_DATA_POLL` on a page that the container does not have: what would
    /// be polled, nobody sees.
    pub(crate) fn poll_page(&self, flight: &mut InFlightCall<'_>, control: Control) -> Option<Result<Answer, CallEnd>> {
        let card = lock(&self.objects.topology).shared_data(control.client, control.object)?;
        if self.is_monitored(card) {
            return None;
        }
        let wants = asks_for_load(flight.params());
        lock(&self.objects.topology).watches(control.client, control.object, wants);
        if wants {
            self.write_page(card, 0);
        }
        let row = flight.row;
        let is_set = row.set_status(&mut flight.args, Status::OK);
        Some(if is_set { flight.finish() } else { Err(CallEnd::Errno(libc::EINVAL)) })
    }

    /// The driver's samples, as the container is to see them.
    pub(crate) fn rewrite_samples(&self, flight: &mut InFlightCall<'_>, control: Control) {
        let card = self.objects.card_of(control.client, control.object);
        if card.is_some_and(|card| self.is_monitored(card)) {
            return nameless_samples(flight.params_mut());
        }
        let own = card.map(|card| self.processes_on(card, flight.pid)).unwrap_or_default();
        // Neither samples nor switches tell the processes of one mediator apart.
        let most = own.iter().max_by_key(|process| process.used).map(|process| process.pid);
        let known = card.and_then(|card| self.utilization(card)).map(|utilization| &utilization.known);
        let ahead_us = ahead_us();
        own_samples(flight.params_mut(), mediator_pid(), most, |from_ns, until_ns| {
            let [from_us, until_us] = [from_ns, until_ns].map(|at_ns| (at_ns / 1_000).saturating_sub(ahead_us));
            known.map_or(Used { used_ppm: None, share_ppm: 1_000_000 }, |known| lock(known).used(from_us, until_us))
        });
    }

    /// `NV2080_CTRL_CMD_PERF_GET_VID_ENG_PERFMON_SAMPLE`, as the container is to see it.
    pub(crate) fn rewrite_video_sample(&self, flight: &mut InFlightCall<'_>, control: Control) {
        let card = self.objects.card_of(control.client, control.object);
        if card.is_some_and(|card| self.is_monitored(card)) {
            return;
        }
        let load = card.and_then(|card| self.load(card, now_us(), ASKED_EVERY_US));
        video_engine(flight.params_mut(), &load.unwrap_or_default().own);
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
fn ahead_us() -> u64 {
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
