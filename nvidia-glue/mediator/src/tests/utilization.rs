//! A container's utilization is its own, against its share: in the driver's samples, on its page,
//! for video engines. The driver says how busy the card is with whosever work.

use abi::{
    Node,
    classes::RM_USER_SHARED_DATA,
    controls::{
        NV00DE_CTRL_CMD_REQUEST_DATA_POLL, NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2,
        NV2080_CTRL_CMD_PERF_GET_VID_ENG_PERFMON_SAMPLE,
    },
    layout::{read_u32, read_u64, write_u32, write_u64},
};
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use base::{OverMemory, now_us};
use driver::{DeviceFile, Driver, DriverCall};
use schedule::meter::Measured;
use simulator::SimulatedDriver;

use super::{
    spy::like_the_driver_behind,
    world::{Container, Context, GIB, MIB, Machine, struct_with, words},
};

const LIMIT: u64 = 4 * GIB;
const GET_SAMPLES: u32 = NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2;
const GET_VIDEO_SAMPLE: u32 = NV2080_CTRL_CMD_PERF_GET_VID_ENG_PERFMON_SAMPLE;
const POLL: u32 = NV00DE_CTRL_CMD_REQUEST_DATA_POLL;
const SAMPLES: usize = 16;
const SAMPLE: usize = 776;
const ENGINE: usize = 128;
const COMPUTE: usize = 1;
const NO_PID: u32 = u32::MAX;
/// Process with which, besides the mediator, the card is busy with.
const STRANGER: u32 = 4_000_000;

fn real_time_ns() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

/// A driver that has sampled, until now: all engines are as busy as is set, with the work of a
/// process that is set.
#[derive(Debug)]
struct Sampling {
    driver: Arc<SimulatedDriver>,
    /// Hundredths of a percent.
    busy: AtomicU32,
    process: AtomicU32,
    asked: AtomicU32,
}

impl Sampling {
    fn new(machine: &Machine) -> Arc<Self> {
        let [busy, process, asked] = [0, STRANGER, 0].map(AtomicU32::new);
        Arc::new(Self { driver: Arc::clone(&machine.driver), busy, process, asked })
    }

    fn is_busy(&self, busy: u32, process: u32) {
        self.busy.store(busy, Ordering::SeqCst);
        self.process.store(process, Ordering::SeqCst);
    }

    fn write(&self, params: &mut [u8]) {
        let now_ns = real_time_ns();
        for place in 0..72 {
            let at = SAMPLES + place * SAMPLE;
            assert!(write_u64(params, at, now_ns - place as u64 * 200_000_000));
            for engine in 0..6 {
                let at = at + 8 + engine * ENGINE;
                assert!(write_u32(params, at, self.busy.load(Ordering::SeqCst)));
                assert!(write_u32(params, at + 8, self.process.load(Ordering::SeqCst)));
                // A pointer into the kernel.
                assert!(write_u64(params, at + 120, 0xffff_8880_1234_5678));
            }
        }
    }
}

impl Driver for Sampling {
    fn ioctl(&self, file: &DeviceFile, call: DriverCall<'_>) -> io::Result<i32> {
        let is_sampling = call.command & 0xff == 0x2a && read_u32(call.args, 8) == Some(GET_SAMPLES);
        let DriverCall { command, args, buffers, files } = call;
        let answer = self.driver.ioctl(file, DriverCall { command, args, buffers: &mut *buffers, files });
        if is_sampling && let Some(params) = buffers.first_mut() {
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.write(&mut params.bytes);
        }
        answer
    }
    like_the_driver_behind!();
}

/// A container beside one that has the card busy.
fn beside_a_neighbour(limit: u64, test: impl FnOnce(&Sampling, &Arc<Container>)) {
    let machine = Machine::new(1);
    let driver = Sampling::new(&machine);
    let container = machine.container_on(Arc::clone(&driver) as Arc<dyn Driver>, OverMemory::Deny, &[0], limit);
    test(&driver, &container);
}

