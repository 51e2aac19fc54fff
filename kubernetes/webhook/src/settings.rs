//! The settings file, TOML.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use jiff::SignedDuration;
use serde::Deserialize;

/// Shortest lifetime of a template that nobody names.
const SHORTEST_LIFETIME: SignedDuration = SignedDuration::from_secs(1);

/// The settings. What a file leaves out is as here.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The RuntimeClass that pods get. Pods that name another one are left alone.
    pub runtime_class: String,
    /// The schedulers whose pods are rewritten.
    pub schedulers: Vec<String>,
    /// Rewrite pods that ask for whole cards alone, by HAMi's `count` and nothing beside it.
    pub whole_cards: bool,
    /// The time after which a template goes that no pod of its namespace names.
    pub template_lifetime: SignedDuration,
    /// HAMi's resources.
    pub hami: Hami,
    /// ACK's resources.
    pub ack: Ack,
}

/// Names of HAMi's resources, and what counts where a container leaves one out.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hami {
    /// Number of cards.
    pub count: String,
    /// MiB of each card's memory.
    pub memory: String,
    /// Percent of each card's memory.
    pub memory_percentage: String,
    /// Percent of each card's time.
    pub cores: String,
    /// 0 high, 1 low.
    pub priority: String,
    /// Cards, where a container asks for a share and names no number.
    pub default_count: u32,
    /// MiB; 0: the whole card.
    pub default_memory: u64,
    /// Percent; 0: no cap.
    pub default_cores: u8,
}

/// Names of ACK's resources.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ack {
    /// GiB of memory, of all cards together.
    pub memory: String,
    /// Percent of the card's time.
    pub compute: String,
    /// Number of cards: a resource, or a label of the pod.
    pub count: String,
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// It is no TOML, has a setting that is not known, or a value of the wrong type.
    #[error("{} cannot be used", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The place, and what is accepted.
        source: Box<toml::de::Error>,
    },
    /// A value out of range.
    #[error("{}: {setting} = {value}; {accepted} is accepted", path.display())]
    Range {
        /// The file.
        path: PathBuf,
        /// The setting's name.
        setting: &'static str,
        value: String,
        /// The values that are accepted.
        accepted: &'static str,
    },
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            runtime_class: "egpu".to_owned(),
            schedulers: vec!["default-scheduler".to_owned()],
            whole_cards: false,
            template_lifetime: SignedDuration::from_hours(24),
            hami: Hami::default(),
            ack: Ack::default(),
        }
    }
}

impl Default for Hami {
    fn default() -> Self {
        Self {
            count: "nvidia.com/gpu".to_owned(),
            memory: "nvidia.com/gpumem".to_owned(),
            memory_percentage: "nvidia.com/gpumem-percentage".to_owned(),
            cores: "nvidia.com/gpucores".to_owned(),
            priority: "nvidia.com/priority".to_owned(),
            default_count: 1,
            default_memory: 0,
            default_cores: 0,
        }
    }
}

impl Default for Ack {
    fn default() -> Self {
        Self {
            memory: "aliyun.com/gpu-mem".to_owned(),
            compute: "aliyun.com/gpu-core.percentage".to_owned(),
            count: "aliyun.com/gpu-count".to_owned(),
        }
    }
}

impl Settings {
    /// Reads a file.
    ///
    /// # Errors
    /// [`SettingsError`], with the file's name.
    pub fn read(path: &Path) -> Result<Self, SettingsError> {
        let text = fs::read_to_string(path).map_err(|source| SettingsError::Read { path: path.to_owned(), source })?;
        Self::from_toml(&text, path)
    }

    fn from_toml(text: &str, path: &Path) -> Result<Self, SettingsError> {
        let settings: Self = toml::from_str(text)
            .map_err(|source| SettingsError::Syntax { path: path.to_owned(), source: Box::new(source) })?;
        let range = |setting, value: String, accepted| {
            Err(SettingsError::Range { path: path.to_owned(), setting, value, accepted })
        };
        if settings.template_lifetime < SHORTEST_LIFETIME {
            return range(
                "template_lifetime",
                format!("{:#}", settings.template_lifetime),
                "1s or longer, such as 24h,",
            );
        }
        if settings.hami.default_count == 0 {
            return range("hami.default_count", "0".to_owned(), "1 or more");
        }
        if settings.hami.default_cores > 100 {
            return range("hami.default_cores", settings.hami.default_cores.to_string(), "0 to 100");
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Settings, SettingsError> {
        Settings::from_toml(text, Path::new("webhook.toml"))
    }

    #[test]
    fn what_a_file_leaves_out_is_hamis_and_acks_own() {
        assert_eq!(read("").unwrap(), Settings::default());
        let text = "whole_cards = true\ntemplate_lifetime = \"90m\"\n[hami]\nmemory = \"example.com/mem\"\n";
        let settings = read(text).unwrap();
        assert!(settings.whole_cards);
        assert_eq!(settings.template_lifetime, SignedDuration::from_mins(90));
        assert_eq!(
            (settings.hami.memory.as_str(), settings.hami.count.as_str()),
            ("example.com/mem", "nvidia.com/gpu")
        );
    }

    #[test]
    fn the_manifest_tells_the_defaults() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/kubernetes/optional/webhook.yaml");
        let manifest = fs::read_to_string(path).unwrap();
        let (_, settings) = manifest.split_once("webhook.toml: |\n").unwrap();
        let (settings, _) = settings.split_once("\n---").unwrap();
        let told: String =
            settings.lines().map(|line| line.trim().trim_start_matches("# ").to_owned() + "\n").collect();
        assert_eq!(read(&told).unwrap(), Settings::default());
        let keys = told.lines().filter(|line| line.contains('=')).count();
        assert_eq!(keys, 15, "all of them:\n{told}");
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (text, named) in [
            ("whole_card = true", "unknown field `whole_card`"),
            ("[hami]\nmem = \"x\"", "unknown field `mem`"),
            ("template_lifetime = \"0s\"", "template_lifetime = 0s; 1s or longer"),
            ("template_lifetime = \"soon\"", "template_lifetime"),
            ("[hami]\ndefault_count = 0", "hami.default_count = 0; 1 or more"),
            ("[hami]\ndefault_cores = 101", "hami.default_cores = 101; 0 to 100"),
        ] {
            let error = base::error_chain(&read(text).unwrap_err());
            assert!(error.contains("webhook.toml") && error.contains(named), "{error}");
        }
    }
}
