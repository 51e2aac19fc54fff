//! `egpu doctor`: checks of this node, with fixes.
//!
//! [`driver_and_cards`] judges what was found and what stands in the trees of [`Roots`], so that a
//! made-up machine can be judged as well.

mod cards;
mod cdi;
mod containerd;
mod driver;
mod fence;
mod harvest;
mod kernel;
mod mediators;
mod nodes;
mod priority;
mod runtime;
mod schedules;
mod state;
#[cfg(test)]
mod tests;

use std::path::Path;

use ::cards as node_cards;
use ::cards::{DiscoverError, Inventory, Source};
use base::Roots;
use runtime_config::{
    Config,
    config::{DEFAULT_PATH, DriverKind, PATH_VARIABLE},
};
use serde::Serialize;
use sys::KernelFeatures;

use super::{
    exit::Exit,
    listing::Listing,
    table::{Cell, CellState, Column},
};

const CONFIG: &str = "configuration";

/// One line of the doctor's report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    level: Level,
    /// Subject: `driver module`.
    what: String,
    /// Finding.
    detail: String,
    /// Remedy; `None` where nothing needs to be done.
    remedy: Option<String>,
}

/// Severity of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Level {
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
        Self { level: Level::Warning, what: what.to_owned(), detail: detail.into(), remedy: Some(remedy.into()) }
    }

    fn failure(what: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Failure, what: what.to_owned(), detail: detail.into(), remedy: Some(remedy.into()) }
    }
}

/// Answers of the driver and the kernel.
#[derive(Debug)]
struct Findings {
    inventory: Result<Inventory, DiscoverError>,
    /// Persistence mode by UUID of the card, of those that say.
    persistence: Vec<(String, bool)>,
    kernel: KernelFeatures,
}

/// Checks this node.
pub(super) fn examine(containerd_config: Option<&Path>) -> Vec<Check> {
    let mut checks = Vec::new();
    match Config::load(None) {
        Ok(config) => {
            checks.push(configuration());
            checks.extend(driver_and_cards(&Roots::host(), &config, &findings(&config)));
            checks.extend(state::checks(&config));
            checks.extend(mediators::check(&config));
            checks.extend(schedules::checks(&config));
            checks.extend(priority::check(&config));
            checks.extend(harvest::check(&config));
            checks.push(fence::check(config.fence_other_containers, &state::inits(&config.state_dir)));
        }
        // Without it neither the driver to look for nor the state directory is known.
        Err(error) => checks.push(Check::failure(
            CONFIG,
            base::error_chain(&error),
            "correct it; `egpu config default` prints every key, `egpu config check` verifies it",
        )),
    }
    checks.push(runtime::check());
    checks.extend(containerd::checks(containerd_config));
    checks
}

/// Asks the driver and the kernel of this machine.
fn findings(config: &Config) -> Findings {
    let simulated = config.driver.kind == DriverKind::Simulated;
    Findings {
        inventory: node_cards::refresh(config),
        // Where the driver cannot be asked, the inventory's error says so.
        persistence: if simulated { Vec::new() } else { node_cards::persistence(config).unwrap_or_default() },
        kernel: sys::kernel_features(),
    }
}

/// Judges what was found, and what stands in `roots`. The driver's own checks are left out where
/// cards are simulated.
fn driver_and_cards(roots: &Roots, config: &Config, findings: &Findings) -> Vec<Check> {
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

fn configuration() -> Check {
    let path = Config::path();
    if path.exists() {
        return Check::ok(CONFIG, path.display().to_string());
    }
    Check::ok(CONFIG, format!("the defaults: there is no {DEFAULT_PATH}, and {PATH_VARIABLE} names no other"))
}

/// Returns the exit code: failures count, warnings do not.
pub(super) fn exit_code(checks: &[Check]) -> Exit {
    if checks.iter().any(|check| check.level == Level::Failure) { Exit::Failure } else { Exit::Success }
}

const COLUMNS: [Column; 3] = [Column::new("LEVEL"), Column::new("CHECK"), Column::text("RESULT")];

/// One line for each check, with its fix below.
pub(super) fn listing(checks: Vec<Check>) -> Listing<Check> {
    let count = |level: Level| checks.iter().filter(|check| check.level == level).count();
    let (failures, warnings) = (count(Level::Failure), count(Level::Warning));
    let footer = format!("{}, {}\n", plural(failures, "failure"), plural(warnings, "warning"));
    Listing { footer: Some(footer), ..Listing::new(&COLUMNS, checks, rows) }
}

fn rows(Check { level, what, detail, remedy }: &Check) -> Vec<Vec<Cell>> {
    let (level, state) = match level {
        Level::Ok => ("ok", CellState::Good),
        Level::Warning => ("warning", CellState::Warning),
        Level::Failure => ("failure", CellState::Bad),
    };
    let check = vec![Cell::from(level).in_state(state), what.as_str().into(), detail.as_str().into()];
    let remedy = remedy.iter().map(|remedy| vec![Cell::default(), Cell::default(), format!("-> {remedy}").into()]);
    std::iter::once(check).chain(remedy).collect()
}

fn plural(count: usize, name: &str) -> String {
    if count == 1 { format!("1 {name}") } else { format!("{count} {name}s") }
}
