//! What a mediator is told when it begins.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nvidia_glue::{
    cards::{Inventory, Roots},
    driver::Driver,
    inject,
    ledger::timetable_dir,
    mediate::{GrantedCard, Observer, Processes, SessionSetup},
    rm::DriverRelease,
};
use runtime_config::{
    Bytes,
    config::Throttle,
    request::{OverMemory, PciBusId},
};
use serde::{Deserialize, Serialize};

use super::mount_namespace::VisiblePath;

/// One container's mediation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    /// Who executes the calls.
    pub driver: MediatedDriver,
    /// The driver's version, `580.159.04`.
    pub release: String,
    /// Treat a driver outside the known range like the nearest known one.
    pub pass_unknown_driver: bool,
    /// What was granted, in the container's order.
    pub cards: Vec<MediatedCard>,
    /// Host memory that the driver may pin for it.
    pub pinned_memory: Bytes,
    /// What happens to a process that asks for more.
    pub over_memory: OverMemory,
    /// How often accounts are compared with the driver's, milliseconds; at least 1.
    pub reconcile_period_ms: u64,
    /// Where usage is told.
    pub usage_file: PathBuf,
    /// Whose turns of the timetable are this container's.
    pub grant_id: String,
    /// egpu's state directory: the timetable and the neighbours' status files are in it.
    pub state_dir: PathBuf,
    /// Where the schedule's state is told.
    pub status_file: PathBuf,
    /// Which engines are scheduled.
    pub throttle: Throttle,
    /// Whether the container has the driver capability `graphics` or `display`.
    pub may_draw: bool,
    /// The container's cgroup directories; they need not exist yet.
    pub cgroups: Vec<PathBuf>,
}

/// Who executes the calls.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MediatedDriver {
    /// NVIDIA's kernel modules.
    Nvidia {
        /// Below this is `dev` with their nodes.
        device_root: PathBuf,
    },
    /// None: it is played.
    Simulated {
        /// egpu's state directory, in which the simulated nodes are.
        state_dir: PathBuf,
        /// The simulated cards: all of the node's.
        inventory: Box<Inventory>,
    },
}

/// One card of a grant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MediatedCard {
    /// `GPU-...`.
    pub uuid: String,
    /// Its index on the node.
    pub index: u32,
    /// Number of `/dev/nvidiaN`.
    pub minor: u32,
    /// PCI address.
    pub pci: PciBusId,
    /// Bytes that the container may have.
    pub limit: Bytes,
    /// Channels that it may have.
    pub channels: u32,
    /// It only looks at the card, and sees all of it.
    pub monitored: bool,
    /// It has the card without a quota, and sees all of it.
    pub whole: bool,
    /// `NVIDIA H200`.
    pub model: String,
    /// It runs in windows of the card's time: until it has a turn, not at all.
    pub is_capped: bool,
    /// Without windows it is not to run at all: a weight is not what was asked for, and the node's configuration wants hard caps.
    pub needs_windows: bool,
}

impl Setup {
    pub(super) fn reconcile_period(&self) -> Duration {
        Duration::from_millis(self.reconcile_period_ms.max(1))
    }

    /// Files that it opens once it has given up its rights.
    pub(super) fn visible_paths(&self) -> Vec<VisiblePath> {
        let mut visible = match &self.driver {
            MediatedDriver::Nvidia { device_root } => {
                let dev = device_root.join("dev");
                let cards = self.cards.iter().map(|card| format!("nvidia{}", card.minor));
                let names = cards.chain(["nvidiactl".to_owned(), "nvidia-uvm".to_owned()]);
                names.map(|name| VisiblePath::writable(dev.join(name))).collect()
            }
            MediatedDriver::Simulated { state_dir, .. } => vec![VisiblePath::writable(state_dir.join("simulated"))],
        };
        visible.push(VisiblePath::read_only(timetable_dir(&self.state_dir)));
        visible.push(VisiblePath::read_only(inject::directory(&self.state_dir)));
        visible.extend(VisiblePath::of_proc());
        visible
    }

    pub(super) fn into_session(
        self,
        release: DriverRelease,
        driver: Arc<dyn Driver>,
        processes: Arc<dyn Processes>,
        observer: Arc<dyn Observer>,
    ) -> SessionSetup {
        let cards = self.cards.into_iter().zip(0..).map(|(card, index)| GrantedCard {
            index,
            uuid: card.uuid,
            minor: card.minor,
            pci: card.pci,
            memory_limit: card.limit.floor_to_kib(),
            channels: card.channels,
            monitored: card.monitored,
            whole: card.whole,
            model: card.model,
        });
        SessionSetup {
            cards: cards.collect(),
            pinned_memory: self.pinned_memory,
            release,
            pass_unknown_driver: self.pass_unknown_driver,
            driver,
            throttle: self.throttle,
            may_draw: self.may_draw,
            over_memory: self.over_memory,
            processes,
            observer,
        }
    }
}

/// The host's procfs, with the device nodes of a driver that may be installed elsewhere.
pub(super) fn roots(device_root: &Path) -> Roots {
    Roots { dev: device_root.join("dev"), ..Roots::host() }
}
