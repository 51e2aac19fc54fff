//! NVIDIA device nodes that are in a spec already.

use runtime_config::request::PresentNodes;
use serde_json::Value;

use super::{clean, items};

/// The character major of `/dev/nvidiaN`, `/dev/nvidiactl` and `/dev/nvidia-modeset`, fixed in all
/// drivers (NV_MAJOR_DEVICE_NUMBER, kernel-open/common/inc/nv-linux.h).
pub(crate) const NVIDIA_MAJOR: u64 = 195;

/// Minors of that major that are no card: `nvidia-modeset`, `nvidiactl`.
const FIRST_MINOR_OF_NO_CARD: u64 = 248;
const CONTROL_MINOR: u64 = 255;

/// Looks through `linux.devices`. What a node is follows from its numbers, since these are what is
/// made; from its path only where the spec leaves them out.
pub(super) fn present(spec: &Value) -> PresentNodes {
    let mut found = PresentNodes::default();
    for device in items(spec.pointer("/linux/devices")) {
        let path = clean(device.get("path").and_then(Value::as_str).unwrap_or_default());
        let major = device.get("major").and_then(integer);
        let minor = device.get("minor").and_then(integer);
        let number_in_path = |prefix: &str| path.strip_prefix(prefix).and_then(|number| number.parse::<u64>().ok());
        if let Some(capability) = number_in_path("/dev/nvidia-caps/nvidia-cap") {
            push_once(&mut found.capabilities, minor.unwrap_or(capability));
        } else if path == "/dev/dxg" || path == "/dev/nvidiactl" {
            found.control = true;
        } else if let Some(minor) = match major {
            Some(NVIDIA_MAJOR) => minor,
            Some(0) | None => number_in_path("/dev/nvidia"),
            Some(_) => None,
        } {
            if minor == CONTROL_MINOR {
                found.control = true;
            } else if minor < FIRST_MINOR_OF_NO_CARD {
                push_once(&mut found.cards, minor);
            }
        }
    }
    found
}

fn push_once(list: &mut Vec<u32>, number: u64) {
    if let Ok(number) = u32::try_from(number)
        && !list.contains(&number)
    {
        list.push(number);
    }
}

/// A device number; `None` for what stands for every number: nothing, null or -1.
pub(crate) fn integer(value: &Value) -> Option<u64> {
    value.as_u64()
}
