//! egpu's own side of a node: its configuration, its command, its ledger.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

use crate::node::Node;

/// The node's `egpu.toml`: four simulated V100 of 32 GiB unless a test wants others.
#[derive(Debug, Clone)]
pub struct EgpuConfig {
    /// Cards and everything below `[driver]`.
    pub driver: String,
    /// Keys at the top of the file.
    pub keys: String,
}

/// Four cards as the vendor's acceptance tests want them.
pub const FOUR_V100: &str = r#"[driver]
kind = "simulated"
[[driver.simulated]]
model = "Tesla V100-PCIE-32GB"
memory = "32768MiB"
count = 4
"#;

/// Set where tests are to run on the machine's own cards: `EGPU_TEST_REAL_CARDS=1`. One at a time,
/// then: each has a ledger of its own.
const REAL_CARDS: &str = "EGPU_TEST_REAL_CARDS";

/// Returns whether tests run on the machine's own cards.
pub fn on_real_cards() -> bool {
    std::env::var_os(REAL_CARDS).is_some_and(|value| !value.is_empty() && value != "0")
}

impl Default for EgpuConfig {
    fn default() -> Self {
        Self { driver: FOUR_V100.to_owned(), keys: String::new() }
    }
}

impl EgpuConfig {
    /// The default cards with other keys.
    #[must_use]
    pub fn with_keys(keys: &str) -> Self {
        Self { keys: keys.to_owned(), ..Self::default() }
    }

    /// Other cards.
    #[must_use]
    pub fn with_cards(driver: &str) -> Self {
        Self { driver: driver.to_owned(), ..Self::default() }
    }

    /// Returns whether its cards are those of a test that wants none in particular.
    pub fn has_any_cards(&self) -> bool {
        self.driver == FOUR_V100
    }

    /// The file, its state and log below `directory`.
    pub fn text(&self, directory: &Path) -> String {
        let directory = directory.display();
        let Self { driver, keys } = self;
        let real = on_real_cards() && self.has_any_cards();
        // What brings a policy to a V100 is little of a larger card.
        let driver = if real { "requested_policy_share = 0\n[driver]\nkind = \"nvidia\"\n" } else { driver.as_str() };
        format!("state_dir = \"{directory}/egpu\"\nlog_file = \"{directory}/egpu.log\"\n{keys}\n{driver}")
    }
}

impl Node {
    /// Runs `egpu` with the node's configuration.
    pub fn egpu(&self, arguments: &[&str]) -> Output {
        self.egpu_command(arguments).output().expect("run egpu")
    }

    /// The same, to be run by the test itself.
    pub fn egpu_command(&self, arguments: &[&str]) -> Command {
        self.egpu_command_of(self.programs(), arguments)
    }

    /// The `egpu` of another build, on this node.
    pub fn egpu_command_of(&self, programs: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(programs.join("egpu"));
        command.args(arguments).env("EGPU_CONFIG", self.directory().join("egpu.toml"));
        command
    }

    /// `egpu ... --output json`, which must succeed.
    #[track_caller]
    pub fn egpu_json(&self, arguments: &[&str]) -> Value {
        self.egpu_json_of(self.programs(), arguments)
    }

