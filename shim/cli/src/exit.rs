//! Exit codes of `egpu`: part of its interface, scripts rely on them.

use std::process::ExitCode;

/// Result of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Success,
    /// Failed; stderr says why. Of `doctor`: containers with GPUs cannot run as they should.
    Failure,
    /// The command line is wrong. clap ends with this code, too.
    Usage,
    /// The configuration file is wrong or cannot be read.
    Config,
    /// No such container or card, or more than one.
    NotFound,
    /// Refused, of `set`, `policy`, `install` and `uninstall`; nothing has changed.
    Refused,
    /// The exit code of the program that `trace` ran, or 128 and the signal that ended it.
    Command(u8),
}

impl Exit {
    const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::Config => 3,
            Self::NotFound => 4,
            Self::Refused => 5,
            Self::Command(code) => code,
        }
    }
}

/// Table of exit codes for `--help`.
pub(super) const HELP: &str = "\
Exit codes:
  0  done
  1  failed, or `doctor` found something that is in the way of containers with GPUs
  2  the command line is wrong
  3  the configuration file is wrong or cannot be read
  4  there is no such container or card, or more than one
  5  `set`, `policy`, `install`, `uninstall`: refused, because it does not fit or may not be changed;
     nothing has changed
  `trace` ends with the traced program's code

Environment:
  EGPU_CONFIG  configuration file, instead of /etc/egpu/config.toml";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_documented() {
        for exit in [Exit::Success, Exit::Failure, Exit::Usage, Exit::Config, Exit::NotFound, Exit::Refused] {
            assert!(HELP.contains(&format!("\n  {}  ", exit.code())), "{exit:?}");
        }
    }
}
