//! Whole calls against the simulated driver: each rule, and each way around it that was thought of.

mod attacks;
mod exports;
mod foreign;
mod gates;
mod managed;
mod memory;
mod monitor;
mod scheduling;
mod spy;
mod uncharged;
mod views;
mod world;
