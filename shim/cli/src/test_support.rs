//! Test node: three simulated cards, a container with a share, one with a whole card.

use std::collections::HashMap;

use base::usage::MediatorCost;
use cards::Inventory;
use ledger::{
    CardGrant, CardSetting, CardState, ComputeEnforcement, ContainerKey, Enforcement, GrantState, ProcessId, Record,
    Waiter,
};
use runtime_config::{
    Bytes, Config, Percent,
    config::Period,
    request::{CardPolicy, ComputeShare, ContainerRequest, GpuRequest, PodContainer, Priority, Source, parse},
};
use schedule::{CardStatus, CardTurn, Epoch, Pass, Running, Status, Timetable, Turn, Window};

use super::{
    listing::{Listing, ListingOptions},
    node::Node,
    schedules::Schedules,
    screen::Screen,
};

/// Instant of the snapshot.
pub(super) const NOW_US: u64 = 3_600_000_000;

const CONFIG: &str = "[driver]\nkind = 'simulated'\n[[driver.simulated]]\nmodel = 'Tesla V100-PCIE-32GB'\nmemory = '32768MiB'\ncount = 3\n";

/// A listing as it is shown with these options.
pub(super) fn shown<T: serde::Serialize>(listing: Listing<T>, options: &[&str]) -> String {
    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: ListingOptions,
    }
    let line: Line = clap::Parser::try_parse_from(std::iter::once(&"egpu").chain(options)).unwrap();
    listing.text(&line.options, Screen::default()).unwrap()
}

pub(super) fn node() -> Node {
    let (config, inventory) = config_and_inventory();
    let uuid = |index: usize| inventory.cards[index].uuid.clone();
    let share = CardGrant {
        index: 0,
        uuid: uuid(0),
        mig_uuid: None,
        memory: Bytes(3276 * Bytes::MIB),
        compute: ComputeShare::Cap { percent: Percent::new(10).unwrap(), lifted_when_alone: false },
        policy: CardPolicy::Fixed,
        exclusive: false,
        enforcement: Enforcement::Mediated,
        compute_by: ComputeEnforcement::Windows,
        window_loss_us: 0,
        channels: None,
        pinned_memory: None,
    };
    let whole = CardGrant {
        index: 1,
        uuid: uuid(1),
        memory: Bytes(32768 * Bytes::MIB),
        compute: ComputeShare::Unlimited,
        exclusive: true,
        enforcement: Enforcement::WholeCard,
        compute_by: ComputeEnforcement::None,
        window_loss_us: 0,
        ..share.clone()
    };
    let records = vec![
        record("training", "EGPU=POLICY=0:PGPU=0,MEM=3276,WEIGHT=10", Some(4711), share),
        record("whole", "NVIDIA_VISIBLE_DEVICES=1", None, whole),
    ];
    let schedules = schedules(&records[0]);
    let states = [
        CardState {
            memory_granted: Bytes(3276 * Bytes::MIB),
            compute_granted_percent: 10,
            free_weight: 14,
            policy: Some(CardPolicy::Fixed),
            containers: vec![records[0].container.clone()],
            ..state(&inventory, 0)
        },
        CardState {
            memory_granted: Bytes(32768 * Bytes::MIB),
            compute_granted_percent: 100,
            free_weight: 0,
            exclusive: true,
            containers: vec![records[1].container.clone()],
            ..state(&inventory, 1)
        },
        state(&inventory, 2),
    ];
    Node { config, inventory, records, waiters: Vec::new(), cards: states.into(), schedules }
}

/// Schedules in which the container with the share has it beside another one, and used a bit less
/// in the last second.
fn schedules(record: &Record) -> Schedules {
    let uuid = record.cards[0].uuid.clone();
    let status = CardStatus {
        uuid: uuid.clone(),
        running: Running::Closed,
        channels: 8,
        groups: 1,
        busy: Some(true),
        open_us: 1_000_000,
        throttled_us: 9_000_000,
        used_us: Some(1_000_000),
        utilization_ppm: Some(987_000),
        achieved_1s_ppm: Some(98_700),
        achieved_60s_ppm: Some(100_100),
        edges: 200,
        late_edges: 1,
        latest_edge_us: 1_200,
        lost_us: 30_000,
        lost_1s_us: 3_000,
        edge_wait_us: 45_000,
        longest_edge_us: 41_000,
        slow_edges: 2,
        waited_us: Some(1_234_000),
        waited_1s_us: Some(35_000),
        switching_us: Some(70_000),
        switching_1s_us: Some(2_400),
        waits: vec![4, 3, 2, 1, 0, 0, 5, 12, 1, 0],
        ..CardStatus::default()
    };
    let status = Status {
        written_us: NOW_US - 50_000,
        next_by_us: Some(NOW_US + 50_000),
        process: 4001,
        has_processes: true,
        priority: None,
        cards: vec![status],
    };
    let turn = |windows| Turn {
        grant_id: record.grant_id.clone(),
        period_us: 100_000,
        priority: Priority::High,
        cards: vec![CardTurn {
            uuid: uuid.clone(),
            memory: record.cards[0].memory,
            pass: Pass::Windows(windows),
            share_ppm: 100_000,
        }],
    };
    let epoch =
        |from_us, start_us| Epoch { from_us, turns: vec![turn(vec![Window { start_us, end_us: start_us + 10_000 }])] };
    let table = Timetable {
        version: 1,
        format: 1,
        boot_id: "boot".to_owned(),
        revision: 7,
        epochs: vec![epoch(NOW_US - 1_000_000, 0), epoch(NOW_US + 150_000, 20_000)],
    };
    Schedules { now_us: NOW_US, table: Some(table), status: HashMap::from([(record.grant_id.clone(), status)]) }
}

