//! Exit codes of `egpu`: part of its interface, scripts rely on them.

use std::process::ExitCode;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Success = 0,
    /// It could not be done; stderr says why. Of `doctor`: something is in the way of containers with GPUs.
    Failure = 1,
    /// The command line is wrong. clap ends with this code, too.
    Usage = 2,
    /// The configuration file is wrong or cannot be read.
    Config = 3,
    /// There is no such container, or more than one.
    NotFound = 4,
}

/// The table for `--help`.
pub(super) const HELP: &str = "\
Exit codes:
  0  done
  1  failed, or `doctor` found something that is in the way of containers with GPUs
  2  the command line is wrong
  3  the configuration file is wrong or cannot be read
  4  there is no such container, or more than one

Environment:
  EGPU_CONFIG  configuration file, instead of /etc/egpu/config.toml";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_documented() {
        for exit in [Exit::Success, Exit::Failure, Exit::Usage, Exit::Config, Exit::NotFound] {
            assert!(HELP.contains(&format!("\n  {}  ", exit as u8)), "{exit:?}");
        }
    }
}
