//! Whole calls against the simulated driver: each rule, and each way around it that was thought of.

mod alloc_overrides;
mod attacks;
mod chunked_free;
mod debugger;
mod driver_time;
mod exports;
mod fabric;
mod file_teardown;
mod fixed_address;
mod foreign;
mod frames;
mod gates;
mod granted;
mod host_mappings;
mod lent;
mod managed;
mod managed_free;
mod memory;
mod monitor;
mod neighbours;
mod other_cards;
#[cfg(feature = "parking")]
mod parking;
mod pinned;
mod preemption;
mod replay;
mod scheduling;
mod shortages;
mod spy;
mod submitted;
mod uncharged;
mod unknown;
mod utilization;
mod version;
mod views;
mod world;
