//! `egpu doctor`: checks of this node, with fixes.
//!
//! `nvidia_glue::doctor` checks the driver, the cards and the kernel; this module the
//! configuration, state, runtime and containerd.

mod containerd;
mod fence;
mod harvest;
mod mediators;
mod priority;
mod runtime;
mod schedules;
mod state;

use std::path::Path;

use nvidia_glue::doctor::{self, Check, Level};
use runtime_config::{
    Config,
    config::{DEFAULT_PATH, PATH_VARIABLE},
};

use super::{
    Exit,
    listing::Listing,
    table::{Cell, CellState, Column},
};

const CONFIG: &str = "configuration";

/// Checks this node.
pub(super) fn examine(containerd_config: Option<&Path>) -> Vec<Check> {
    let mut checks = Vec::new();
    match Config::load(None) {
        Ok(config) => {
            checks.push(configuration());
            checks.extend(doctor::examine(&config, crate::sys::kernel_features()));
            checks.extend(state::checks(&config));
            checks.extend(mediators::check(&config));
            checks.extend(schedules::check(&config));
            checks.extend(priority::check(&config));
            checks.extend(harvest::check(&config));
            checks.push(fence::check(config.fence_other_containers, &state::inits(&config.state_dir)));
        }
        // Without it neither the driver to look for nor the state directory is known.
        Err(error) => checks.push(failure(
            CONFIG,
            super::chain(&error),
            "correct it; `egpu config default` prints every key, `egpu config check` verifies it",
        )),
    }
    checks.push(runtime::check());
    checks.extend(containerd::checks(containerd_config));
    checks
}

fn configuration() -> Check {
    let path = Config::path();
    if path.exists() {
        return ok(CONFIG, path.display().to_string());
    }
    ok(CONFIG, format!("the defaults: there is no {DEFAULT_PATH}, and {PATH_VARIABLE} names no other"))
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

fn ok(what: &str, detail: impl Into<String>) -> Check {
    Check { level: Level::Ok, what: what.to_owned(), detail: detail.into(), remedy: None }
}

fn warning(what: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { level: Level::Warning, what: what.to_owned(), detail: detail.into(), remedy: Some(remedy.into()) }
}

fn failure(what: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { level: Level::Failure, what: what.to_owned(), detail: detail.into(), remedy: Some(remedy.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_decide_and_every_remedy_is_shown() {
        let mut checks = vec![ok("cards", "4"), warning("runtime", "old", "update it")];
        assert_eq!(exit_code(&checks), Exit::Success);
        checks.push(failure("state", "gone", "make it"));
        assert_eq!(exit_code(&checks), Exit::Failure);
        assert_eq!(
            crate::cli::test_support::shown(listing(checks), &[]),
            "LEVEL    CHECK    RESULT\n\
             ok       cards    4\n\
             warning  runtime  old\n                  -> update it\n\
             failure  state    gone\n                  -> make it\n\
             1 failure, 1 warning\n"
        );
    }

    #[test]
    fn json_keys_are_fixed() {
        let value = serde_json::to_value([warning("a", "b", "c")]).unwrap();
        assert_eq!(value, serde_json::json!([{"level": "warning", "what": "a", "detail": "b", "remedy": "c"}]));
    }
}
