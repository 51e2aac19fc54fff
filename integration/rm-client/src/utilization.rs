//! Utilization of a card, as the driver gives it to programs: by the samples that it takes, and on
//! the page that it lets them map.

use std::os::fd::{AsFd, AsRawFd};

use crate::{
    Device, RmError,
    bytes::{get, get_u64, put, put_u64, words},
    sys::Mapping,
    system,
};

/// `RM_USER_SHARED_DATA`; `NV00DE_CTRL_CMD_REQUEST_DATA_POLL` and `NV00DE_RUSD_POLL_PERF`.
const USER_SHARED_DATA: u32 = 0xde;
const POLL: u32 = 0x00de_0001;
const POLL_PERF: u64 = 2;
/// Of `NV00DE_SHARED_DATA` in driver 580: its length, and where `perfDevUtil` is (the instant, then
/// the card's percentage).
const PAGE: usize = 2608;
const LOAD: usize = 1976;
/// `NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2`: 72 samples of six engines each, the
/// second being the one that computes.
const GET_SAMPLES: u32 = 0x2080_2096;
const SAMPLES: usize = 16;
const SAMPLE: usize = 776;
const ENGINE: usize = 128;
const NO_PID: u32 = u32::MAX;

/// Utilization of a card, in percent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Utilization {
    /// On the page; `None`: nothing valid stands there.
    pub page: Option<u32>,
    /// By the newest five samples.
    pub sampled: u32,
    /// The processes that any engine's part of any sample is put down to.
    pub pids: Vec<u32>,
}

/// Asks for both, while it lives.
#[derive(Debug)]
pub struct Monitor<'a> {
    device: &'a Device<'a>,
    object: u32,
    page: Mapping,
}

impl<'a> Monitor<'a> {
    /// Makes the page's object and maps it.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn new(device: &'a Device<'a>) -> Result<Self, RmError> {
        let client = device.client;
        let object = client.alloc(device.subdevice, 0, USER_SHARED_DATA, Some(&mut [0; 8]))?;
        let file = client.nodes.control()?;
        let mut args = words([client.handle, device.subdevice, object], 56);
        put_u64(&mut args, 24, PAGE as u64);
        // NVOS33_FLAGS_ACCESS_READ_ONLY.
        put(&mut args, 44, 1);
        put(&mut args, 48, file.as_raw_fd().cast_unsigned());
        client.escape("mapping the page about a card", 0x4e, &mut args, 40)?;
        let page = Mapping::reading(file.as_fd(), PAGE).map_err(system("mapping the page about a card"))?;
        Ok(Self { device, object, page })
    }

    /// Returns the utilization that the driver gives now.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn read(&self) -> Result<Utilization, RmError> {
        let client = self.device.client;
        client.control(self.object, POLL, &mut POLL_PERF.to_le_bytes())?;
        let mut params = words([2, 55_872], 55_888);
        client.control(self.device.subdevice, GET_SAMPLES, &mut params)?;
        let at = |place: usize| SAMPLES + place * SAMPLE;
        let mut places: Vec<usize> = (0..72).filter(|place| get_u64(&params, at(*place)) > 0).collect();
        places.sort_by_key(|place| std::cmp::Reverse(get_u64(&params, at(*place))));
        let engine = |place: usize, engine: usize| at(place) + 8 + engine * ENGINE;
        let newest: Vec<u32> = places.iter().take(5).map(|place| get(&params, engine(*place, 1))).collect();
        let sampled = newest.iter().sum::<u32>() / u32::try_from(newest.len()).unwrap_or(0).max(1) / 100;
        let pids = (0..72).flat_map(|place| (0..6).map(move |kind| (place, kind)));
        let mut pids: Vec<u32> = pids.map(|(place, kind)| get(&params, engine(place, kind) + 8)).collect();
        pids.sort_unstable();
        pids.dedup();
        // A ring that is not full has zeros at its end.
        pids.retain(|pid| *pid != NO_PID && *pid != 0);
        let valid = self.page.word(LOAD).is_some_and(|stamp| stamp != 0 && stamp != u64::MAX);
        let page = self.page.word(LOAD + 8).filter(|_| valid).map(|both| get(&both.to_le_bytes(), 0));
        Ok(Utilization { page, sampled, pids })
    }
}