/// The same, with a program that has memory and looks at its page about the card.
fn looking_at_its_page(limit: u64, test: impl FnOnce(&Sampling, &Container, &Context, &Page)) {
    beside_a_neighbour(limit, |driver, container| {
        let context = container.program().context(0);
        context.memory(MIB).unwrap();
        test(driver, container, &context, &Page::map(&context));
    });
}

/// Answer of the driver about a kind of video engines.
fn video_sample(context: &Context, kind: u32) -> u32 {
    let mut params = words(&[kind, 0, 0]);
    context.subdevice_control(GET_VIDEO_SAMPLE, &mut params).unwrap();
    read_u32(&params, 4).unwrap()
}

/// It has used so much of the card in each of the last seconds, and was granted so much of it;
/// millionths.
fn used(container: &Container, used_ppm: Option<u64>, share_ppm: u32, in_doubt: bool) -> Option<u32> {
    let uuid = &container.machine.inventory.cards[0].uuid;
    let now_us = now_us();
    let mut told = None;
    for back_us in (0..=30_u64).rev().map(|tenth| tenth * 100_000) {
        let used_us = used_ppm.map(|ppm| (3_000_000 - back_us) * ppm / 1_000_000);
        let measured = Measured { at_us: now_us - back_us, used_us, share_ppm, rests: false };
        told = container.session.measured(uuid, measured, in_doubt && back_us == 0).utilization_ppm;
    }
    told
}

/// Of the newest sample: how busy an engine was, and whose process.
fn newest(context: &Context, engine: usize) -> (u32, u32) {
    let mut params = struct_with(55_888, &[(0, 2), (4, 55_872)]);
    context.subdevice_control(GET_SAMPLES, &mut params).unwrap();
    for place in 0..72 {
        for kind in 0..6 {
            let part = &params[SAMPLES + place * SAMPLE + 8 + kind * ENGINE..][..ENGINE];
            let pid = read_u32(part, 8).unwrap();
            assert!(pid == NO_PID || pid == 1 || pid < 100, "{pid} is none of its processes");
            assert!(part[16..].iter().all(|byte| *byte == 0), "no name, no pointer");
        }
    }
    let part = &params[SAMPLES + 8 + engine * ENGINE..];
    (read_u32(part, 0).unwrap(), read_u32(part, 8).unwrap())
}

/// The program's page about the card.
struct Page {
    file: File,
    object: u32,
}

impl Page {
    fn map(context: &Context) -> Self {
        let program = &context.program;
        let object = context.object_below(context.subdevice, RM_USER_SHARED_DATA, &mut [0; 8]).unwrap();
        let file = program.open(Node::Control);
        context.map_on(file, (context.subdevice, object), 2608).unwrap();
        Self { file: program.file_of(file), object }
    }

    fn poll(&self, context: &Context, mask: u64) {
        let name = (context.client, self.object);
        context.program.control(context.control, name, POLL, &mut mask.to_ne_bytes()).unwrap();
    }

    /// `perfDevUtil` of 580: when it was written, the card's, the memory's, and those of four kinds
    /// of video engines.
    fn load(&self) -> (u64, [u32; 2], [u32; 4]) {
        let mut bytes = [0; 48];
        self.file.read_exact_at(&mut bytes, 1976).unwrap();
        let word = |at| read_u32(&bytes, at).unwrap();
        (read_u64(&bytes, 0).unwrap(), [word(8), word(12)], [16, 24, 32, 40].map(word))
    }
}

#[test]
fn a_busy_neighbour_does_not_show() {
    looking_at_its_page(LIMIT, |driver, container, context, page| {
        driver.is_busy(9_500, STRANGER);
        // Whether it is known what the container used or not.
        for (known, share_ppm) in [(None, 1_000_000), (Some(0), 250_000)] {
            assert_eq!(used(container, known, share_ppm, true), Some(0));
            for engine in 0..6 {
                assert_eq!(newest(context, engine), (0, NO_PID), "engine {engine}");
            }
            page.poll(context, 2);
            let (at_ns, card, video) = page.load();
            assert!(at_ns > 0 && at_ns <= real_time_ns());
            assert_eq!((card, video), ([0, 0], [0; 4]));
        }
        for engine in 1..=4_u32 {
            assert_eq!(video_sample(context, engine), 0);
        }
    });
}

