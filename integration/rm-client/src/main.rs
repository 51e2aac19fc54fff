//! `rm-client`: uses a card's memory as a program does, or as an attacker does, and prints what it
//! got.
//!
//! Everything goes to standard output, one thing a line; failures to standard error. Exit codes: 0
//! done; 1 the command line, or something unexpected; 2 out of memory (the driver's `NO_MEMORY`, or
//! `ENOMEM`); 3 refused with another status; 4 a system call failed (no such node, no such card's
//! node, ENOTTY, EPERM, ...).
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for tests reports by printing")]

mod work;

use std::{
    any::Any,
    error::Error as _,
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd},
        unix::net::{UnixListener, UnixStream},
    },
    process::ExitCode,
    time::{Duration, Instant},
};

use rm_client::{
    Client, Device, RmError,
    attacks::ATTACKS,
    bytes::parse_size,
    channels,
    compute::{Engine, Group},
    compute_attacks,
    controls::{self, Objects},
    exports,
    files::Nodes,
    fragment::{Fragments, METHODS},
    processes, random, smi, sys, system,
    utilization::{Monitor, Utilization},
    uvm::AddressSpace,
};

use crate::work::WorkOptions;

const USAGE: &str = "\
usage: rm-client COMMAND [--card N] [--dev DIRECTORY]
  smi                                   a table of the cards: used / total, processes
  watch TIME [--every TIME]             how busy the card is, as programs see it: `load PAGE SAMPLES PID...`, in percent
  memory                                `total BYTES free BYTES` of one card
  alloc SIZE [--count N] [--map] [--hold SECONDS|stdin]
                                        memory of the card; --map: mapped as CUDA maps it
  managed SIZE [--count N] [--hold SECONDS|stdin]
                                        managed memory
  free-loop SIZE TIMES [--map]          allocates and frees, and says how long that took; --map: mapped as CUDA maps it
  channels [--count N] [--hold SECONDS|stdin]
                                        N channels, or as many as it gets: `channels N status S`; without --count all there are
  fork N SIZE                           N processes allocate at once, each as its own client
  pass-fd SIZE                          a child allocates with a client that it was passed
  export SIZE SOCKET [--hold ...]       allocates, exports, frees its handle, sends the file to who connects
  import SOCKET [--hold ...]            receives the file and imports
  export-import SIZE                    both in one process
  random SEED STEPS [--max SIZE]        a random honest program
  attack NAME [SIZE]                    says how much it came to hold; `attack list` names them
  fragment WAY [--hold ...]             holds as many frames of 2 MiB open as it can, and says how many; `fragment list` names the ways
  spin TIME [--groups N] [--channels N] [--cards N] [--copy] [--video] [--every TIME]
                                        has work without end, and says what the card's engines gave it
  burst TIME WORK EVERY [...]           has so much work every so often
  storm TIME N [...]                    N processes have work without end, each as its own client
  steal NAME TIME                       works, and tries to get more than its share; `steal list` names the ways
  objects CLASS...                      an object of each class (`cbc0`) in a channel of its own: `CLASS=STATUS`
  controls [CLIENT DEVICE SUBDEVICE GROUP CHANNEL]
                                        tries each control by which a card's sharing could be decided: `NAME=STATUS` (-ERRNO); with handles that
                                        another program has printed (`spin` does): on these
  raw NODE COMMAND HEX [--int80]        one ioctl with these bytes, for example raw nvidiactl 0xc00446c9 ffffffff
SIZE: bytes, or 64K, 512MiB, 2G. TIME, WORK, EVERY: seconds, or 200ms. Work is engine time of simulated cards.
exit codes: 0 done, 1 usage or unexpected, 2 out of memory, 3 refused otherwise, 4 a system call failed";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(options) = Options::parse(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(1);
    };
    match run(&options) {
        Ok(code) => code,
        Err(error) => {
            if error.is_out_of_memory() {
                println!("out of memory");
            }
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            eprintln!("rm-client: {error}{cause}");
            code_of(&error)
        }
    }
}

fn code_of(error: &RmError) -> ExitCode {
    ExitCode::from(number_of(error))
}

