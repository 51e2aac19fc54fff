//! Setup of a mediator, which it gets when it begins.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use abi::DriverRelease;
use cards::{Inventory, Roots};
use driver::Driver;
use ledger::timetable_dir;
use mediator::{GrantedCard, Observer, Processes, SessionSetup};
use nvidia_glue::inject;
use runtime_config::{
    Bytes,
    config::{PriorityMode, Throttle},
    request::OverMemory,
};
use serde::{Deserialize, Serialize};

use super::mount_namespace::VisiblePath;

/// Setup of one container's mediator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    /// The driver that executes the calls.
    pub driver: MediatedDriver,
    /// The driver's version, `580.159.04`.
    pub release: String,
    /// True: a driver outside the known range is treated like the nearest known one.
    pub pass_unknown_driver: bool,
    /// The granted cards, in the container's order.
    pub cards: Vec<GrantedCard>,
    /// Host memory that the driver may pin for the container.
    pub pinned_memory: Bytes,
    /// Action when a process asks for more memory than the container may have.
    pub over_memory: OverMemory,
    /// Interval at which accounts are compared with the driver's, in milliseconds; at least 1.
    pub reconcile_period_ms: u64,
    /// The file to which usage is written.
    pub usage_file: PathBuf,
    /// The grant whose turns in the timetable are this container's.
    pub grant_id: String,
    /// egpu's state directory: it has the timetable, and the status files of neighbours.
    pub state_dir: PathBuf,
    /// The file to which the state of the schedule is written.
    pub status_file: PathBuf,
    /// Way in which it leaves its cards to others, if its priority is low.
    #[serde(default)]
    pub priority: PriorityMode,
    /// The engines that are scheduled.
    pub throttle: Throttle,
    /// True if the container has the driver capability `graphics` or `display`.
    pub may_draw: bool,
    /// The container's cgroup directories; they need not exist yet.
    pub cgroups: Vec<PathBuf>,
    /// Processors that the mediator may use for each card.
    pub processors_per_card: f64,
}

/// The driver that executes the calls.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MediatedDriver {
    /// NVIDIA's kernel modules.
    Nvidia {
        /// The directory that has `dev` with their nodes.
        device_root: PathBuf,
    },
    /// The simulated driver.
    Simulated {
        /// egpu's state directory, which has the simulated nodes.
        state_dir: PathBuf,
        /// The simulated cards: all of the node's.
        inventory: Box<Inventory>,
    },
}

impl Setup {
    pub(super) fn reconcile_period(&self) -> Duration {
        Duration::from_millis(self.reconcile_period_ms.max(1))
    }

    /// Returns the processors that the mediator may use. One that only looks at cards looks at all
    /// of them, and has as much as for one.
    pub(super) fn mediator_processors(&self) -> f64 {
        let cards = self.cards.iter().filter(|card| !card.monitored).count().max(1);
        self.processors_per_card * f64::from(u32::try_from(cards).unwrap_or(u32::MAX))
    }

    /// Lists the files that the mediator opens after it has dropped its privileges.
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
        visible.push(VisiblePath::fdinfo());
        visible
    }

    pub(super) fn into_session(
        self,
        release: DriverRelease,
        driver: Arc<dyn Driver>,
        processes: Arc<dyn Processes>,
        observer: Arc<dyn Observer>,
    ) -> SessionSetup {
        SessionSetup {
            cards: self.cards,
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

/// Returns the host's roots, with the device nodes of a driver that may be installed elsewhere.
pub(super) fn roots(device_root: &Path) -> Roots {
    Roots { dev: device_root.join("dev"), ..Roots::host() }
}
