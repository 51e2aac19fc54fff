//! Utilization of a card, as the driver gives it to programs: by the samples that it takes, and on
//! the page that it lets them map.

use std::os::fd::{AsFd, AsRawFd};

use abi::{
    Handle,
    classes::RM_USER_SHARED_DATA,
    controls::{NV00DE_CTRL_CMD_REQUEST_DATA_POLL, NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2},
    encode,
    escapes::NV_ESC_RM_MAP_MEMORY,
    params::{
        NV00DE_ALLOC_PARAMETERS, NV00DE_CTRL_REQUEST_DATA_POLL_PARAMS,
        NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS, NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE,
        NV2080_CTRL_PERF_GPUMON_PERFMON_UTIL_SAMPLE, nv_ioctl_nvos33_parameters_with_fd,
    },
};

use crate::{Device, RmError, bytes::get, sys::Mapping, system};

/// `NV00DE_RUSD_POLL_PERF`.
const POLL_PERF: u64 = 2;
/// Of `NV00DE_SHARED_DATA` in driver 580: its length, and where `perfDevUtil` is (the instant, then
/// the card's percentage).
const PAGE: usize = 2608;
const LOAD: usize = 1976;
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
    /// Creates the page's object and maps it.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn new(device: &'a Device<'a>) -> Result<Self, RmError> {
        type Args = nv_ioctl_nvos33_parameters_with_fd;
        /// `NVOS33_FLAGS_ACCESS_READ_ONLY`.
        const READ_ONLY: u32 = 1;
        let client = device.client;
        let object =
            client.alloc(device.subdevice, 0, RM_USER_SHARED_DATA, Some(&mut encode!(NV00DE_ALLOC_PARAMETERS {})))?;
        let file = client.nodes.control()?;
        let mut args = encode!(Args {
            hClient: Handle(client.handle),
            hDevice: Handle(device.subdevice),
            hMemory: Handle(object),
            length: PAGE as u64,
            flags: READ_ONLY,
            fd: file.as_raw_fd(),
        });
        client.escape("mapping the page about a card", NV_ESC_RM_MAP_MEMORY, &mut args, Args::status)?;
        let page = Mapping::reading(file.as_fd(), PAGE).map_err(system("mapping the page about a card"))?;
        Ok(Self { device, object, page })
    }

    /// Returns the utilization that the driver gives now.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn read(&self) -> Result<Utilization, RmError> {
        type Params = NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS;
        type Sample = NV2080_CTRL_PERF_GPUMON_PERFMON_UTIL_SAMPLE;
        type Engine = NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE;
        /// `NV2080_CTRL_GPUMON_SAMPLE_TYPE_PERFMON_UTIL`.
        const TYPE: u8 = 2;
        let client = self.device.client;
        let mut params = encode!(NV00DE_CTRL_REQUEST_DATA_POLL_PARAMS { polledDataMask: POLL_PERF });
        client.control(self.object, NV00DE_CTRL_CMD_REQUEST_DATA_POLL, &mut params)?;
        let size = u32::try_from(Params::samples.size()).unwrap_or(u32::MAX);
        let mut params = encode!(Params { r#type: TYPE, bufSize: size });
        client.control(self.device.subdevice, NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2, &mut params)?;
        let samples = Params::samples.bytes(&params).unwrap_or_default().chunks_exact(Sample::SIZE);
        let mut newest: Vec<&[u8]> = samples.clone().filter(|sample| get(sample, Sample::timeStamp) > 0).collect();
        newest.sort_by_key(|sample| std::cmp::Reverse(get(sample, Sample::timeStamp)));
        newest.truncate(5);
        let compute = |sample| get(Sample::gr.bytes(sample).unwrap_or_default(), Engine::util);
        let count = u32::try_from(newest.len()).unwrap_or(0).max(1);
        let sampled = newest.into_iter().map(compute).sum::<u32>() / count / 100;
        let engines = [Sample::fb, Sample::gr, Sample::nvenc, Sample::nvdec, Sample::nvjpg, Sample::nvofa];
        let engines = samples.flat_map(|sample| engines.map(|engine| engine.bytes(sample).unwrap_or_default()));
        let mut pids: Vec<u32> = engines.map(|engine| get(engine, Engine::procId)).collect();
        pids.sort_unstable();
        pids.dedup();
        // A ring that is not full has zeros at its end.
        pids.retain(|pid| *pid != NO_PID && *pid != 0);
        let valid = self.page.word(LOAD).is_some_and(|stamp| stamp != 0 && stamp != u64::MAX);
        let both = self.page.word(LOAD + 8).filter(|_| valid);
        let page = both.and_then(|both| u32::try_from(both & u64::from(u32::MAX)).ok());
        Ok(Utilization { page, sampled, pids })
    }
}
