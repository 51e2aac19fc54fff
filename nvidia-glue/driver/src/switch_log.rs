//! The log that NVIDIA's driver keeps of a card's context switches.
//!
//! The card's context switching firmware (FECS) notes each switch with the card's time. A client
//! binds an event buffer to that: a ring of records in memory that the driver writes and the client
//! reads. A client without privileges sees all clients of its own effective user, and no more than
//! "came" and "went" of each context.

use std::{
    io,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use abi::{
    Abi, Handle, Node, Status,
    classes::{NV_EVENT_BUFFER, NV01_MEMORY_DEVICELESS},
    controls::{
        NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS, NV_EVENT_BUFFER_CTRL_CMD_FLUSH,
        NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2, NV2080_CTRL_CMD_TIMER_GET_GPU_CPU_TIME_CORRELATION_INFO,
    },
    encode,
    params::{
        NV_EVENT_BUFFER_ALLOC_PARAMETERS, NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS, NV_MEMORY_ALLOCATION_PARAMS,
        NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS, NV2080_CTRL_TIMER_GET_GPU_CPU_TIME_CORRELATION_INFO_PARAMS,
        NV2080_CTRL_TIMER_GPU_CPU_TIME_SAMPLE,
    },
};
use nix::time::{ClockId, clock_gettime};
use schedule::{Presence, Switch, SwitchBatch, SwitchLog, SwitchLogError};

use super::{DeviceFile, Driver, OwnClient, Raw};
use crate::sys::ReadOnlyMapping;

/// `NVOS32_ATTR_COHERENCY_CACHED`; `NVOS32_ATTR2_PROTECTION_USER_READ_ONLY`, which the driver
/// demands (nvos.h).
const CACHED: u32 = 1 << 29;
const USER_READ_ONLY: u32 = 1 << 22;

/// `NV_EVENT_BUFFER_FLAG_OVERFLOW_POLICY_KEEP_NEWEST` (ctrl90cd.h).
const KEEP_NEWEST: u32 = 2;
/// `NV2080_TIMER_GPU_CPU_TIME_CPU_CLK_ID_OSTIME`: microseconds of the host's real time.
const REAL_TIME: u8 = 1;
const PAIRS: u8 = 3;

/// `NV_EVENT_BUFFER_HEADER.recordPut`, in the upper half of the first word.
const PUT: usize = 0;
const HEADER_BYTES: u64 = 4096;
/// Bytes of `NV_EVENT_BUFFER_RECORD_HEADER` and `NV_EVENT_BUFFER_FECS_RECORD_V2`
/// (class/cl90cdfecs.h).
const RECORD: u32 = 32;
/// Some seconds' worth of a card on which two programs take turns.
const RECORDS: u32 = 4096;
/// `NV_EVENT_BUFFER_RECORD_TYPE_FECS_CTX_SWITCH_V2`.
const SWITCH_TYPE: u64 = 2;
/// `NV_EVENT_BUFFER_FECS_CTXSWTAG_SIMPLE_START`, `_SIMPLE_END`; what a privileged reader gets
/// instead of them.
const SIMPLE_START: u64 = 6;
const SIMPLE_END: u64 = 7;
const CONTEXT_START: u64 = 5;
const SAVE_END: u64 = 3;

/// The log's objects are numbered from here, four for each subdevice.
const OWN_OBJECTS: u32 = 0xe6a0_0000;
/// Interval of comparisons: the clocks drift by less in between than one comparison is off.
const COMPARE_EVERY: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(super) struct NvidiaSwitchLog {
    driver: Box<dyn Driver>,
    abi: Abi,
    control: DeviceFile,
    client: Handle,
    subdevice: Handle,
    objects: [Handle; 3],
    header: ReadOnlyMapping,
    records: ReadOnlyMapping,
    /// The next record to read.
    get: u32,
    /// The number that the next one should have.
    sequence: Option<u16>,
    /// The card's time less `CLOCK_MONOTONIC`, in nanoseconds, and the instant of that measurement.
    ahead_ns: i64,
    compared: Instant,
}

impl NvidiaSwitchLog {
    /// Creates the event buffer, and binds it to the card's switches.
    pub(super) fn open(
        driver: Box<dyn Driver>,
        abi: Abi,
        own: &OwnClient,
        subdevice: Handle,
    ) -> Result<Self, SwitchLogError> {
        let raw = Raw { driver: &*driver, abi, file: &own.control, client: own.client };
        let first = OWN_OBJECTS + (subdevice.0 & 0xffff) * 4;
        let objects = [Handle(first), Handle(first + 1), Handle(first + 2)];
        let [header, records, buffer] = objects;
        let made = make(raw, subdevice, objects).and_then(|()| {
            let header = map(raw, header, HEADER_BYTES)?;
            let records = map(raw, records, u64::from(RECORD * RECORDS))?;
            bind(raw, subdevice, buffer)?;
            Ok((header, records, compare(raw, subdevice)?))
        });
        let (header, records, ahead_ns) = made.inspect_err(|_| free(raw, objects))?;
        Ok(Self {
            abi,
            control: own.control.clone(),
            client: own.client,
            subdevice,
            objects,
            header,
            records,
            get: 0,
            sequence: None,
            ahead_ns,
            compared: Instant::now(),
            driver,
        })
    }

    fn raw(&self) -> Raw<'_> {
        Raw { driver: &*self.driver, abi: self.abi, file: &self.control, client: self.client }
    }

    fn record(&self, index: u32) -> Option<Record> {
        let at = index as usize * RECORD as usize;
        let [kind, tag, process, time] = [0, 8, 16, 24].map(|offset| self.records.word(at + offset));
        Some(Record::of(kind?, tag?, process?, time?))
    }
}

