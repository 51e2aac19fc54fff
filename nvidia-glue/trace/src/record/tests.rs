//! Traces of programs that use files named like the driver's nodes: no driver is needed, all calls
//! fail with ENOTTY.

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io::BufReader,
    path::Path,
    process::Command,
    sync::Arc,
};

use abi::{
    Handle, Node,
    classes::NV01_DEVICE_0,
    encode,
    escapes::{NV_ESC_RM_ALLOC, command},
    params::{NV0080_ALLOC_PARAMETERS, NVOS64_PARAMETERS},
};
use base::Roots;
use driver::{Buffer, DeviceFile, Driver, DriverCall, Holder, NvidiaDriver};

use super::record;
use crate::{Event, Ioctl, Line, read};

const VICTIM: &str = "EGPU_TRACE_VICTIM";
const ALLOC: u32 = command(NV_ESC_RM_ALLOC, NVOS64_PARAMETERS::SIZE);
const UNKNOWN: u32 = command(0x99, 8);

/// Body of the traced program: run by the tests below, in a process of its own.
#[test]
#[ignore = "is run by the other tests, under the tracer"]
fn victim() {
    let Some(directory) = std::env::var_os(VICTIM) else { return };
    let directory = Path::new(&directory);
    let roots = Roots { proc: directory.to_owned(), ..Roots::host() };
    let driver = NvidiaDriver::new(&roots).unwrap();
    let open = |name: &str, node| DeviceFile {
        node,
        file: Arc::new(OpenOptions::new().read(true).write(true).open(directory.join(name)).unwrap()),
    };
    let control = open("nvidiactl", Node::Control);
    let mut args = encode!(NVOS64_PARAMETERS { hRoot: Handle(0xc1d0_0001), hClass: NV01_DEVICE_0 });
    let offset = NVOS64_PARAMETERS::pAllocParms.at();
    let bytes = encode!(NV0080_ALLOC_PARAMETERS { deviceId: 5 }).to_vec();
    let mut params = Buffer { holder: Holder::Args, offset, bytes };
    let mut call = || {
        let buffers = std::slice::from_mut(&mut params);
        driver.ioctl(&control, DriverCall { command: ALLOC, args: &mut args, buffers, files: &[] }).unwrap_err()
    };
    assert_eq!(call().raw_os_error(), Some(libc::ENOTTY));
    std::thread::scope(|scope| {
        let card = open("nvidia0", Node::Card(0));
        let driver = &driver;
        scope.spawn(move || {
            let mut args = [7_u8; 8];
            driver
                .ioctl(&card, DriverCall { command: UNKNOWN, args: &mut args, buffers: &mut [], files: &[] })
                .unwrap_err();
        });
    });
    assert!(Command::new("true").status().unwrap().success());
    drop(control);
    open("nvidiactl", Node::Control);
}

fn traced(json: bool, command: &[&str], directory: &Path) -> (u8, String) {
    let output = directory.join("trace");
    let command: Vec<_> = command.iter().map(Into::into).collect();
    let exit = record(&command, Some(&output), json).unwrap();
    (exit, fs::read_to_string(output).unwrap())
}

fn trace_victim(json: bool) -> String {
    let directory = tempfile::tempdir().unwrap();
    for node in ["nvidiactl", "nvidia0"] {
        fs::write(directory.path().join(node), "").unwrap();
    }
    fs::write(directory.path().join("devices"), "Character devices:\n195 nvidia\n").unwrap();
    let variable = format!("{VICTIM}={}", directory.path().display());
    let program = std::env::current_exe().unwrap();
    let victim = ["--exact", "record::tests::victim", "--ignored", "--nocapture", "--test-threads=1"];
    let command: Vec<&str> = ["env", &variable, program.to_str().unwrap()].into_iter().chain(victim).collect();
    let (exit, trace) = traced(json, &command, directory.path());
    assert_eq!(exit, 0, "{trace}");
    trace
}

#[test]
fn calls_are_recorded_with_their_bytes_files_and_answers() {
    let trace = trace_victim(true);
    let (header, lines) = read(BufReader::new(trace.as_bytes())).unwrap();
    assert_eq!(header.command.first().map(String::as_str), Some("env"));
    let lines: Vec<Line> = lines.map(Result::unwrap).collect();

    let calls: Vec<(&Line, &Ioctl)> = lines
        .iter()
        .filter_map(|line| match &line.event {
            Event::Ioctl(call) => Some((line, call)),
            _ => None,
        })
        .collect();
    let (alloc_line, alloc) = calls.iter().find(|(_, call)| call.command == ALLOC).unwrap();
    assert_eq!(alloc.name.as_deref(), Some("NV_ESC_RM_ALLOC"));
    assert_eq!(alloc.subject.as_deref(), Some("NV01_DEVICE_0"));
    assert_eq!(alloc.result, -i64::from(libc::ENOTTY));
    assert_eq!(alloc.args.before.0.len(), 48);
    assert_eq!(alloc.args.after, None);
    let params = &alloc.buffers[0];
    assert_eq!((params.holder, params.offset), (None, 16));
    assert_eq!(params.bytes.before.0[..2], [5, 0]);

    let (unknown_line, unknown) = calls.iter().find(|(_, call)| call.command == UNKNOWN).unwrap();
    assert_eq!(unknown.name, None);
    assert_eq!(unknown.args.before.0, [7; 8]);
    assert_eq!(unknown_line.pid, alloc_line.pid);
    assert_ne!(unknown_line.tid, alloc_line.tid);

    let opened: Vec<(u32, &str)> = lines
        .iter()
        .filter_map(|line| match &line.event {
            Event::Open { file, node } => Some((*file, node.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!(opened, [(1, "nvidiactl"), (2, "nvidia0"), (3, "nvidiactl")]);
    assert_eq!((alloc.file, unknown.file), (1, 2));
    let closed: BTreeSet<u32> = lines
        .iter()
        .filter_map(|line| match &line.event {
            Event::Close { file } => Some(*file),
            _ => None,
        })
        .collect();
    assert_eq!(closed, BTreeSet::from([1, 2, 3]));
    assert!(lines.iter().any(|line| matches!(line.event, Event::Fork { child } if child != alloc_line.pid)));
    assert!(matches!(lines.last().map(|line| &line.event), Some(Event::Exit)));
}

#[test]
fn people_read_names_and_numbers() {
    let trace = trace_victim(false);
    assert!(trace.starts_with("# driver "), "{trace}");
    let line = trace.lines().find(|line| line.contains("NV_ESC_RM_ALLOC")).unwrap();
    assert!(line.contains(" nvidiactl#1 NV_ESC_RM_ALLOC NV01_DEVICE_0 client c1d00001 [56] -> ENOTTY "), "{line}");
    assert!(trace.contains(" nvidia0#2 ioctl 0xc0084699 8 bytes -> ENOTTY "), "{trace}");
}

#[test]
fn the_programs_end_is_ours() {
    let directory = tempfile::tempdir().unwrap();
    for (script, code) in [
        ("exit 7", 7),
        ("kill -KILL $$", 137),
        // A real-time signal, which must reach the program.
        ("trap 'exit 3' 35; kill -35 $$; sleep 10", 3),
        ("sleep 0.2 & kill -STOP $!; kill -CONT $!; wait $!", 0),
    ] {
        let (exit, _) = traced(false, &["sh", "-c", script], directory.path());
        assert_eq!(exit, code, "{script}");
    }
}

#[test]
fn what_cannot_be_run_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("trace");
    assert_eq!(
        record(&["/no/such/program".into()], Some(&output), false).unwrap_err().to_string(),
        "cannot run /no/such/program"
    );
}
