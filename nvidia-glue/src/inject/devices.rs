//! Device nodes that a container gets.

use std::path::PathBuf;

use runtime_config::request::{DriverCapabilities, GpuRequest};

use super::{
    FileKind, FileMount, InjectError, Injection,
    host::{DeviceNode, Host},
    plan::Granted,
};

/// Names of one driver in `/proc/devices`: since 550.40, and before.
const CARDS: &[&str] = &["nvidia", "nvidia-frontend"];
const UVM: &[&str] = &["nvidia-uvm"];
const CAPS: &[&str] = &["nvidia-caps"];
const IMEX: &[&str] = &["nvidia-caps-imex-channels"];

/// Minors of the first (kernel-open/common/inc/nv.h, kernel-open/nvidia-modeset).
const CONTROL_MINOR: u64 = 255;
const MODESET_MINOR: u64 = 254;

/// IMEX channel numbers end here (NCT, and the kernel's minor numbers).
const MOST_IMEX_CHANNELS: u32 = 1 << 20;

/// Nodes being collected.
#[derive(Debug)]
pub(super) struct Nodes<'a> {
    host: &'a Host<'a>,
    request: &'a GpuRequest,
    /// The container has a share, not a whole card.
    shared: bool,
    pub(super) devices: Vec<DeviceNode>,
    /// Files that come along with some of them.
    pub(super) files: Vec<FileMount>,
    pub(super) warnings: Vec<String>,
}

impl<'a> Nodes<'a> {
    pub(super) fn new(host: &'a Host<'a>, request: &'a GpuRequest, shared: bool) -> Self {
        Self { host, request, shared, devices: Vec::new(), files: Vec::new(), warnings: Vec::new() }
    }

    fn push(&mut self, node: DeviceNode) {
        if !self.devices.iter().any(|present| present.path == node.path) {
            self.devices.push(node);
        }
    }

    fn wants(&self, any_of: DriverCapabilities) -> bool {
        self.request.driver_capabilities.intersects(any_of)
    }

    /// Warns that nodes are withheld: with a share, memory behind them would be out of sight.
    fn withhold(&mut self, what: &str) {
        self.warnings.push(format!("{what} is withheld: the card is shared, and what it gives cannot be accounted"));
    }
}

/// Adds all nodes of a grant.
pub(super) fn add(nodes: &mut Nodes<'_>, cards: &[Granted<'_>]) -> Result<(), InjectError> {
    let major = nodes.host.major(CARDS).ok_or(InjectError::ModuleNotLoaded {
        module: "nvidia",
        needed_for: "every container with a GPU",
        remedy: "modprobe nvidia",
    })?;
    nodes.push(nodes.host.node("/dev/nvidiactl", major, CONTROL_MINOR));
    add_uvm(nodes)?;
    if nodes.wants(DriverCapabilities::DISPLAY) {
        if nodes.shared {
            nodes.withhold("/dev/nvidia-modeset");
        } else {
            nodes.push(nodes.host.node("/dev/nvidia-modeset", major, MODESET_MINOR));
        }
    }
    for granted in cards {
        let minor = granted.card.minor;
        nodes.push(nodes.host.node(&format!("/dev/nvidia{minor}"), major, u64::from(minor)));
        if let Some((gpu_instance, compute_instance)) = granted.mig {
            add_mig_capability(nodes, &format!("gpu{minor}/gi{gpu_instance}/access"))?;
            add_mig_capability(nodes, &format!("gpu{minor}/gi{gpu_instance}/ci{compute_instance}/access"))?;
        }
    }
    add_dri(nodes, cards);
    add_extras(nodes)
}

fn add_uvm(nodes: &mut Nodes<'_>) -> Result<(), InjectError> {
    if !nodes.wants(Injection::COMPUTES) {
        return Ok(());
    }
    // The number is given out when the module is loaded: after boot, often by the first CUDA
    // program.
    let major = nodes.host.major(UVM).ok_or(InjectError::ModuleNotLoaded {
        module: "nvidia-uvm",
        needed_for: "the driver capability compute",
        remedy: "nvidia-modprobe -u -c 0",
    })?;
    nodes.push(nodes.host.node("/dev/nvidia-uvm", major, 0));
    if nodes.shared {
        // Every CUDA container has it otherwise: not worth a line in the log each time.
        return Ok(());
    }
    nodes.push(nodes.host.node("/dev/nvidia-uvm-tools", major, 1));
    Ok(())
}

