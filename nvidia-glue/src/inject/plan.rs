//! Works out from a grant and the host what goes into the container.

use std::path::PathBuf;

use base::{Bytes, CardGrant, Roots};
use cards::{
    Card, Inventory, Source,
    driver_files::{DriverFiles, HostFile, Library},
    make_simulated_nodes,
};
use ledger::Record;
use runtime_config::{
    config::Config,
    request::{DriverCapabilities, Share},
};

use super::{
    FileKind, FileMount, InjectError, Injection, LibraryMount,
    devices::{self, Nodes},
    host::Host,
    proc_driver,
};

#[derive(Debug)]
pub struct PlanInput<'a> {
    /// The grant.
    pub record: &'a Record,
    /// The node's cards.
    pub inventory: &'a Inventory,
    /// The driver's user space; not used for simulated cards.
    pub driver_files: &'a DriverFiles,
    /// The node's settings.
    pub settings: &'a Settings,
}

/// Settings of injection in the node's configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Roots of the kernel's trees.
    pub roots: Roots,
    /// Directory of each container's files.
    pub state_dir: PathBuf,
    /// Limit of the host's memory for a container that shares a card and has none.
    pub host_memory_limit: Option<Bytes>,
    /// HAMi's own enforcement is taken out of the spec.
    pub hami_compat: bool,
}

impl From<&Config> for Settings {
    fn from(config: &Config) -> Self {
        Self {
            roots: Roots::host(),
            state_dir: config.state_dir.clone(),
            host_memory_limit: config.host_memory_limit,
            hami_compat: config.hami_compat,
        }
    }
}

/// One granted card or MIG device, as the inventory has it.
#[derive(Debug)]
pub(super) struct Granted<'a> {
    pub(super) card: &'a Card,
    /// GPU instance and compute instance.
    pub(super) mig: Option<(u32, u32)>,
}

pub(super) fn plan(input: &PlanInput<'_>) -> Result<Injection, InjectError> {
    let PlanInput { record, inventory, settings, .. } = input;
    let cards = record.cards.iter().map(|grant| granted(grant, inventory)).collect::<Result<Vec<_>, _>>()?;
    let shared = matches!(record.request.share, Share::Part { .. });
    let mut injection = Injection {
        host_dir: base::grant_files::path(&settings.state_dir, &record.grant_id)?,
        devices: Vec::new(),
        nvidia_majors: vec![crate::spec::NVIDIA_MAJOR],
        files: Vec::new(),
        libraries: Vec::new(),
        proc_driver: None,
        additional_gids: Vec::new(),
        env: Vec::new(),
        shared,
        host_memory_limit: settings.host_memory_limit.filter(|_| shared),
        drop_hami: settings.hami_compat,
        warnings: Vec::new(),
    };
    match inventory.source {
        Source::Simulated => simulated(input, &cards, &mut injection)?,
        Source::Nvidia => real(input, &cards, &mut injection)?,
    }
    Ok(injection)
}

/// Looks a granted card up by its UUID: indices change with the driver's view of the bus.
fn granted<'a>(grant: &CardGrant, inventory: &'a Inventory) -> Result<Granted<'a>, InjectError> {
    let unknown = |uuid: &str| InjectError::UnknownCard { uuid: uuid.to_owned() };
    let card = inventory.cards.iter().find(|card| card.uuid == grant.uuid).ok_or_else(|| unknown(&grant.uuid))?;
    let mig = match &grant.mig_uuid {
        None => None,
        Some(uuid) => {
            let device = card.mig_devices.iter().find(|device| device.uuid == *uuid).ok_or_else(|| unknown(uuid))?;
            Some((device.gpu_instance, device.compute_instance))
        }
    };
    Ok(Granted { card, mig })
}

