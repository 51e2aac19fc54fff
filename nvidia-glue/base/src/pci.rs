//! PCI addresses.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A PCI address, `0000:65:00.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PciBusId {
    /// Domain; NVML writes eight digits, Linux four.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
    /// Function.
    pub function: u8,
}

impl fmt::Display for PciBusId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// Text that is no PCI address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a PCI address looks like 0000:65:00.0")]
pub struct ParsePciBusIdError;

impl FromStr for PciBusId {
    type Err = ParsePciBusIdError;

    /// `0000:65:00.0`, with a domain of up to eight digits or without (`65:00.0`).
    fn from_str(text: &str) -> Result<Self, ParsePciBusIdError> {
        let hexadecimal = |digits: &str, most: usize| {
            let valid = (1..=most).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            if valid { u32::from_str_radix(digits, 16).ok() } else { None }
        };
        let parse = || {
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
            let device = hexadecimal(device, 2).filter(|device| *device < 32)?;
            let function = hexadecimal(function, 1).filter(|function| *function < 8)?;
            Some(Self {
                domain: hexadecimal(domain, 8)?,
                bus: u8::try_from(hexadecimal(bus, 2)?).ok()?,
                device: u8::try_from(device).ok()?,
                function: u8::try_from(function).ok()?,
            })
        };
        parse().ok_or(ParsePciBusIdError)
    }
}