pub(super) fn empty_node() -> Node {
    let (config, inventory) = config_and_inventory();
    let cards = (0..3).map(|index| state(&inventory, index)).collect();
    Node { config, inventory, records: Vec::new(), waiters: Vec::new(), cards, schedules: Schedules::default() }
}

/// A container's names in Kubernetes.
pub(super) fn pod() -> PodContainer {
    PodContainer { namespace: "team".to_owned(), pod: "train-0".to_owned(), container: "main".to_owned() }
}

fn config_and_inventory() -> (Config, Inventory) {
    let config = Config::from_toml(CONFIG, "test").unwrap();
    let inventory = cards::discover(&config).unwrap();
    (config, inventory)
}

fn state(inventory: &Inventory, index: usize) -> CardState {
    let card = &inventory.cards[index];
    CardState {
        index: card.index,
        uuid: card.uuid.clone(),
        memory_total: card.memory,
        memory_grantable: card.memory,
        memory_granted: Bytes(0),
        compute_granted_percent: 0,
        weights: 0,
        free_weight: 16,
        max_inst: 16,
        policy: None,
        setting: CardSetting::default(),
        period: Period::Us(100_000),
        exclusive: false,
        containers: Vec::new(),
        monitors: Vec::new(),
        mig_held: Vec::new(),
    }
}

fn record(id: &str, asked: &str, pid: Option<i32>, grant: CardGrant) -> Record {
    Record {
        version: 1,
        format: 1,
        egpu_version: Some("0.1.0".to_owned()),
        boot_id: "boot".to_owned(),
        grant_id: format!("grant-{id}"),
        container: ContainerKey {
            containerd: "/run/a.sock".to_owned(),
            namespace: "default".to_owned(),
            id: id.to_owned(),
        },
        state: if pid.is_some() { GrantState::Bound } else { GrantState::Pending },
        pid_namespace: 4_026_531_836,
        shim: ProcessId { pid: 4000, start_time: 1 },
        creators: Vec::new(),
        init: pid.map(|pid| ProcessId { pid, start_time: 2 }),
        mediator: None,
        cgroups: vec![format!("/sys/fs/cgroup/{id}")],
        order: 1,
        priority: None,
        present: false,
        leaving: false,
        leaving_since_us: None,
        claim: None,
        request: request(asked),
        exclusive: grant.exclusive,
        cards: vec![grant],
        admitted_at: "2026-01-01T00:00:00Z".to_owned(),
    }
}

fn request(asked: &str) -> GpuRequest {
    let source = Source { env: vec![asked.to_owned()], ..Source::default() };
    match parse(&source, &Config::default()) {
        Ok(ContainerRequest::Gpu(request)) => *request,
        other => panic!("{other:?}"),
    }
}

/// A container that waits for room.
pub(super) fn waiter(id: &str) -> Waiter {
    let record = record(id, "EGPU_MEMORY=1GiB", None, node().records[0].cards[0].clone());
    serde_json::from_value(serde_json::json!({
        "version": 1,
        "container": record.container,
        "pid_namespace": record.pid_namespace,
        "shim": record.shim,
        "order": 0,
        "request": record.request,
        "since": "2026-01-02T03:04:05Z",
        "until_us": 0,
    }))
    .unwrap()
}

/// Cost of a mediator that has held calls back.
pub(super) fn mediator_cost() -> MediatorCost {
    MediatorCost {
        processor_us: 12_500_000,
        processor_limit_millis: 500,
        held_back_us: 1_250_000,
        memory_used_bytes: Bytes(3 << 20),
        memory_limit_bytes: Bytes(322 << 20),
        listeners: 2,
        listeners_limit: 256,
        oom_score_adj: -998,
    }
}
