//! The configuration that a class or a claim may carry.

pub use base::CardPolicy as Policy;
use serde::{Deserialize, Serialize};

use crate::names::{CONFIG_API_VERSION, CONFIG_KIND};

/// Opaque parameters of a claim or of its class: what is not a quantity. Of several that apply to
/// a request the last one holds whole, a claim's after its class's, as Kubernetes has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Document", into = "Document")]
pub struct GpuConfig {
    /// The policy that the card must have.
    pub policy: Option<Policy>,
    /// A share of the card's time relative to its other containers, 1 to 1000.
    pub weight: Option<u16>,
    /// The order in which containers run.
    pub priority: Option<Priority>,
    /// The limits that are held.
    pub isolation: Option<Isolation>,
    /// The fate of a program over its memory quota.
    pub oom: Option<Oom>,
}

/// Heaviest weight.
const HEAVIEST: u16 = 1000;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant),+
        }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Its name in the configuration, and in egpu's own request language.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }
    };
}

words! {
    /// An order of running.
    Priority {
        /// Before low.
        High = "high",
        /// Only in time that high leaves.
        Low = "low",
    }
}

words! {
    /// Limits that are held.
    Isolation {
        /// Memory and time.
        Full = "full",
        Memory = "memory",
        /// None; where the node's configuration allows it.
        None = "none",
    }
}

words! {
    /// The fate of a program over its memory quota.
    Oom {
        /// CUDA's ordinary out-of-memory error.
        Deny = "deny",
        /// The process is ended.
        Kill = "kill",
    }
}

impl GpuConfig {
    /// Its settings by their names in egpu's request language, those alone that were made.
    pub fn settings(&self) -> impl Iterator<Item = (&'static str, String)> {
        let Self { policy, weight, priority, isolation, oom } = self;
        [
            ("policy", policy.map(|policy| policy.name().to_owned())),
            ("weight", weight.map(|weight| weight.to_string())),
            ("priority", priority.map(|priority| priority.name().to_owned())),
            ("isolation", isolation.map(|isolation| isolation.name().to_owned())),
            ("oom", oom.map(|oom| oom.name().to_owned())),
        ]
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| (name, value)))
    }
}

/// The configuration as it is written. A field that is not known is refused: a mistyped one must
/// not go unnoticed.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    policy: Option<Policy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weight: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    priority: Option<Priority>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    isolation: Option<Isolation>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    oom: Option<Oom>,
}

impl TryFrom<Document> for GpuConfig {
    type Error = String;

    fn try_from(document: Document) -> Result<Self, String> {
        let Document { api_version, kind, policy, weight, priority, isolation, oom } = document;
        if api_version != CONFIG_API_VERSION || kind != CONFIG_KIND {
            return Err(format!(
                "parameters of apiVersion {api_version}, kind {kind}; {CONFIG_API_VERSION}, {CONFIG_KIND} is accepted"
            ));
        }
        if let Some(weight) = weight.filter(|weight| !(1..=HEAVIEST).contains(weight)) {
            return Err(format!("weight {weight}; a whole number from 1 to {HEAVIEST} is accepted"));
        }
        Ok(Self { policy, weight, priority, isolation, oom })
    }
}

impl From<GpuConfig> for Document {
    fn from(config: GpuConfig) -> Self {
        let GpuConfig { policy, weight, priority, isolation, oom } = config;
        let (api_version, kind) = (CONFIG_API_VERSION.to_owned(), CONFIG_KIND.to_owned());
        Self { api_version, kind, policy, weight, priority, isolation, oom }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_configuration_is_read_and_written_back() {
        let document = json!({"apiVersion": "egpu.io/v1", "kind": "GpuConfig", "policy": "weighted", "weight": 2,
                              "priority": "low", "isolation": "memory", "oom": "kill"});
        let config: GpuConfig = serde_json::from_value(document.clone()).unwrap();
        let settings: Vec<(&str, String)> = config.settings().collect();
        let expected =
            [("policy", "weighted"), ("weight", "2"), ("priority", "low"), ("isolation", "memory"), ("oom", "kill")];
        assert_eq!(settings, expected.map(|(name, value)| (name, value.to_owned())));
        assert_eq!(serde_json::to_value(config).unwrap(), document);
    }

    #[test]
    fn an_empty_configuration_sets_nothing() {
        let config: GpuConfig =
            serde_json::from_value(json!({"apiVersion": "egpu.io/v1", "kind": "GpuConfig"})).unwrap();
        assert_eq!(config.settings().count(), 0);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for (wrong, named) in [
            (json!({"kind": "GpuConfig"}), "apiVersion"),
            (json!({"apiVersion": "egpu.io/v2", "kind": "GpuConfig"}), "egpu.io/v2"),
            (json!({"apiVersion": "egpu.io/v1", "kind": "Gpu"}), "kind Gpu"),
            (json!({"apiVersion": "egpu.io/v1", "kind": "GpuConfig", "memory": "1Gi"}), "memory"),
            (json!({"apiVersion": "egpu.io/v1", "kind": "GpuConfig", "weight": 0}), "weight 0"),
            (json!({"apiVersion": "egpu.io/v1", "kind": "GpuConfig", "weight": 1001}), "weight 1001"),
            (json!({"apiVersion": "egpu.io/v1", "kind": "GpuConfig", "weight": "2"}), "2"),
            (json!({"apiVersion": "egpu.io/v1", "kind": "GpuConfig", "policy": "Fixed"}), "Fixed"),
            (json!({"apiVersion": "egpu.io/v1", "kind": "GpuConfig", "oom": "pause"}), "pause"),
        ] {
            let error = serde_json::from_value::<GpuConfig>(wrong.clone()).unwrap_err().to_string();
            assert!(error.contains(named), "{wrong}: {error}");
        }
    }
}
