//! The cards one by one, and what the driver does for them.

use std::{error::Error, fs};

use base::Roots;
pub(super) use cards::{Card, DiscoverError, Health, Inventory, Source, kernel_module};
use runtime_config::config::{Config, HardCapsUnavailable};

use super::{Check, Findings};

const CARDS: &str = "cards";
const PERSISTENCE: &str = "persistence mode";
const FIRMWARE: &str = "GSP firmware";

pub(super) fn checks(roots: &Roots, config: &Config, findings: &Findings) -> Vec<Check> {
    let inventory = match &findings.inventory {
        Ok(inventory) => inventory,
        Err(error) => return vec![Check::failure(CARDS, chain(error), "see the driver's checks")],
    };
    let mut checks = vec![overview(inventory)];
    checks.extend(inventory.cards.iter().flat_map(|one| [card(one), shares(one, config.hard_caps_unavailable)]));
    if inventory.source == Source::Nvidia && !inventory.cards.is_empty() {
        checks.extend(persistence(roots, &findings.persistence));
        checks.extend(firmware(roots));
    }
    checks
}

fn overview(inventory: &Inventory) -> Check {
    let count = inventory.cards.len();
    match inventory.source {
        Source::Simulated => Check::warning(
            CARDS,
            format!("{count} simulated: containers see cards, nothing computes on them"),
            "on a node with NVIDIA cards, set `[driver] kind = \"auto\"` or \"nvidia\"",
        ),
        Source::Nvidia if count == 0 => {
            let remedy =
                "check with `lspci` that the machine has NVIDIA cards and with `dmesg` that the driver took them";
            Check::failure(CARDS, "none", remedy)
        }
        Source::Nvidia => {
            let cuda = match inventory.cuda_version.as_str() {
                "" => String::new(),
                version => format!(", CUDA {version}"),
            };
            Check::ok(CARDS, format!("{count}, driver {}{cuda}", inventory.driver_version))
        }
    }
}

fn card(card: &Card) -> Check {
    let what = format!("card {}", card.index);
    let name = format!("{}, {}, {}", card.model, card.uuid, card.pci);
    match &card.health {
        Health::Unusable { reason } => Check::failure(
            &what,
            format!("{name}: {reason}"),
            format!(
                "it is not offered. End its programs and `nvidia-smi --gpu-reset -i {}`, or restart the machine",
                card.pci
            ),
        ),
        Health::Ok if card.mig_enabled && card.mig_devices.is_empty() => Check::warning(
            &what,
            format!("{name}: MIG is on, but there are no MIG devices"),
            "make some (`nvidia-smi mig -cgi ... -C`), or switch MIG off (`nvidia-smi -mig 0`)",
        ),
        Health::Ok if card.mig_enabled => {
            Check::ok(&what, format!("{name}, MIG with {} devices", card.mig_devices.len()))
        }
        Health::Ok => Check::ok(&what, format!("{name}, {}", card.memory)),
    }
}

/// Returns whether containers of the card can be held to a part of its time.
fn shares(card: &Card, unavailable: HardCapsUnavailable) -> Check {
    let what = format!("card {} shares", card.index);
    if card.mig_enabled {
        return Check::ok(&what, "its MIG devices have theirs from the hardware");
    }
    if card.hard_caps {
        return Check::ok(&what, "hard caps and weights: it can take containers off");
    }
    let then = match unavailable {
        HardCapsUnavailable::Refuse => "who asks for a percentage is refused",
        HardCapsUnavailable::Degrade => "a percentage counts as a weight",
    };
    Check::warning(
        &what,
        format!("weights only: without GSP firmware it cannot take containers off; {then}"),
        "cards older than Turing have no such firmware; on others set the module's parameter NVreg_EnableGpuFirmware=1. What \
         becomes of hard caps meanwhile, hard_caps_unavailable says",
    )
}

/// Checks persistence: without it the first program on an idle card waits a second or more for the
/// card's initialisation.
pub(super) fn persistence(roots: &Roots, modes: &[(String, bool)]) -> Option<Check> {
    if roots.run.join("nvidia-persistenced/socket").exists() {
        return Some(Check::ok(PERSISTENCE, "nvidia-persistenced keeps the cards initialised"));
    }
    if modes.is_empty() {
        return None;
    }
    let off = modes.iter().filter(|(_, on)| !on).count();
    if off == 0 {
        return Some(Check::ok(PERSISTENCE, "on"));
    }
    Some(Check::warning(
        PERSISTENCE,
        format!("off on {off} of {} cards: a container on an idle card waits for its initialisation", modes.len()),
        "start nvidia-persistenced at boot",
    ))
}

/// Returns whether the cards' own processors run the driver's firmware.
fn firmware(roots: &Roots) -> Option<Check> {
    let gpus: Vec<_> =
        kernel_module::gpus(roots).into_iter().filter(|gpu| !gpu.excluded && gpu.minor.is_some()).collect();
    let without: Vec<String> =
        gpus.iter().filter(|gpu| gpu.firmware.is_none()).map(|gpu| gpu.pci.to_string()).collect();
    let version = gpus.iter().find_map(|gpu| gpu.firmware.as_deref())?;
    if without.is_empty() {
        return Some(Check::ok(FIRMWARE, version.to_owned()));
    }
    Some(Check::warning(
        FIRMWARE,
        format!("{version}, but none on {}", without.join(", ")),
        "cards older than Turing have none; on others set the module's parameter NVreg_EnableGpuFirmware=1",
    ))
}

/// The kernel's log, in which errors of cards are looked for.
pub(super) fn kernel_log(roots: &Roots) -> Check {
    const LOG: &str = "kernel log";
    match fs::File::open(&roots.kernel_log) {
        Ok(_) => Check::ok(LOG, "readable: cards with fatal errors are seen"),
        Err(error) => Check::warning(
            LOG,
            format!("{} cannot be read: {error}", roots.kernel_log.display()),
            "run as root with CAP_SYSLOG; until then a card with a fatal error since boot may be offered",
        ),
    }
}

fn chain(error: &DiscoverError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
