//! Any text: a configuration or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use runtime_config::Config;

fuzz_target!(|text: &str| {
    if let Err(error) = Config::from_toml(text, "fuzz") {
        assert!(!error.to_string().is_empty());
    }
});
