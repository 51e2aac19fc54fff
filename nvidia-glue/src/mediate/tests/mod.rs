//! Whole calls against the simulated driver: each rule, and each way around it that was thought of.

mod attacks;
mod exports;
mod foreign;
mod managed;
mod memory;
mod monitor;
mod views;
mod world;
