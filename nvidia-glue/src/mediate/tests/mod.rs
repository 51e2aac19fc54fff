//! Whole calls against the simulated driver: each rule, and each way around it that was thought of.

mod attacks;
mod debugger;
mod exports;
mod fixed_address;
mod foreign;
mod gates;
mod host_mappings;
mod kept;
mod lent;
mod managed;
mod memory;
mod monitor;
mod neighbours;
mod other_cards;
mod overrides;
mod pieces;
mod pinned;
mod replay;
mod scheduling;
mod spy;
mod uncharged;
mod unknown;
mod utilization;
mod version;
mod views;
mod world;