#[test]
fn what_is_used_of_a_cap_is_the_utilization() {
    for (used_ppm, share_ppm, percent) in [
        (250_000, 250_000, 100),
        (62_500, 250_000, 25),
        (0, 250_000, 0),
        (420_000, 1_000_000, 42),
        (600_000, 500_000, 100),
    ] {
        looking_at_its_page(LIMIT, |driver, container, context, page| {
            driver.is_busy(10_000, STRANGER);
            let told = used(container, Some(used_ppm), share_ppm, true).unwrap();
            assert!(told.abs_diff(percent * 10_000) <= 100, "{told} of {used_ppm} in {share_ppm}");
            let (busy, pid) = newest(context, COMPUTE);
            assert!(busy.abs_diff(percent * 100) <= 5, "{busy} of {used_ppm} in {share_ppm}");
            assert_eq!(pid == NO_PID, percent == 0);
            page.poll(context, 0x1e);
            let (_, [card, memory], video) = page.load();
            assert!(card.abs_diff(percent) <= 1, "{card} of {used_ppm} in {share_ppm}");
            assert_eq!((memory, video), (0, [0; 4]), "of a neighbour's work");
        });
    }
}

#[test]
fn who_stays_on_the_card_without_work_is_not_busy() {
    beside_a_neighbour(LIMIT, |driver, container| {
        driver.is_busy(300, std::process::id());
        assert_eq!(used(container, Some(1_000_000), 1_000_000, false), Some(1_000_000), "nobody has asked the driver");
        assert_eq!(driver.asked.load(Ordering::SeqCst), 0);
        assert_eq!(used(container, Some(1_000_000), 1_000_000, true), Some(30_000));
        assert_eq!(used(container, Some(1_000_000), 1_000_000, true), Some(30_000));
        assert_eq!(driver.asked.load(Ordering::SeqCst), 1, "once a second is enough");
    });
}

#[test]
fn what_nobody_measures_is_as_the_driver_says() {
    looking_at_its_page(LIMIT, |driver, container, context, page| {
        driver.is_busy(4_000, std::process::id());
        assert_eq!(newest(context, COMPUTE), (4_000, 1));
        page.poll(context, 2);
        assert_eq!((page.load().1, page.load().2), ([40, 40], [40; 4]));
        assert_eq!(video_sample(context, 2), 40);
        // Of half a card, known by its samples only.
        assert_eq!(used(container, None, 500_000, true), Some(800_000));
    });
}

#[test]
fn the_page_is_written_while_somebody_wants_to_know() {
    beside_a_neighbour(LIMIT, |driver, container| {
        driver.is_busy(10_000, std::process::id());
        let program = container.program();
        let context = program.context(0);
        let page = Page::map(&context);
        container.session.tell_utilization();
        assert_eq!(page.load(), (0, [0; 2], [0; 4]), "nobody asked");
        page.poll(&context, 4);
        assert_eq!(page.load().0, 0, "for memory's errors");
        page.poll(&context, 6);
        let (first_ns, ..) = page.load();
        assert!(first_ns > 0);
        let later = |page: &Page| {
            std::thread::sleep(std::time::Duration::from_millis(120));
            container.session.tell_utilization();
            page.load().0
        };
        let second_ns = later(&page);
        assert!(second_ns > first_ns);
        context.program.free(context.control, context.client, page.object).unwrap();
        assert_eq!(later(&page), second_ns, "its object is gone");
        // One that asks when it is made.
        context.object_below(context.subdevice, RM_USER_SHARED_DATA, &mut 2_u64.to_ne_bytes()).unwrap();
        assert!(later(&page) > second_ns);
    });
}

#[test]
fn who_only_looks_sees_how_busy_the_card_is_and_not_with_whose_work() {
    beside_a_neighbour(0, |driver, container| {
        driver.is_busy(9_500, STRANGER);
        let context = container.program().context(0);
        assert_eq!(newest(&context, COMPUTE), (9_500, NO_PID));
        assert_eq!(video_sample(&context, 1), 50, "as the driver says");
    });
}