    /// The same with the `egpu` of another build.
    #[track_caller]
    pub fn egpu_json_of(&self, programs: &Path, arguments: &[&str]) -> Value {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--output", "json"]);
        let output = self.egpu_command_of(programs, &arguments).output().expect("run egpu");
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "egpu {arguments:?}: {}\n{stdout}{stderr}", output.status);
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("egpu {arguments:?}: {error}\n{stdout}"))
    }

    /// A simulated card reports an error (an Xid, and what the driver says of it), and behaves as
    /// one that has it.
    #[track_caller]
    pub fn card_error(&self, card: u32, error: &str) {
        let path = self.directory().join("egpu/simulated/kmsg");
        let mut log = OpenOptions::new().append(true).create(true).open(&path).expect("open the simulated kernel log");
        let number = fs::read_to_string(&path).expect("read the simulated kernel log").lines().count();
        // In one piece: others read it meanwhile.
        let line = format!("3,{number},0,-;NVRM: Xid (PCI:0000:{:02x}:00): {error}\n", card + 1);
        log.write_all(line.as_bytes()).expect("write the simulated kernel log");
    }

    /// Lines of the decision log about one container, in order, without their times.
    pub fn decisions(&self, id: &str) -> Vec<Decision> {
        let needle = format!(" container={}/{id} ", self.namespace());
        let log = self.decision_log();
        let lines = log.lines().map(|line| format!("{line} ")).filter(|line| line.contains(&needle));
        lines
            .map(|line| Decision {
                event: field(&line, "event").unwrap_or_default(),
                card: field(&line, "card").and_then(|card| card.parse().ok()),
                line: line.trim_end().to_owned(),
            })
            .collect()
    }

    /// One container's entry in `egpu ps`.
    #[track_caller]
    pub fn grant(&self, id: &str) -> Option<Grant> {
        let listing = self.egpu_json(&["ps"]);
        let entries = listing.as_array().expect("egpu ps prints an array");
        entries.iter().find(|entry| entry["id"] == id).cloned().map(Grant)
    }

    /// Ids of those in `egpu ps` that hold something, sorted.
    #[track_caller]
    pub fn granted(&self) -> Vec<String> {
        let mut ids = self.listed(false);
        ids.sort();
        ids
    }

    /// Ids of those in `egpu ps` that wait for room, in its order.
    #[track_caller]
    pub fn waiting(&self) -> Vec<String> {
        self.listed(true)
    }

    #[track_caller]
    fn listed(&self, waits: bool) -> Vec<String> {
        let listing = self.egpu_json(&["ps"]);
        let entries = listing.as_array().expect("egpu ps prints an array");
        let listed = entries.iter().filter(|entry| entry.get("waiting").is_some() == waits);
        listed.map(|entry| entry["id"].as_str().expect("an id").to_owned()).collect()
    }
}

/// One container's entry in `egpu ps --output json`.
#[derive(Debug, Clone)]
pub struct Grant(pub Value);

impl Grant {
    /// Indices of its cards, in its own order.
    pub fn cards(&self) -> Vec<u64> {
        self.each("index")
    }

    /// Memory limits of its cards, in MiB.
    pub fn memory_mib(&self) -> Vec<u64> {
        self.each("memory_limit_bytes").into_iter().map(|bytes| bytes >> 20).collect()
    }

    /// Compute percent of its cards; `None` where there is no cap.
    pub fn compute(&self) -> Vec<Option<u64>> {
        self.list().iter().map(|card| card["compute_percent"].as_u64()).collect()
    }

    /// Weights of its cards; `None` where there is none.
    pub fn weight(&self) -> Vec<Option<u64>> {
        self.list().iter().map(|card| card["weight"].as_u64()).collect()
    }

    /// Policies of its cards.
    pub fn policies(&self) -> Vec<String> {
        self.list().iter().map(|card| card["policy"].as_str().expect("a policy").to_owned()).collect()
    }

    /// Whole cards, no quota.
    pub fn exclusive(&self) -> bool {
        self.0["exclusive"].as_bool().expect("exclusive")
    }

    fn list(&self) -> &[Value] {
        self.0["cards"].as_array().expect("cards")
    }

    fn each(&self, key: &str) -> Vec<u64> {
        self.list().iter().map(|card| card[key].as_u64().unwrap_or_else(|| panic!("{key} in {card}"))).collect()
    }
}

/// One line of the decision log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// `ask`, `reserve`, `refuse`, `rollback`, `grant`, `destroy`, ...
    pub event: String,
    /// Index of the card that it is about.
    pub card: Option<u32>,
    /// All of it.
    pub line: String,
}

/// Value of `key=value` in a line of the decision log, where it is bare.
fn field(line: &str, key: &str) -> Option<String> {
    let start = line.find(&format!(" {key}="))? + key.len() + 2;
    line.get(start..)?.split(' ').next().map(str::to_owned)
}
