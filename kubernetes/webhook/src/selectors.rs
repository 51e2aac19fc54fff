//! Choices of cards as expressions in CEL, which the scheduler evaluates.

use kubernetes_api::{
    Policy,
    names::{DRIVER, attribute},
};

/// Beginning of HAMi's names of types: `NVIDIA-Tesla V100`.
const VENDOR: &str = "nvidia ";

/// The expression for cards whose model contains one of `types`, in any case, `-` for a space.
pub(crate) fn of_types<'a>(types: impl IntoIterator<Item = &'a str>) -> String {
    let types: Vec<String> = types.into_iter().map(model).collect();
    let model = format!("{}.lowerAscii().replace(\"-\", \" \")", of_card(attribute::PRODUCT_NAME));
    format!("{}.exists(type, {model}.contains(type))", list(&types))
}

/// The expression for cards with one of these UUIDs.
pub(crate) fn of_uuids<'a>(uuids: impl IntoIterator<Item = &'a str>) -> String {
    let uuids: Vec<String> = uuids.into_iter().map(|uuid| uuid.trim().to_owned()).collect();
    format!("{} in {}", of_card(attribute::UUID), list(&uuids))
}

/// The expression for cards that are shared by a policy.
pub(crate) fn of_policy(policy: Policy) -> String {
    format!("{} == {}", of_card(attribute::POLICY), literal(policy.name()))
}

/// The expression for all other cards.
pub(crate) fn not(expression: &str) -> String {
    format!("!({expression})")
}

/// The word for a placement on nodes; `None`: another one.
pub(crate) fn node_placement(word: &str) -> Option<&'static str> {
    ["binpack", "spread"].into_iter().find(|known| *known == word)
}

/// A model as it is compared. HAMi writes the vendor before each, which the driver does not.
fn model(name: &str) -> String {
    let name = name.trim().to_ascii_lowercase().replace('-', " ");
    let name = name.strip_prefix(VENDOR).unwrap_or(&name);
    // It stands for every card.
    if name == VENDOR.trim() { String::new() } else { name.to_owned() }
}

fn of_card(attribute: &str) -> String {
    format!("device.attributes[{}].{attribute}", literal(DRIVER))
}

fn list(texts: &[String]) -> String {
    format!("[{}]", texts.iter().map(|text| literal(text)).collect::<Vec<_>>().join(", "))
}

/// A string of CEL, which has JSON's escapes.
fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_as_the_scheduler_reads_them() {
        assert_eq!(
            of_types("A100, NVIDIA-Tesla V100-PCIE,NVIDIA".split(',')),
            "[\"a100\", \"tesla v100 pcie\", \"\"].exists(type, \
             device.attributes[\"gpu.egpu.io\"].productName.lowerAscii().replace(\"-\", \" \").contains(type))"
        );
        assert_eq!(
            not(&of_uuids(["GPU-1", " GPU-2"])),
            "!(device.attributes[\"gpu.egpu.io\"].uuid in [\"GPU-1\", \"GPU-2\"])"
        );
        assert_eq!(of_policy(Policy::Soft), "device.attributes[\"gpu.egpu.io\"].policy == \"soft\"");
    }

    #[test]
    fn text_of_a_pod_stays_text() {
        let hostile = "x\"] == [] || true || \"\\\n";
        assert_eq!(of_uuids([hostile]), r#"device.attributes["gpu.egpu.io"].uuid in ["x\"] == [] || true || \"\\"]"#);
        assert_eq!(literal("\u{1}\n"), r#""\u0001\n""#);
    }

    #[test]
    fn placements_are_two_words() {
        assert_eq!(node_placement("spread"), Some("spread"));
        assert_eq!(node_placement("topology-aware"), None);
    }
}
