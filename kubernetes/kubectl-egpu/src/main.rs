//! kubectl's plugin `egpu`.
#![allow(dead_code)]
mod allocation;
#[cfg(test)]
mod fixtures;
mod inventory;
mod node_match;
mod placement;
mod request;
mod selector;

fn main() {}
