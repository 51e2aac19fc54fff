//! The configuration file as it is written: plain types, every key optional, unknown ones refused.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    pub(super) state_dir: String,
    pub(super) state_group: String,
    pub(super) log_file: String,
    pub(super) accept_env: bool,
    pub(super) accept_nvidia_visible_devices_envvar_when_unprivileged: bool,
    pub(super) accept_nvidia_visible_devices_as_volume_mounts: bool,
    pub(super) accept_nvidia_visible_devices_of_images_in_pods: bool,
    pub(super) supported_driver_capabilities: String,
    pub(super) disable_require: bool,
    pub(super) legacy_images: bool,
    pub(super) share_by_default: bool,
    pub(super) hami_compat: bool,
    pub(super) allow_isolation_none: bool,
    pub(super) allow_privileged_quota: bool,
    pub(super) fence_other_containers: bool,
    pub(super) unknown_driver: String,
    pub(super) whole_cards: String,
    pub(super) reconcile_period: String,
    pub(super) oom_script_timeout: String,
    pub(super) mediator_processors: f64,
    pub(super) admission_wait: String,
    pub(super) default_policy: String,
    pub(super) requested_policies: String,
    pub(super) requested_policy_share: i64,
    pub(super) period: String,
    pub(super) priority: String,
    pub(super) throttle: String,
    pub(super) hard_caps_unavailable: String,
    pub(super) max_inst: i64,
    pub(super) device_split_count: i64,
    pub(super) owner_split_count: i64,
    pub(super) memory_scaling: f64,
    pub(super) pinned_memory: String,
    pub(super) default_share: DefaultShare,
    pub(super) hami: Hami,
    pub(super) kubernetes: Kubernetes,
    pub(super) driver: Driver,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DefaultShare {
    pub(super) memory: String,
    pub(super) compute: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Hami {
    pub(super) default_memory: String,
    pub(super) default_compute: i64,
    pub(super) default_cards: i64,
    pub(super) disable_compute_limit: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Kubernetes {
    pub(super) require_claim: bool,
    pub(super) placement: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Driver {
    pub(super) kind: String,
    pub(super) root: String,
    pub(super) simulated: Vec<Simulated>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Simulated {
    /// Left out: empty, which is refused with what is accepted.
    #[serde(default)]
    pub(super) model: String,
    /// Memory of each card; left out: empty, which is refused likewise.
    #[serde(default)]
    pub(super) memory: String,
    #[serde(default = "one")]
    pub(super) count: i64,
    pub(super) uuid: Option<String>,
    pub(super) numa_node: Option<i64>,
    #[serde(default = "system")]
    pub(super) links: String,
    #[serde(default = "yes")]
    pub(super) gsp: bool,
    #[serde(default = "yes")]
    pub(super) takes_off: bool,
    #[serde(default = "open_time")]
    pub(super) open_time: String,
    #[serde(default = "close_time")]
    pub(super) close_time: String,
    #[serde(default = "ramp_time")]
    pub(super) ramp_time: String,
}

/// [`SimulatedEdges::MEASURED`](super::SimulatedEdges::MEASURED).
fn open_time() -> String {
    "410us".to_owned()
}

fn close_time() -> String {
    "690us".to_owned()
}

fn ramp_time() -> String {
    "120us".to_owned()
}

fn one() -> i64 {
    1
}

fn yes() -> bool {
    true
}

fn system() -> String {
    "system".to_owned()
}

impl Default for File {
    fn default() -> Self {
        Self {
            state_dir: "/run/egpu".to_owned(),
            state_group: String::new(),
            log_file: "/var/log/egpu.log".to_owned(),
            accept_env: true,
            accept_nvidia_visible_devices_envvar_when_unprivileged: true,
            accept_nvidia_visible_devices_as_volume_mounts: false,
            accept_nvidia_visible_devices_of_images_in_pods: false,
            supported_driver_capabilities: "compat32,compute,display,graphics,ngx,utility,video".to_owned(),
            disable_require: false,
            legacy_images: false,
            share_by_default: false,
            hami_compat: true,
            allow_isolation_none: false,
            allow_privileged_quota: false,
            fence_other_containers: true,
            unknown_driver: "refuse".to_owned(),
            whole_cards: "direct".to_owned(),
            reconcile_period: "1s".to_owned(),
            oom_script_timeout: "10s".to_owned(),
            mediator_processors: 0.5,
            admission_wait: "leaving".to_owned(),
            default_policy: "fixed".to_owned(),
            requested_policies: "fair,preemptive,weighted,fixed,soft,native".to_owned(),
            requested_policy_share: 3,
            period: "100ms".to_owned(),
            priority: "harvest".to_owned(),
            throttle: "compute+copy".to_owned(),
            hard_caps_unavailable: "refuse".to_owned(),
            max_inst: 16,
            device_split_count: 10,
            owner_split_count: 1000,
            memory_scaling: 1.0,
            pinned_memory: "50%".to_owned(),
            default_share: DefaultShare::default(),
            hami: Hami::default(),
            kubernetes: Kubernetes::default(),
            driver: Driver::default(),
        }
    }
}

impl Default for DefaultShare {
    fn default() -> Self {
        Self { memory: "50%".to_owned(), compute: "50%".to_owned() }
    }
}

impl Default for Hami {
    fn default() -> Self {
        Self {
            default_memory: "5000MiB".to_owned(),
            default_compute: 0,
            default_cards: 1,
            disable_compute_limit: false,
        }
    }
}

impl Default for Kubernetes {
    fn default() -> Self {
        Self { require_claim: false, placement: "binpack".to_owned() }
    }
}

impl Default for Driver {
    fn default() -> Self {
        Self { kind: "auto".to_owned(), root: "/".to_owned(), simulated: Vec::new() }
    }
}

impl File {
    /// The defaults and one simulated table, every optional key given: what keys there are is read
    /// off this.
    pub(super) fn with_every_key() -> Self {
        let mut file = Self::default();
        file.driver.simulated.push(Simulated {
            model: String::new(),
            memory: String::new(),
            count: one(),
            uuid: Some(String::new()),
            numa_node: Some(0),
            links: system(),
            gsp: yes(),
            takes_off: yes(),
            open_time: open_time(),
            close_time: close_time(),
            ramp_time: ramp_time(),
        });
        file
    }
}
