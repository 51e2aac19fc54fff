//! Tests of the scorer's parts together; what its order of nodes is for.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod calls;
mod objects;
mod order;
mod packing;
