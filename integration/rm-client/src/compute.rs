//! Work for a card's engines.
//!
//! A program has groups of channels, puts work into a channel's ring and rings its doorbell; no
//! call is made for that. On a simulated card, work is engine time: its amount is written into the
//! card's node at the channel's token, and the driver reports there what was executed
//! (nvidia-glue/simulator/src/engines/doorbells.rs). These commands are for simulated cards only.

use std::{
    os::unix::fs::FileExt,
    thread,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};

use abi::{
    Handle,
    classes::{HOPPER_CHANNEL_GPFIFO_A, KEPLER_CHANNEL_GROUP_A},
    controls::{
        NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, NVA06C_CTRL_CMD_SET_TIMESLICE,
        NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN,
    },
    encode,
    params::{
        NV_CHANNEL_ALLOC_PARAMS, NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS, NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS,
        NVA06C_CTRL_TIMESLICE_PARAMS, NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS,
        NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS,
    },
};

use crate::{
    RmError,
    bytes::{get, put},
    device::Device,
    system,
};

/// Time slice that CUDA sets for its compute groups.
const CUDA_SLICE_US: u64 = 2048;

/// Bytes of a channel's place in the node, and where the driver reports what was executed, and as
/// of when.
const PLACE: u64 = 64;
const EXECUTED: u64 = 16;
/// Work without end.
pub const ENDLESS: u64 = u64::MAX;

/// An engine of a card: `NV2080_ENGINE_TYPE_GRAPHICS`, `_COPY0`, `_NVDEC0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Compute = 1,
    Copy = 9,
    /// One that decodes video.
    Video = 0x13,
}

/// A channel group with its channels.
#[derive(Debug)]
pub struct Group<'a> {
    /// Its owner.
    pub device: &'a Device<'a>,
    pub handle: u32,
    /// Handles of its channels.
    pub channels: Vec<u32>,
}

impl<'a> Group<'a> {
    /// Creates a group of `channels` channels. It is not scheduled yet.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn new(device: &'a Device<'a>, engine: Engine, channels: usize) -> Result<Self, RmError> {
        let mut params = encode!(NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS { engineType: engine as u32 });
        let handle = device.client.alloc(device.device, 0, KEPLER_CHANNEL_GROUP_A, Some(&mut params))?;
        let mut group = Self { device, handle, channels: Vec::new() };
        for _ in 0..channels {
            group.channels.push(group.new_channel()?);
        }
        Ok(group)
    }

    /// Creates a channel in it.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn new_channel(&self) -> Result<u32, RmError> {
        let mut params = encode!(NV_CHANNEL_ALLOC_PARAMS {});
        self.device.client.alloc(self.handle, 0, HOPPER_CHANNEL_GPFIFO_A, Some(&mut params))
    }

    /// Creates a group as CUDA does, schedules it and gives each channel `work_ns` of work.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn working(device: &'a Device<'a>, engine: Engine, channels: usize, work_ns: u64) -> Result<Self, RmError> {
        let group = Self::new(device, engine, channels)?;
        group.set_timeslice(CUDA_SLICE_US)?;
        for channel in &group.channels {
            group.submit(*channel, work_ns)?;
        }
        group.schedule()?;
        Ok(group)
    }

    /// `GPFIFO_SCHEDULE` with bEnable.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn schedule(&self) -> Result<(), RmError> {
        let mut params = encode!(NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS { bEnable: 1 });
        self.device.client.control(self.handle, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, &mut params)
    }

    /// `SET_TIMESLICE`.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn set_timeslice(&self, slice_us: u64) -> Result<(), RmError> {
        let mut params = encode!(NVA06C_CTRL_TIMESLICE_PARAMS { timesliceUs: slice_us });
        self.device.client.control(self.handle, NVA06C_CTRL_CMD_SET_TIMESLICE, &mut params)
    }

    fn place(&self, channel: u32) -> Result<u64, RmError> {
        type Params = NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS;
        let mut params = encode!(Params {});
        self.device.client.control(channel, NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, &mut params)?;
        Ok(u64::from(get(&params, Params::workSubmitToken)) * PLACE)
    }

    /// Says that a channel has had `work_ns` of work in all by now.
    ///
    /// # Errors
    /// The status of the driver or the node, where it refuses.
    pub fn submit(&self, channel: u32, work_ns: u64) -> Result<(), RmError> {
        let mut bytes = [0; 16];
        let place = self.place(channel)?;
        let (work, now) = bytes.split_at_mut(8);
        work.copy_from_slice(&work_ns.to_le_bytes());
        now.copy_from_slice(&now_ns().to_le_bytes());
        self.device.node.write_all_at(&bytes, place).map_err(system("submitting work"))
    }

    /// Engine time that its channels have had, in nanoseconds.
    ///
    /// # Errors
    /// The status of the driver or the node, where it refuses.
    pub fn executed_ns(&self) -> Result<u64, RmError> {
        Ok(self.executed()?.ns)
    }

    /// The same, and as of when.
    fn executed(&self) -> Result<Executed, RmError> {
        let mut all = Executed::default();
        for channel in &self.channels {
            let place = self.place(*channel)?;
            let mut bytes = [0; 16];
            self.device
                .node
                .read_exact_at(&mut bytes, place + EXECUTED)
                .map_err(system("reading what was executed"))?;
            let [ns, at_ns] = bytes.as_chunks().0 else { continue };
            all.add(Executed { ns: u64::from_le_bytes(*ns), at_ns: u64::from_le_bytes(*at_ns) });
        }
        Ok(all)
    }

    /// Frees it.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn free(self) -> Result<(), RmError> {
        self.device.client.free(self.handle)
    }
}