fn number_of(error: &RmError) -> u8 {
    match error {
        error if error.is_out_of_memory() => 2,
        RmError::Refused { .. } => 3,
        RmError::System { .. } => 4,
        RmError::Nonsense { .. } => 1,
    }
}

/// The command line: words, and options that stand anywhere.
#[derive(Debug, Default)]
struct Options {
    words: Vec<String>,
    card: usize,
    count: Option<u64>,
    most: u64,
    map: bool,
    int80: bool,
    hold: Option<Hold>,
    nodes: Nodes,
    work: WorkOptions,
}

#[derive(Debug, Clone, Copy)]
enum Hold {
    Seconds(u64),
    UntilStdinCloses,
}

impl Options {
    fn parse(arguments: &[String]) -> Option<Self> {
        let mut options = Self { most: 64 << 20, ..Self::default() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--card" => options.card = rest.next()?.parse().ok()?,
                "--count" => options.count = Some(rest.next()?.parse().ok()?),
                "--max" => options.most = parse_size(rest.next()?)?,
                "--dev" => options.nodes = Nodes::below(rest.next()?),
                "--groups" => options.work.groups = rest.next()?.parse().ok()?,
                "--channels" => options.work.channels = rest.next()?.parse().ok()?,
                "--cards" => options.work.cards = rest.next()?.parse().ok()?,
                "--copy" => options.work.copy = true,
                "--video" => options.work.video = true,
                "--every" => options.work.every = Some(work::duration(rest.next()?)?),
                "--map" => options.map = true,
                "--int80" => options.int80 = true,
                "--hold" => {
                    let until = rest.next()?;
                    let seconds = || until.parse().ok().map(Hold::Seconds);
                    options.hold = Some(if until == "stdin" { Hold::UntilStdinCloses } else { seconds()? });
                }
                word if word.starts_with("--") => return None,
                word => options.words.push(word.to_owned()),
            }
        }
        Some(options)
    }

    fn hold(&self) {
        match self.hold {
            Some(Hold::Seconds(seconds)) => {
                println!("holding");
                std::thread::sleep(Duration::from_secs(seconds));
            }
            Some(Hold::UntilStdinCloses) => {
                println!("holding");
                let _until_it_closes = io::stdin().read_to_end(&mut Vec::new());
            }
            None => {}
        }
    }
}

fn run(options: &Options) -> Result<ExitCode, RmError> {
    let words: Vec<&str> = options.words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["smi"] => table(options),
        ["watch", time] => watch(options, time),
        ["memory"] => memory(options),
        ["alloc", size] => alloc(options, size_of(size)?),
        ["managed", size] => managed(options, size_of(size)?),
        ["free-loop", size, times] => free_loop(options, size_of(size)?, number(times)?),
        ["channels"] => make_channels(options),
        ["fork", count, size] => fork(options, number(count)?, size_of(size)?),
        ["pass-fd", size] => pass_fd(options, size_of(size)?),
        ["export", size, socket] => export(options, size_of(size)?, socket),
        ["import", socket] => import(options, socket),
        ["export-import", size] => export_import(options, size_of(size)?),
        ["random", seed, steps] => random_program(options, number(seed)?, number(steps)?),
        ["attack", "list"] => {
            ATTACKS.iter().for_each(|(name, _)| println!("{name}"));
            Ok(ExitCode::SUCCESS)
        }
        ["attack", name] => attack(options, name, 64 << 20),
        ["attack", name, size] => attack(options, name, size_of(size)?),
        ["fragment", "list"] => {
            METHODS.iter().for_each(|(name, _)| println!("{name}"));
            Ok(ExitCode::SUCCESS)
        }
        ["fragment", way] => fragment(options, way),
        ["spin", time] => work::work(options, time, None),
        ["burst", time, amount, every] => work::work(options, time, Some((amount, every))),
        ["storm", time, count] => work::storm(options, time, usize::try_from(number(count)?).unwrap_or(usize::MAX)),
        ["steal", "list"] => {
            compute_attacks::ATTACKS.iter().for_each(|(name, _)| println!("{name}"));
            Ok(ExitCode::SUCCESS)
        }
        ["steal", name, time] => work::steal(options, name, time),
        ["objects", classes @ ..] => objects(options, classes),
        ["controls", handles @ ..] => try_controls(options, handles),
        ["raw", node, command, hex] => raw(options, node, command, hex),
        _ => Err(RmError::Nonsense { what: USAGE.into() }),
    }
}