/// Files that stand for nodes; there is no driver.
fn simulated(input: &PlanInput<'_>, cards: &[Granted<'_>], injection: &mut Injection) -> Result<(), InjectError> {
    let nodes =
        make_simulated_nodes(&input.settings.state_dir, input.inventory).map_err(InjectError::SimulatedNodes)?;
    let capabilities = input.record.request.driver_capabilities;
    let mut mount = |host: PathBuf, name: &str| {
        let container = PathBuf::from("/dev").join(name);
        injection.files.push(FileMount { host, container, kind: FileKind::SimulatedNode });
    };
    mount(nodes.control, "nvidiactl");
    if capabilities.intersects(Injection::COMPUTES) {
        mount(nodes.uvm, "nvidia-uvm");
    }
    for minor in cards.iter().map(|granted| granted.card.minor) {
        if let Some(host) = nodes.cards.get(&minor) {
            mount(host.clone(), &format!("nvidia{minor}"));
        }
    }
    injection.env.push(("NVIDIA_EGPU_SIMULATED".to_owned(), "1".to_owned()));
    Ok(())
}

fn real(input: &PlanInput<'_>, cards: &[Granted<'_>], injection: &mut Injection) -> Result<(), InjectError> {
    let request = &input.record.request;
    let host = Host::read(&input.settings.roots)?;
    let mut nodes = Nodes::new(&host, request, injection.shared);
    devices::add(&mut nodes, cards)?;
    let Nodes { devices, files, warnings, .. } = nodes;
    injection.additional_gids = devices.iter().filter(|node| node.needs_group()).map(|node| node.gid).collect();
    injection.additional_gids.sort_unstable();
    injection.additional_gids.dedup();
    injection.devices = devices;
    injection.nvidia_majors.extend(host.nvidia_majors());
    injection.nvidia_majors.sort_unstable();
    injection.nvidia_majors.dedup();
    injection.files = files;
    injection.warnings = warnings;
    injection.proc_driver = proc_driver::snapshot(&input.settings.roots, cards, &request.extras);
    add_files(input.driver_files, request.driver_capabilities, injection);
    Ok(())
}

/// The driver's user space, as far as the request's capabilities want it.
fn add_files(files: &DriverFiles, capabilities: DriverCapabilities, injection: &mut Injection) {
    let wanted = |of: DriverCapabilities| of.is_empty() || of.intersects(capabilities);
    let with_32_bit = capabilities.contains(DriverCapabilities::COMPAT32);
    for library in files.libraries.iter().filter(|library| wanted(library.capabilities)) {
        if library.abi != cards::driver_files::Abi::I386 || with_32_bit {
            injection.libraries.push(library_mount(library));
        }
    }
    let mut mount = |list: &[HostFile], kind: FileKind| {
        injection.files.extend(list.iter().filter(|file| wanted(file.capabilities)).map(|file| FileMount {
            host: file.host.clone(),
            container: file.container.clone(),
            kind,
        }));
    };
    mount(&files.binaries, FileKind::ReadOnly);
    mount(&files.firmware, FileKind::ReadOnly);
    mount(&files.configs, FileKind::ReadOnly);
    if injection.shared {
        // The daemons act for whoever asks, on all cards; nothing that computes needs them.
        injection.warnings.extend(
            files
                .sockets
                .iter()
                .map(|socket| format!("{} is withheld: the card is shared", socket.container.display())),
        );
    } else {
        mount(&files.sockets, FileKind::Socket);
    }
    injection.warnings.extend(files.warnings.iter().cloned());
}

/// A library with the links by which programs find it.
fn library_mount(library: &Library) -> LibraryMount {
    let file = library.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let stem = file.split_once(".so.").map_or(file, |(stem, _)| stem);
    let soname = library.soname.as_deref().unwrap_or(file);
    let mut links = Vec::new();
    let mut link = |name: &str, target: &str| {
        if name != target && !links.iter().any(|(present, _)| present == name) {
            links.push((name.to_owned(), target.to_owned()));
        }
    };
    link(soname, file);
    // Programs open these by names that are in no library's headers.
    match stem {
        "libcuda" | "libnvidia-opticalflow" => link(&format!("{stem}.so"), soname),
        "libGLX_nvidia" => link("libGLX_indirect.so.0", file),
        "libnvidia-vulkan-producer" | "libglxserver_nvidia" => link(&format!("{stem}.so"), file),
        _ => {}
    }
    if library.has_development_link {
        link(&format!("{stem}.so"), soname);
    }
    LibraryMount { host: library.host.clone(), path: library.path.clone(), abi: library.abi, links }
}
