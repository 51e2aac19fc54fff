//! Requests as no one writes them: their reading takes the host's time, and what is kept of them
//! the host's memory.
//!
//! Nothing here is timed. With work that grows with the square of what is said, these tests would
//! take hours.

use runtime_config::{
    config::Config,
    request::{ContainerRequest, parse},
};

use super::golden::source;

/// Number of variables in a pod's spec of some megabytes.
const MANY: usize = 400_000;

fn refusal(said: &[&str]) -> String {
    parse(&source(said), &Config::default()).unwrap_err().to_string()
}

#[test]
fn one_variable_with_any_number_of_values_takes_no_time() {
    let mut source = source(&[]);
    source.env = (0..MANY).map(|number| format!("A={number:07}")).collect();
    assert!(matches!(parse(&source, &Config::default()).unwrap(), ContainerRequest::None { .. }));
}

#[test]
fn any_number_of_mounts_that_name_cards_takes_no_time() {
    let mut source = source(&[]);
    source.volume_mount_devices = (0..MANY).map(|number| number.to_string()).collect();
    let config = Config { accept_nvidia_visible_devices_as_volume_mounts: true, ..Config::default() };
    assert!(matches!(parse(&source, &config).unwrap(), ContainerRequest::Gpu(_)));
}

#[test]
fn what_is_said_about_gpus_is_bounded() {
    let list: Vec<String> = (0..MANY).map(|number| number.to_string()).collect();
    let cards = format!("NVIDIA_VISIBLE_DEVICES={}", list.join(","));
    let accepted = "shorter: all that is said about GPUs may have 65536 bytes";
    assert!(refusal(&[&cards]).ends_with(accepted));
    assert!(refusal(&[&cards]).len() < 1000);
    // One by one they are short.
    let many: Vec<String> = (0..10_000).map(|number| format!("NVIDIA_REQUIRE_{number}=cuda>=1.0")).collect();
    let mut said: Vec<&str> = many.iter().map(String::as_str).collect();
    said.extend(["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DISABLE_REQUIRE=1"]);
    assert!(refusal(&said).ends_with(accepted));
    // What nobody asks by is not counted.
    let other = format!("OTHER={}", "x".repeat(1 << 20));
    assert!(parse(&source(&["NVIDIA_VISIBLE_DEVICES=0", &other]), &Config::default()).is_ok());
}