/// Time that the engines gave, until the instant that the driver names. This program may hear of it
/// later.
#[derive(Debug, Clone, Copy, Default)]
struct Executed {
    ns: u64,
    /// `CLOCK_MONOTONIC`.
    at_ns: u64,
}

impl Executed {
    fn add(&mut self, other: Self) {
        self.ns += other.ns;
        self.at_ns = self.at_ns.max(other.at_ns);
    }

    fn of(groups: &[Group<'_>]) -> Result<Self, RmError> {
        let mut all = Self::default();
        groups.iter().try_for_each(|group| group.executed().map(|more| all.add(more)))?;
        Ok(all)
    }

    const fn time(self) -> Duration {
        Duration::from_nanos(self.ns)
    }
}

/// `DISABLE_CHANNELS`: takes channels (client and handle) off the card, or puts them back.
///
/// # Errors
/// The driver's status, where it refuses.
pub fn disable(device: &Device<'_>, named: &[(u32, u32)], off: bool) -> Result<(), RmError> {
    type Params = NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS;
    let count = u32::try_from(named.len()).unwrap_or(0);
    let mut params = encode!(Params { bDisable: u8::from(off), numChannels: count });
    for (index, (client, channel)) in named.iter().enumerate() {
        let places = (Params::hClientList.element(index), Params::hChannelList.element(index));
        if let (Some(client_place), Some(channel_place)) = places {
            put(&mut params, client_place, Handle(*client));
            put(&mut params, channel_place, Handle(*channel));
        }
    }
    device.client.control(device.subdevice, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &mut params)
}

/// `CLOCK_MONOTONIC`.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| u64::try_from(now.tv_sec() * 1_000_000_000 + now.tv_nsec()).unwrap_or(0))
}

/// Work of a program.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Groups, each on the compute engine.
    pub groups: usize,
    /// Channels of each.
    pub channels: usize,
    /// One group on a copy engine besides.
    pub copy: bool,
    /// One group on a video engine besides.
    pub video: bool,
    /// This much work comes again and again; `None`: there is work without end.
    pub burst: Option<Burst>,
}

/// Work that comes now and then.
#[derive(Debug, Clone, Copy)]
pub struct Burst {
    /// Length of the work.
    pub work: Duration,
    /// Period of the work.
    pub every: Duration,
}

/// A program at work on some cards.
#[derive(Debug)]
pub struct Worker<'a> {
    compute: Vec<Vec<Group<'a>>>,
    copies: Vec<Group<'a>>,
    videos: Vec<Group<'a>>,
    burst: Option<(Burst, Instant, u64)>,
    start_ns: u64,
}

/// Time that a program got until now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Compute engine time of each card.
    pub compute: Vec<Duration>,
    /// Copy engine time of all cards.
    pub copy: Duration,
    /// Video engine time of all cards.
    pub video: Duration,
    /// The instant of that, since it began.
    pub wall: Duration,
    /// The same on `CLOCK_MONOTONIC`, in nanoseconds.
    pub at_ns: u64,
}

impl<'a> Worker<'a> {
    /// Begins.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn start(devices: &'a [Device<'a>], load: Workload) -> Result<Self, RmError> {
        let begin = |device: &'a Device<'a>, engine| {
            let work_ns = load.burst.map_or(ENDLESS, |burst| nanoseconds(burst.work));
            Group::working(device, engine, load.channels, work_ns)
        };
        let (start_ns, start) = (now_ns(), Instant::now());
        let on_card = |device| (0..load.groups).map(|_| begin(device, Engine::Compute)).collect();
        let compute = devices.iter().map(on_card).collect::<Result<_, _>>()?;
        let besides = |wanted, engine| {
            let groups = devices.iter().filter(move |_| wanted).map(|device| begin(device, engine));
            groups.collect::<Result<Vec<_>, _>>()
        };
        let (copies, videos) = (besides(load.copy, Engine::Copy)?, besides(load.video, Engine::Video)?);
        let burst = load.burst.map(|burst| (burst, start + burst.every, nanoseconds(burst.work)));
        Ok(Self { compute, copies, videos, burst, start_ns })
    }

    /// Goes on until `until`.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn work_until(&mut self, until: Instant) -> Result<(), RmError> {
        while let Some((burst, next, work_ns)) = &mut self.burst {
            thread::sleep((*next).min(until).saturating_duration_since(Instant::now()));
            if Instant::now() >= until {
                return Ok(());
            }
            *work_ns += nanoseconds(burst.work);
            *next += burst.every;
            for group in self.compute.iter().flatten().chain(&self.copies).chain(&self.videos) {
                for channel in &group.channels {
                    group.submit(*channel, *work_ns)?;
                }
            }
        }
        thread::sleep(until.saturating_duration_since(Instant::now()));
        Ok(())
    }

    /// Its groups on compute engines.
    pub fn groups(&self) -> impl Iterator<Item = &Group<'a>> {
        self.compute.iter().flatten()
    }

    /// Returns the time that it has got.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn got(&self) -> Result<Progress, RmError> {
        let cards = self.compute.iter().map(|groups| Executed::of(groups)).collect::<Result<Vec<_>, _>>()?;
        let (copy, video) = (Executed::of(&self.copies)?, Executed::of(&self.videos)?);
        let at_ns = cards.iter().chain([&copy, &video]).map(|executed| executed.at_ns).max().unwrap_or_default();
        Ok(Progress {
            compute: cards.into_iter().map(Executed::time).collect(),
            copy: copy.time(),
            video: video.time(),
            wall: Duration::from_nanos(at_ns.saturating_sub(self.start_ns)),
            at_ns,
        })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(ENDLESS)
}
