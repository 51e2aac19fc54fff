//! The parts of the driver's user space that a container wants: the names of
//! `NVIDIA_DRIVER_CAPABILITIES`.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

bitflags! {
    /// `NVIDIA_DRIVER_CAPABILITIES`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct DriverCapabilities: u8 {
        /// CUDA and OpenCL.
        const COMPUTE = 1;
        /// `nvidia-smi` and NVML.
        const UTILITY = 1 << 1;
        /// Video codec SDK; brings the compute libraries along.
        const VIDEO = 1 << 2;
        /// OpenGL and Vulkan.
        const GRAPHICS = 1 << 3;
        /// X11; includes graphics.
        const DISPLAY = 1 << 4;
        /// NGX.
        const NGX = 1 << 5;
        /// 32-bit libraries of the others.
        const COMPAT32 = 1 << 6;
    }
}

/// Every capability by its name, in the order in which they are documented.
const NAMES: [(&str, DriverCapabilities); 7] = [
    ("compute", DriverCapabilities::COMPUTE),
    ("utility", DriverCapabilities::UTILITY),
    ("video", DriverCapabilities::VIDEO),
    ("graphics", DriverCapabilities::GRAPHICS),
    ("display", DriverCapabilities::DISPLAY),
    ("ngx", DriverCapabilities::NGX),
    ("compat32", DriverCapabilities::COMPAT32),
];

/// A word that names no capability.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is no driver capability; there are {}", DriverCapabilities::all().names())]
pub struct UnknownCapability {
    /// The word.
    pub word: String,
}

impl DriverCapabilities {
    /// The capabilities of a container that names none.
    pub const DEFAULT: Self = Self::UTILITY.union(Self::COMPUTE);

    /// The capability of that name, without `all`.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, capability)| *capability)
    }

    /// Reads a comma-separated list; blanks and empty items are skipped, `all` stands for
    /// `supported`.
    ///
    /// # Errors
    /// For a word that names none.
    pub fn parse_list(list: &str, supported: Self) -> Result<Self, UnknownCapability> {
        let mut capabilities = Self::empty();
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            capabilities |= match word {
                "all" => supported,
                _ => Self::named(word).ok_or_else(|| UnknownCapability { word: word.to_owned() })?,
            };
        }
        Ok(capabilities)
    }

    /// `compute,utility`.
    pub fn names(self) -> String {
        let names: Vec<&str> = NAMES.iter().filter(|(_, one)| self.contains(*one)).map(|(name, _)| *name).collect();
        names.join(",")
    }
}