fn size_of(text: &str) -> Result<u64, RmError> {
    parse_size(text).ok_or_else(|| RmError::Nonsense { what: format!("`{text}` is no size: 4096, 64K, 512MiB, 2G") })
}

fn number(text: &str) -> Result<u64, RmError> {
    text.parse().map_err(|_| RmError::Nonsense { what: format!("`{text}` is no number") })
}

/// Opens a client and a card of it, with which most commands begin.
fn with_device<T>(options: &Options, work: impl FnOnce(&Device<'_>) -> Result<T, RmError>) -> Result<T, RmError> {
    let client = Client::open(&options.nodes)?;
    let device = client.device(options.card)?;
    work(&device)
}

/// One line for each class.
fn objects(options: &Options, classes: &[&str]) -> Result<ExitCode, RmError> {
    with_device(options, |device| {
        for class in classes {
            let number = u32::from_str_radix(class, 16)
                .map_err(|_| RmError::Nonsense { what: format!("`{class}` is no class: cbc0") })?;
            let group = Group::new(device, Engine::Compute, 1)?;
            let made = device.client.alloc(group.channels[0], 0, number, Some(&mut [0; 16]));
            match made {
                Ok(_) => println!("{class}=0"),
                Err(RmError::Refused { status, .. }) => println!("{class}={status}"),
                Err(error) => return Err(error),
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn table(options: &Options) -> Result<ExitCode, RmError> {
    let client = Client::open(&options.nodes)?;
    let rows = smi::rows(&client)?;
    print!("{}", smi::table(&client.version()?, &rows));
    Ok(ExitCode::SUCCESS)
}

/// One line for each look.
fn watch(options: &Options, time: &str) -> Result<ExitCode, RmError> {
    let time = work::time_of(time)?;
    with_device(options, |device| {
        // Something of its own, so that it is one of the card's users.
        device.alloc(1 << 20)?;
        let monitor = Monitor::new(device)?;
        println!("working=1");
        let end = Instant::now() + time;
        while Instant::now() < end {
            let Utilization { page, sampled, pids } = monitor.read()?;
            let page = page.map_or_else(|| "?".to_owned(), |page| page.to_string());
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            println!("load {page} {sampled} {}", pids.join(" "));
            std::thread::sleep(options.work.every.unwrap_or(Duration::from_millis(200)));
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn memory(options: &Options) -> Result<ExitCode, RmError> {
    with_device(options, |device| {
        let memory = device.memory()?;
        println!("total {} free {}", memory.total, memory.free);
        Ok(ExitCode::SUCCESS)
    })
}

fn alloc(options: &Options, size: u64) -> Result<ExitCode, RmError> {
    with_device(options, |device| {
        let mut space = if options.map { Some(AddressSpace::open(device)?) } else { None };
        for _ in 0..options.count.unwrap_or(1) {
            let outcome = device.alloc(size).and_then(|memory| {
                space.as_mut().map(|space| space.map(device, memory)).transpose()?;
                Ok(memory)
            });
            match outcome {
                Ok(memory) => println!("allocated {:#x} {} bytes", memory.handle, memory.size),
                // What was given before is held as it was asked.
                Err(error) if error.is_out_of_memory() && options.hold.is_some() => {
                    println!("out of memory");
                    options.hold();
                    return Ok(code_of(&error));
                }
                Err(error) => return Err(error),
            }
        }
        options.hold();
        Ok(ExitCode::SUCCESS)
    })
}

fn fragment(options: &Options, name: &str) -> Result<ExitCode, RmError> {
    let method = METHODS.iter().find(|(known, _)| *known == name);
    let (_, fill) =
        method.ok_or_else(|| RmError::Nonsense { what: format!("no method is called `{name}`: `fragment list`") })?;
    with_device(options, |device| {
        let Fragments { pieces, frames, status } = fill(device)?;
        println!("pieces={pieces}\nframes={frames}\nstatus={status}");
        options.hold();
        Ok(ExitCode::SUCCESS)
    })
}

fn managed(options: &Options, size: u64) -> Result<ExitCode, RmError> {
    with_device(options, |device| {
        let mut space = AddressSpace::open(device)?;
        let mut held = Vec::new();
        for _ in 0..options.count.unwrap_or(1) {
            let mapping = space.managed(size)?;
            println!("managed {:#x} {size} bytes", mapping.address());
            held.push(mapping);
        }
        options.hold();
        Ok(ExitCode::SUCCESS)
    })
}

fn make_channels(options: &Options) -> Result<ExitCode, RmError> {
    with_device(options, |device| {
        let (made, refused) = channels::fill(device, options.count.unwrap_or(u64::MAX))?;
        let status = match &refused {
            None => 0,
            Some(RmError::Refused { status, .. }) => *status,
            Some(_) => u32::MAX,
        };
        println!("channels {made} status {status:#x}");
        options.hold();
        Ok(ExitCode::SUCCESS)
    })
}

fn free_loop(options: &Options, size: u64, times: u64) -> Result<ExitCode, RmError> {
    with_device(options, |device| {
        let mut space = if options.map { Some(AddressSpace::open(device)?) } else { None };
        let begin = Instant::now();
        for _ in 0..times {
            let memory = device.alloc(size)?;
            if let Some(space) = &mut space {
                let base = space.map(device, memory)?;
                space.unmap(base, memory.size)?;
            }
            device.client.free(memory.handle)?;
        }
        println!("allocated and freed {times} times in {} us", begin.elapsed().as_micros());
        Ok(ExitCode::SUCCESS)
    })
}

fn fork(options: &Options, count: u64, size: u64) -> Result<ExitCode, RmError> {
    let count = usize::try_from(count).map_err(|_| RmError::Nonsense { what: "too many processes".into() })?;
    let child = |_| -> (i32, Box<dyn Any>) {
        let outcome = Client::open(&options.nodes).and_then(|client| {
            client.device(options.card)?.alloc(size)?;
            Ok(client)
        });
        match outcome {
            Ok(client) => (0, Box::new(client)),
            Err(error) => (i32::from(number_of(&error)), Box::new(())),
        }
    };
    let codes = processes::at_once(count, child).map_err(system("children"))?;
    let with = |code: i32| codes.iter().filter(|other| **other == code).count();
    println!("{} of {count} processes allocated {size} bytes, {} were out of memory", with(0), with(2));
    match codes.iter().find(|code| !matches!(code, 0 | 2)) {
        Some(code) => Err(RmError::Nonsense { what: format!("a process ended with {code}") }),
        None if with(2) > 0 => Ok(ExitCode::from(2)),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn pass_fd(options: &Options, size: u64) -> Result<ExitCode, RmError> {
    let (here, there) = UnixStream::pair().map_err(system("a pair of sockets"))?;
    let nodes = options.nodes.clone();
    let child = |_| -> (i32, Box<dyn Any>) {
        // Only the open file comes over the socket: the child's own client on it, and memory for
        // that.
        let outcome = exports::receive(&there).and_then(|control| {
            let client = Client::on(control, &nodes)?;
            let memory = client.device(options.card)?.alloc(size)?;
            Ok((client, memory.size))
        });
        match outcome {
            Ok((client, size)) => {
                println!("a child allocated {size} bytes with a file that it was passed");
                (0, Box::new(client))
            }
            Err(error) => {
                eprintln!("rm-client: {error}");
                (i32::from(number_of(&error)), Box::new(()))
            }
        }
    };
    let control = options.nodes.control()?;
    exports::send(&here, &control)?;
    let codes = processes::at_once(1, child).map_err(system("a child"))?;
    Ok(ExitCode::from(codes.first().and_then(|code| u8::try_from(*code).ok()).unwrap_or(1)))
}

fn export(options: &Options, size: u64, socket: &str) -> Result<ExitCode, RmError> {
    let listener = UnixListener::bind(socket).map_err(system(format!("{socket} cannot be made")))?;
    with_device(options, |device| {
        let memory = device.alloc(size)?;
        let carrier = exports::export(device, memory)?;
        device.client.free(memory.handle)?;
        println!("exported {} bytes", memory.size);
        let (stream, _) = listener.accept().map_err(system("nobody came"))?;
        exports::send(&stream, &carrier)?;
        println!("sent");
        options.hold();
        Ok(ExitCode::SUCCESS)
    })
}

fn import(options: &Options, socket: &str) -> Result<ExitCode, RmError> {
    let stream = UnixStream::connect(socket).map_err(system(format!("{socket} cannot be reached")))?;
    let carrier = exports::receive(&stream)?;
    with_device(options, |device| {
        println!("imported {:#x}", exports::import(device, &carrier)?);
        options.hold();
        Ok(ExitCode::SUCCESS)
    })
}

fn export_import(options: &Options, size: u64) -> Result<ExitCode, RmError> {
    with_device(options, |device| {
        let memory = device.alloc(size)?;
        let carrier = exports::export(device, memory)?;
        let imported = exports::import(device, &carrier)?;
        device.client.free(memory.handle)?;
        drop(carrier);
        device.client.free(imported)?;
        println!("exported and imported {} bytes", memory.size);
        Ok(ExitCode::SUCCESS)
    })
}

fn random_program(options: &Options, seed: u64, steps: u64) -> Result<ExitCode, RmError> {
    with_device(options, |device| {
        let outcome = random::run(device, seed, steps, options.most)?;
        println!(
            "{steps} steps: {} allocations, {} refused, {} bytes at most",
            outcome.given, outcome.refused, outcome.peak
        );
        Ok(ExitCode::SUCCESS)
    })
}

fn attack(options: &Options, name: &str, size: u64) -> Result<ExitCode, RmError> {
    let (_, attack) = ATTACKS
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| RmError::Nonsense { what: format!("there is no attack `{name}`; `attack list` names them") })?;
    with_device(options, |device| {
        println!("{name}: holds {} bytes", attack(device, size)?);
        options.hold();
        Ok(ExitCode::SUCCESS)
    })
}

/// The answers of [`controls`].
fn try_controls(options: &Options, handles: &[&str]) -> Result<ExitCode, RmError> {
    let handles = handles.iter().map(|handle| number(handle)).collect::<Result<Vec<_>, _>>()?;
    let handles: Vec<u32> = handles.into_iter().map(|handle| u32::try_from(handle).unwrap_or(u32::MAX)).collect();
    with_device(options, |device| {
        let outcomes = match handles.as_slice() {
            [] => controls::try_own(device),
            [client, device_, subdevice, group, channel] => {
                let (client, channel) = (*client, *channel);
                let objects = Objects { client, device: *device_, subdevice: *subdevice, group: *group, channel };
                controls::try_others(device, &objects)
            }
            _ => return Err(RmError::Nonsense { what: USAGE.into() }),
        };
        for (name, outcome) in outcomes {
            let status = match outcome {
                Ok(()) => 0,
                Err(RmError::Refused { status, .. }) => i64::from(status),
                Err(RmError::System { source, .. }) => -i64::from(source.raw_os_error().unwrap_or(0)),
                Err(error) => return Err(error),
            };
            println!("{name}={status}");
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn raw(options: &Options, node: &str, command: &str, hex: &str) -> Result<ExitCode, RmError> {
    let wrong = |text: &str| RmError::Nonsense { what: format!("`{text}` is not hexadecimal") };
    let number = u32::from_str_radix(command.trim_start_matches("0x"), 16).map_err(|_| wrong(command))?;
    let digits: Vec<u8> = hex
        .chars()
        .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()
        .ok_or_else(|| wrong(hex))?;
    let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect();
    let file = options.nodes.open(node)?;
    let mut low = sys::Mapping::low(16384).map_err(system("memory"))?;
    let length = bytes.len().min(16384);
    rm_client::bytes::put_bytes(low.bytes(), 0, &bytes);
    let address = low.address();
    let outcome = if options.int80 {
        sys::ioctl_int80(file.as_fd().as_raw_fd(), number, u32::try_from(address).unwrap_or(0))
    } else {
        sys::ioctl_raw(file.as_fd().as_raw_fd(), u64::from(number), address)
    };
    let after: String = low.bytes().iter().take(length).map(|byte| format!("{byte:02x}")).collect();
    match outcome {
        Ok(answer) => println!("returned {answer}: {after}"),
        Err(error) => println!("errno {}: {after}", error.raw_os_error().unwrap_or(0)),
    }
    Ok(ExitCode::SUCCESS)
}
