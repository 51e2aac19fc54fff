//! Compares the tables of the NVIDIA driver's calls with the headers of the open kernel modules.
//!
//! `header-check FOLDER...`, each an unpacked release, prints what was compared and what differs;
//! the exit status is 1 when something does. `header-check --pointer-controls FOLDER...` prints
//! `controls/pointer_controls.txt` instead. See docs/driver-releases.md.

mod compare;
mod compiled;
mod driver_source;
mod exceptions;
mod pointer_controls;
mod release;
mod report;
mod types;

use std::{
    collections::BTreeMap,
    env,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use compare::Headers;
use report::Report;

const USAGE: &str = "usage: header-check [--pointer-controls] FOLDER...\n\
                     Each FOLDER is an unpacked release of github.com/NVIDIA/open-gpu-kernel-modules.";

fn main() -> ExitCode {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    let only_pointers = arguments.first().is_some_and(|first| first == "--pointer-controls");
    if only_pointers {
        arguments.remove(0);
    }
    if arguments.is_empty() || arguments.iter().any(|argument| argument.starts_with('-')) {
        return fail(USAGE);
    }
    let folders: Vec<PathBuf> = arguments.into_iter().map(PathBuf::from).collect();
    let done = if only_pointers { print_pointer_controls(&folders) } else { print_comparison(&folders) };
    done.unwrap_or_else(|error| fail(&error.to_string()))
}

fn fail(message: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "header-check: {message}");
    ExitCode::from(2)
}

fn print_comparison(folders: &[PathBuf]) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut reports = Vec::new();
    for folder in folders {
        let report = compare::compare(&Headers::read(folder)?);
        write!(io::stdout(), "{report}")?;
        reports.push(report);
    }
    let in_none = Report::in_none(&reports);
    writeln!(io::stdout(), "{} rows in none of these releases", in_none.len())?;
    for row in in_none {
        writeln!(io::stdout(), "  in none: {row}")?;
    }
    for row in Report::too_large(&reports) {
        writeln!(io::stdout(), "  more bytes than in any of these releases: {row}")?;
    }
    let differs = reports.iter().any(|report| !report.differences().is_empty());
    Ok(ExitCode::from(u8::from(differs)))
}

fn print_pointer_controls(folders: &[PathBuf]) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut controls = BTreeMap::new();
    for folder in folders {
        controls.extend(pointer_controls::of(&Headers::read(folder)?));
    }
    write!(io::stdout(), "{}", pointer_controls::list(&controls))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests;
