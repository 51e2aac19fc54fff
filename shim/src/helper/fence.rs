//! The filter that a container's processes get on top of their own seccomp profile.

use std::io;

use nvidia_glue::fence::{Action, Arch, program};

use crate::sys::{self, SeccompInstruction};

/// A program ready to be installed.
#[derive(Debug)]
pub(crate) struct Filter(Vec<SeccompInstruction>);

impl Filter {
    /// The fence of containers that were granted no GPU: the driver's calls answer as if there were no driver.
    /// `None` on machines for which NVIDIA has none.
    pub(crate) fn fence() -> Option<Self> {
        let instructions = program(Arch::native()?, Action::NOT_A_DRIVER);
        Some(Self(
            instructions.into_iter().map(|i| SeccompInstruction { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect(),
        ))
    }

    /// Installs it on the calling process. Needs CAP_SYS_ADMIN: before any capability is dropped.
    pub(crate) fn install(&self) -> io::Result<()> {
        sys::install_seccomp_filter(&self.0)
    }
}