impl SwitchLog for NvidiaSwitchLog {
    fn take(&mut self, into: &mut Vec<Switch>) -> Result<SwitchBatch, SwitchLogError> {
        // Moves what the firmware has noted into the buffers of all who read; without it the driver
        // does so 30 times a second.
        control(
            self.raw(),
            self.objects[2],
            "NV_EVENT_BUFFER_CTRL_CMD_FLUSH",
            NV_EVENT_BUFFER_CTRL_CMD_FLUSH,
            Vec::new(),
        )?;
        if self.compared.elapsed() > COMPARE_EVERY {
            self.ahead_ns = compare(self.raw(), self.subdevice)?;
            self.compared = Instant::now();
        }
        let put = self.header.word(PUT).unwrap_or(0) >> 32;
        let put = u32::try_from(put).unwrap_or(0) % RECORDS;
        let mut taken = SwitchBatch::default();
        while self.get != put {
            if let Some(record) = self.record(self.get) {
                let expected = self.sequence.replace(record.sequence.wrapping_add(1)).unwrap_or(record.sequence);
                taken.lost += u64::from(record.sequence.wrapping_sub(expected));
                into.extend(record.switch(self.ahead_ns));
            }
            self.get = (self.get + 1) % RECORDS;
        }
        Ok(taken)
    }
}

impl Drop for NvidiaSwitchLog {
    fn drop(&mut self) {
        free(self.raw(), self.objects);
    }
}

/// One record of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    kind: u64,
    tag: u64,
    sequence: u16,
    context: u32,
    process: u32,
    card_ns: u64,
}

impl Record {
    /// Parses the record's four words.
    fn of(kind: u64, tag: u64, process: u64, card_ns: u64) -> Self {
        let low = |word: u64, bits: u64| word & ((1 << bits) - 1);
        Self {
            kind: low(kind, 16),
            tag: low(tag, 8),
            sequence: u16::try_from(low(tag >> 16, 16)).unwrap_or(0),
            context: u32::try_from(tag >> 32).unwrap_or(0),
            process: u32::try_from(low(process, 32)).unwrap_or(0),
            card_ns,
        }
    }

    fn switch(&self, ahead_ns: i64) -> Option<Switch> {
        let presence = match self.tag {
            SIMPLE_START | CONTEXT_START => Presence::On,
            SIMPLE_END | SAVE_END => Presence::Off,
            _ => return None,
        };
        let at_ns = self.card_ns.checked_add_signed(ahead_ns.checked_neg()?)?;
        (self.kind == SWITCH_TYPE).then_some(Switch { at_ns, process: self.process, context: self.context, presence })
    }
}

fn make(raw: Raw<'_>, subdevice: Handle, objects: [Handle; 3]) -> Result<(), SwitchLogError> {
    let [header, records, buffer] = objects;
    for (object, size) in [(header, HEADER_BYTES), (records, u64::from(RECORD * RECORDS))] {
        let params = encode!(NV_MEMORY_ALLOCATION_PARAMS {
            owner: raw.client.0,
            attr: CACHED,
            attr2: USER_READ_ONLY,
            size: size,
        });
        alloc(raw, object, "NV01_MEMORY_DEVICELESS", NV01_MEMORY_DEVICELESS, params.to_vec())?;
    }
    let params = encode!(NV_EVENT_BUFFER_ALLOC_PARAMETERS {
        recordSize: RECORD,
        recordCount: RECORDS,
        // Without it the driver would look for the bus of no card.
        hSubDevice: subdevice,
        hBufferHeader: header,
        hRecordBuffer: records,
    });
    alloc(raw, buffer, "NV_EVENT_BUFFER", NV_EVENT_BUFFER, params.to_vec())
}

fn map(raw: Raw<'_>, object: Handle, length: u64) -> Result<ReadOnlyMapping, SwitchLogError> {
    const CALL: &str = "NV_ESC_RM_MAP_MEMORY";
    let failed = |source| SwitchLogError::Call { call: CALL, source };
    let target = raw.driver.open(Node::Control).map_err(failed)?;
    let status = raw.map_for_reading((raw.client, object), (0, length), &target).map_err(failed)?;
    passed(CALL, status)?;
    let length = usize::try_from(length).map_err(|_| failed(io::ErrorKind::InvalidInput.into()))?;
    // The mapping keeps the file.
    ReadOnlyMapping::new(target.file.as_fd(), length).map_err(failed)
}