fn add_mig_capability(nodes: &mut Nodes<'_>, name: &str) -> Result<(), InjectError> {
    let missing = |remedy| InjectError::Missing { what: format!("the MIG capability {name}"), remedy };
    let major = nodes.host.major(CAPS).ok_or_else(|| missing("the kernel has no `nvidia-caps` in /proc/devices"))?;
    let minor = nodes.host.mig_capability(name).ok_or_else(|| {
        missing("look at /proc/driver/nvidia-caps/mig-minors; the MIG device may have been destroyed")
    })?;
    nodes.push(nodes.host.node(&format!("/dev/nvidia-caps/nvidia-cap{minor}"), major, minor));
    Ok(())
}

/// Nodes of the display side. A MIG device has none.
fn add_dri(nodes: &mut Nodes<'_>, cards: &[Granted<'_>]) {
    if !nodes.wants(Injection::DRAWS) {
        return;
    }
    if nodes.shared {
        nodes.withhold("/dev/dri");
        return;
    }
    for granted in cards.iter().filter(|granted| granted.mig.is_none()) {
        for node in nodes.host.dri_nodes(&granted.card.pci.to_string()) {
            nodes.push(node);
        }
    }
}

/// Adds the nodes that `NVIDIA_IMEX_CHANNELS`, `NVIDIA_GDS` and so on ask for.
fn add_extras(nodes: &mut Nodes<'_>) -> Result<(), InjectError> {
    let extras = &nodes.request.extras;
    for (wanted, name) in [(extras.mig_config, "config"), (extras.mig_monitor, "monitor")] {
        if wanted {
            add_mig_capability(nodes, name)?;
        }
    }
    if !extras.imex_channels.is_empty() {
        let major = nodes.host.major(IMEX).ok_or(InjectError::ModuleNotLoaded {
            module: "nvidia-caps-imex-channels",
            needed_for: "NVIDIA_IMEX_CHANNELS",
            remedy: "modprobe nvidia NVreg_ImexChannelCount=2048",
        })?;
        for channel in &extras.imex_channels {
            if *channel >= MOST_IMEX_CHANNELS {
                let what = format!("IMEX channel {channel}");
                return Err(InjectError::Missing { what, remedy: "channel numbers are 0 to 1048575" });
            }
            let path = format!("/dev/nvidia-caps-imex-channels/channel{channel}");
            nodes.push(nodes.host.node(&path, major, u64::from(*channel)));
        }
    }
    if extras.mofed {
        add_present(nodes, "NVIDIA_MOFED", &[("infiniband", "uverbs"), ("infiniband", "rdma_cm")]);
    }
    // The memory that these pin, and the switches that all cards share, are not one container's to
    // hold.
    for (wanted, variable, names) in [
        (extras.gds, "NVIDIA_GDS", &[("", "nvidia-fs")][..]),
        (extras.gdrcopy, "NVIDIA_GDRCOPY", &[("", "gdrdrv")][..]),
        (extras.nvswitch, "NVIDIA_NVSWITCH", &[("", "nvidia-nvswitch")][..]),
    ] {
        if wanted && nodes.shared {
            nodes.withhold(variable);
        } else if wanted {
            add_present(nodes, variable, names);
        }
    }
    if extras.gds && !nodes.shared {
        for path in ["/run/udev", "/etc/cufile.json"] {
            let path = PathBuf::from(path);
            if path.exists() {
                nodes.files.push(FileMount { host: path.clone(), container: path, kind: FileKind::ReadOnly });
            }
        }
    }
    Ok(())
}

/// Adds the host's nodes of these names. Their drivers are not NVIDIA's own; nodes that are not
/// there are not made.
fn add_present(nodes: &mut Nodes<'_>, variable: &str, names: &[(&str, &str)]) {
    let found: Vec<DeviceNode> =
        names.iter().flat_map(|(dir, prefix)| nodes.host.existing_with_prefix(dir, prefix)).collect();
    if found.is_empty() {
        nodes.warnings.push(format!("{variable}=enabled, but the host has no such device nodes"));
    }
    for node in found {
        nodes.push(node);
    }
}
