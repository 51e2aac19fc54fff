//! Checks of this node's driver, cards and kernel, each with its remedy.
//!
//! [`examine`] looks at this machine; [`checks`] judges what was found and what stands in the trees
//! of [`Roots`], so that a made-up machine can be judged as well.

mod cards;
mod cdi;
mod driver;
mod kernel;
mod nodes;

use ::cards as node_cards;
use ::cards::{DiscoverError, Inventory, Source};
use base::Roots;
use runtime_config::config::{Config, DriverKind};
use serde::Serialize;

/// One line of the doctor's report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Severity.
    pub level: Level,
    /// Subject: `driver module`.
    pub what: String,
    /// Finding.
    pub detail: String,
    /// Remedy; `None` where nothing needs to be done.
    pub remedy: Option<String>,
}

/// Severity of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Works, with less than there could be.
    Warning,
    /// Containers with GPUs will not start, or not work.
    Failure,
}

impl Check {
    fn ok(what: &str, detail: impl Into<String>) -> Self {
        Self { level: Level::Ok, what: what.to_owned(), detail: detail.into(), remedy: None }
    }

    fn warning(what: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { level: Level::Warning, what: what.to_owned(), detail: detail.into(), remedy }
    }

    fn failure(what: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { level: Level::Failure, what: what.to_owned(), detail: detail.into(), remedy }
    }
}

/// Answers of the driver and the kernel.
#[derive(Debug)]
pub struct Findings {
    /// The cards.
    pub inventory: Result<Inventory, DiscoverError>,
    /// Persistence mode by UUID of the card, of those that say.
    pub persistence: Vec<(String, bool)>,
    /// Calls that the kernel has.
    pub kernel: KernelFeatures,
}

/// Calls that egpu needs and not every kernel has.
#[derive(Debug, Clone, Copy)]
pub struct KernelFeatures {
    /// `pidfd_getfd(2)`.
    pub pidfd_getfd: bool,
    /// `mount_setattr(2)`.
    pub mount_setattr: bool,
    /// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`.
    pub wait_killable: bool,
}

/// Examines this machine. Asks NVML: call it in a short-lived process.
pub fn examine(config: &Config, kernel: KernelFeatures) -> Vec<Check> {
    let simulated = config.driver.kind == DriverKind::Simulated;
    let findings = Findings {
        inventory: node_cards::refresh(config),
        // Where the driver cannot be asked, the inventory's error says so.
        persistence: if simulated { Vec::new() } else { node_cards::persistence(config).unwrap_or_default() },
        kernel,
    };
    checks(&Roots::host(), config, &findings)
}

/// Judges what was found, and what stands in `roots`. The driver's own checks are left out where
/// cards are simulated.
pub fn checks(roots: &Roots, config: &Config, findings: &Findings) -> Vec<Check> {
    let mut checks = Vec::new();
    let simulated = matches!(&findings.inventory, Ok(inventory) if inventory.source == Source::Simulated);
    if !simulated {
        checks.extend(driver::module(roots));
        // Where the hardware lets a card reach ordinary memory, HMM is off whatever its parameter
        // says.
        checks.extend(driver::coherent_memory(roots).or_else(|| driver::pageable_memory(roots)));
        checks.extend(driver::user_space(roots, config));
        if let Ok(inventory) = &findings.inventory {
            checks.extend(driver::calls(config, &inventory.driver_version));
        }
        checks.extend(nodes::checks(roots, findings.inventory.as_ref().ok()));
        checks.extend(cdi::stale_specs(roots));
    }
    checks.extend(cards::checks(roots, config, findings));
    checks.extend(kernel::checks(roots, findings));
    checks
}

#[cfg(test)]
mod tests;