fn bind(raw: Raw<'_>, subdevice: Handle, buffer: Handle) -> Result<(), SwitchLogError> {
    // The level of detail is the driver's choice, and all users' contexts are none of ours.
    let params = encode!(NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS {
        hEventBuffer: buffer,
        recordSize: RECORD,
        eventFilter: u32::MAX,
    });
    let (call, id) = ("NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2", NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2);
    control(raw, subdevice, call, id, params.to_vec())?;
    let params = encode!(NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS { enable: 1, flags: KEEP_NEWEST });
    let (call, id) = ("NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS", NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS);
    control(raw, buffer, call, id, params.to_vec()).map(drop)
}

/// Nanoseconds that the card's time is ahead of `CLOCK_MONOTONIC`.
fn compare(raw: Raw<'_>, subdevice: Handle) -> Result<i64, SwitchLogError> {
    type Params = NV2080_CTRL_TIMER_GET_GPU_CPU_TIME_CORRELATION_INFO_PARAMS;
    type Sample = NV2080_CTRL_TIMER_GPU_CPU_TIME_SAMPLE;
    const CALL: &str = "NV2080_CTRL_CMD_TIMER_GET_GPU_CPU_TIME_CORRELATION_INFO";
    const ID: u32 = NV2080_CTRL_CMD_TIMER_GET_GPU_CPU_TIME_CORRELATION_INFO;
    let now_ns = |clock| {
        let now = clock_gettime(clock).map_err(|errno| SwitchLogError::Call { call: CALL, source: errno.into() })?;
        Ok(now.tv_sec() * 1_000_000_000 + now.tv_nsec())
    };
    let params = encode!(Params { cpuClkId: REAL_TIME, sampleCount: PAIRS });
    let answer = control(raw, subdevice, CALL, ID, params.to_vec())?;
    let real_ahead_ns = now_ns(ClockId::CLOCK_REALTIME)? - now_ns(ClockId::CLOCK_MONOTONIC)?;
    let pairs = (0..usize::from(PAIRS)).filter_map(|pair| {
        let sample = Params::samples.element(pair)?.bytes(&answer)?;
        let (host_us, card_ns) = (Sample::cpuTime.get(sample)?, Sample::gpuTime.get(sample)?);
        card_ns.cast_signed().checked_sub(host_us.cast_signed().checked_mul(1_000)?)
    });
    let mut pairs: Vec<i64> = pairs.collect();
    pairs.sort_unstable();
    let card_ahead_ns =
        pairs.get(pairs.len() / 2).ok_or(SwitchLogError::Refused { call: CALL, status: Status::INVALID_ARGUMENT })?;
    Ok(card_ahead_ns.saturating_add(real_ahead_ns))
}

fn free(raw: Raw<'_>, objects: [Handle; 3]) {
    // The buffer first. What cannot be freed goes with the client.
    for object in objects.into_iter().rev() {
        let _ = raw.free(object);
    }
}

fn alloc(raw: Raw<'_>, object: Handle, call: &'static str, class: u32, params: Vec<u8>) -> Result<(), SwitchLogError> {
    let made = raw.alloc(raw.client, object, class, params);
    passed(call, made.map_err(|source| SwitchLogError::Call { call, source })?.0)
}

fn control(
    raw: Raw<'_>,
    object: Handle,
    call: &'static str,
    id: u32,
    params: Vec<u8>,
) -> Result<Vec<u8>, SwitchLogError> {
    let (status, params) = raw.control(object, id, params).map_err(|source| SwitchLogError::Call { call, source })?;
    passed(call, status).map(|()| params)
}

fn passed(call: &'static str, status: Status) -> Result<(), SwitchLogError> {
    if status.is_ok() { Ok(()) } else { Err(SwitchLogError::Refused { call, status }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As an H200 with driver 580.159.04 wrote it.
    const SEEN: [u64; 4] = [2, 0x0000_004d_012d_0007, 0x1_0000_0ab3, 1_795_251_926_298_340_608];

    #[test]
    fn a_record() {
        let [kind, tag, process, time] = SEEN;
        let record = Record::of(kind, tag, process, time);
        assert_eq!((record.sequence, record.context, record.process), (0x12d, 0x4d, 0xab3));
        let switch = record.switch(1_795_251_900_000_000_000).unwrap();
        assert_eq!(switch, Switch { at_ns: 26_298_340_608, process: 0xab3, context: 0x4d, presence: Presence::Off });
    }

    #[test]
    fn other_records_are_no_switches() {
        let [kind, tag, process, time] = SEEN;
        assert_eq!(Record::of(1, tag, process, time).switch(0), None, "a video event");
        assert_eq!(Record::of(kind, tag & !0xff | 0xfe, process, time).switch(0), None, "the engine was reset");
        assert_eq!(Record::of(kind, tag, process, 5).switch(6), None, "before the host's start");
        assert_eq!(Record::of(kind, tag, process, time).switch(i64::MIN), None);
    }
}
