//! The test programs that speak to the driver by themselves (`integration/hostile/hostile.c`, which
//! includes its parts, one a kind of attack): static, without NVIDIA's libraries, so that nothing
//! in them cooperates.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use nix::fcntl::{Flock, FlockArg};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    container::ContainerBuilder,
    egpu::{Grant, on_real_cards},
    node::Node,
    processes::Process,
    stdio::{Output, Stdio},
};

/// Path of the program in a container.
pub const PROGRAM: &str = "/bin/hostile";
/// `NV_ERR_NO_MEMORY` (nverr.h).
pub const OUT_OF_MEMORY: i64 = 0x51;
/// `NV_ERR_INVALID_CLIENT`.
pub const INVALID_CLIENT: i64 = 0x23;
/// `NV_ERR_INSUFFICIENT_RESOURCES`.
pub const TOO_MANY: i64 = 0x1a;
/// A mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;

static BUILT: OnceLock<Result<(Option<TempDir>, PathBuf), String>> = OnceLock::new();

/// Checks that the program can be had.
///
/// # Errors
/// When there is no C compiler, or it fails.
pub fn available() -> Result<(), String> {
    built().map(drop)
}

/// Names the program where it is built already: a machine with cards may lack compiler and sources.
const PREBUILT: &str = "EGPU_TEST_HOSTILE";

pub(crate) fn built() -> Result<&'static Path, String> {
    let built = BUILT.get_or_init(|| {
        if let Some(program) = std::env::var_os(PREBUILT).map(PathBuf::from) {
            let is_there = program.is_file();
            return if is_there { Ok((None, program)) } else { Err(format!("{PREBUILT} names no program")) };
        }
        let directory = crate::shared::directory("egpu-hostile-");
        let program = directory.path().join("hostile");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("hostile/hostile.c");
        let arguments = ["-static", "-O1", "-pthread", "-o"];
        let compiled = Command::new("cc").args(arguments).arg(&program).arg(source).output();
        match compiled {
            Ok(output) if output.status.success() => Ok((Some(directory), program)),
            Ok(output) => Err(format!("cc failed: {}", String::from_utf8_lossy(&output.stderr))),
            Err(error) => Err(format!("no C compiler: {error}")),
        }
    });
    built.as_ref().map(|(_, program)| program.as_path()).map_err(Clone::clone)
}

/// Memory of the machine's own cards that was taken before anything was tested.
static BEFORE: OnceLock<Vec<(String, u64)>> = OnceLock::new();

/// Records how much of the machine's own cards is in use, if those are tested; to be called before
/// the first test.
pub fn look_at_real_cards() {
    if on_real_cards() {
        BEFORE.get_or_init(real_cards_used);
    }
}

/// UUIDs, and bytes that are taken.
fn real_cards_used() -> Vec<(String, u64)> {
    let arguments = ["--query-gpu=uuid,memory.used", "--format=csv,noheader,nounits"];
    let output = Command::new("nvidia-smi").args(arguments).output().expect("nvidia-smi");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = |line: &str| {
        let (uuid, mib) = line.split_once(", ")?;
        Some((uuid.to_owned(), mib.trim().parse::<u64>().ok()? * MIB))
    };
    let cards: Vec<_> = text.lines().filter_map(line).collect();
    assert!(!cards.is_empty(), "nvidia-smi lists no card: {text}{}", String::from_utf8_lossy(&output.stderr));
    cards
}

impl ContainerBuilder<'_> {
    /// With the test programs at [`PROGRAM`].
    #[must_use]
    pub fn armed(self) -> Self {
        let program = built().expect("the test programs");
        self.edit(move |spec| {
            let mount = json!({
                "destination": PROGRAM, "type": "bind", "source": program, "options": ["bind", "ro"],
            });
            spec["mounts"].as_array_mut().expect("mounts").push(mount);
        })
    }

    /// Runs one of the test programs.
    #[must_use]
    pub fn hostile(self, arguments: &[&str]) -> Self {
        self.armed().args(&[&[PROGRAM], arguments].concat())
    }
}

/// Value of `name=value` in what a test program printed.
#[track_caller]
pub fn value(text: &str, name: &str) -> i64 {
    let prefix = format!("{name}=");
    let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
    let line = line.unwrap_or_else(|| panic!("no {name} in {text:?}"));
    line.parse().unwrap_or_else(|_| panic!("{name}={line}"))
}

impl Output {
    /// See [`value`].
    #[track_caller]
    pub fn value(&self, name: &str) -> i64 {
        value(&self.stdout(), name)
    }
}

impl Stdio {
    /// Waits until the program has said `name`, and says its value.
    #[track_caller]
    pub fn value(&self, name: &str) -> i64 {
        crate::eventually(&format!("{name}= in {:?}", self.stdout_so_far()), || {
            let text = self.stdout_so_far();
            let complete = text.rfind('\n').map_or("", |end| &text[..end]);
            complete.lines().any(|line| line.starts_with(&format!("{name}="))).then(|| value(complete, name))
        })
    }
}

impl Node {
    /// Memory of a card that all processes of the machine use, by the driver's own account; of a
    /// real card, in MiB, less what was in use before the tests.
    #[track_caller]
    pub fn card_used(&self, card: usize) -> u64 {
        let cards = self.egpu_json(&["cards"]);
        let uuid = cards[card]["uuid"].as_str().expect("a uuid").to_owned();
        if on_real_cards() {
            let before = BEFORE.get_or_init(real_cards_used).iter().find(|(known, _)| *known == uuid);
            let now = real_cards_used().into_iter().find(|(known, _)| *known == uuid);
            return now.expect("the card in nvidia-smi's list").1.saturating_sub(before.map_or(0, |(_, used)| *used));
        }
        self.simulated_memory_used(&uuid)
    }

    /// Host memory that the simulated driver holds for all processes.
    #[track_caller]
    pub fn host_memory_used(&self) -> u64 {
        self.simulated_memory_used("host")
    }

    /// The simulated driver's account of a card, or of the host.
    #[track_caller]
    fn simulated_memory_used(&self, name: &str) -> u64 {
        let path = self.directory().join("egpu/simulated").join(format!("{name}.used"));
        let Ok(file) = File::open(&path) else { return 0 };
        let mut file = Flock::lock(file, FlockArg::LockShared).expect("lock the account");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read the account");
        // Who is gone holds nothing; whoever changes the file next takes its line out.
        let lines = text.lines().take_while(|line| *line != "end").map(|line| line.split(' ').collect::<Vec<_>>());
        let lives = |pid: &str| Process::read(pid.parse().expect("a pid")).is_some_and(|found| found.state != 'Z');
        let living = lines.filter(|words| lives(words[0]));
        living.map(|words| words[2].parse::<u64>().expect("bytes")).sum()
    }

    /// Use of a container's first card and its number of refusals, from `egpu ps`.
    #[track_caller]
    pub fn usage(&self, id: &str) -> Usage {
        let Grant(entry) = self.grant(id).unwrap_or_else(|| panic!("{id} has no grant"));
        let number = |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("a number in {entry}"));
        Usage {
            used: number(&entry["cards"][0]["memory_used_bytes"]),
            limit: number(&entry["cards"][0]["memory_limit_bytes"]),
            denials: number(&entry["denials"]),
        }
    }
}

/// See [`Node::usage`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes.
    pub used: u64,
    /// Bytes.
    pub limit: u64,
    /// Allocations that were refused.
    pub denials: u64,
}
