//! Taints of a card: what keeps claims away from it, or drives them off.

use cards::{Card, Health};
use k8s_openapi::api::resource::v1::DeviceTaint;
use kubernetes_api::names::taint;

/// Longest value of a taint, a label's.
const LONGEST_VALUE: usize = 63;

/// Cards that an administrator empties, as the Node's annotation says: names between commas, or
/// `*`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Drained(Vec<String>);

impl Drained {
    /// Reads the annotation.
    pub(crate) fn read(annotation: Option<&str>) -> Self {
        let names = annotation.into_iter().flat_map(|list| list.split(',')).map(str::trim);
        Self(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    fn has(&self, device: &str) -> bool {
        self.0.iter().any(|name| name == "*" || name == device)
    }
}

/// Taints of a card.
pub(crate) fn of(card: &Card, device: &str, is_degraded: bool, drained: &Drained) -> Vec<DeviceTaint> {
    let taint = |key: &str, value: &str, effect: &str| DeviceTaint {
        key: key.to_owned(),
        value: Some(label(value)).filter(|value| !value.is_empty()),
        effect: effect.to_owned(),
        time_added: None,
    };
    let mut taints = Vec::new();
    match &card.health {
        Health::Unusable { reason } => taints.push(taint(taint::UNHEALTHY, reason, "NoExecute")),
        Health::Ok if is_degraded => taints.push(taint(taint::UNHEALTHY, "degraded", "NoSchedule")),
        Health::Ok => {}
    }
    if drained.has(device) {
        taints.push(taint(taint::DRAIN, "", "NoSchedule"));
    }
    taints
}

/// Text as the value of a label: `Xid 79 (GPU has fallen off the bus)` is
/// `Xid-79-GPU-has-fallen-off-the-bus`.
fn label(text: &str) -> String {
    let words = text.split(|character: char| !character.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut label = String::new();
    for word in words {
        let length = label.len() + usize::from(!label.is_empty()) + word.len();
        if length > LONGEST_VALUE {
            break;
        }
        if !label.is_empty() {
            label.push('-');
        }
        label.push_str(word);
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_become_labels() {
        for (text, expected) in [
            ("Xid 79 (GPU has fallen off the bus) since boot", "Xid-79-GPU-has-fallen-off-the-bus-since-boot"),
            ("", ""),
            ("(!)", ""),
            ("ü", ""),
        ] {
            assert_eq!(label(text), expected, "{text}");
        }
        let long = label(&"word ".repeat(40));
        assert!(long.len() <= LONGEST_VALUE && long.ends_with("word"), "{long}");
    }

    #[test]
    fn the_annotation_names_devices_or_all() {
        let drained = Drained::read(Some(" gpu-1,, gpu-3 "));
        assert_eq!(["gpu-0", "gpu-1", "gpu-3"].map(|name| drained.has(name)), [false, true, true]);
        assert!(Drained::read(Some("*")).has("gpu-7"));
        assert!(!Drained::read(None).has("gpu-7"));
    }
}
