//! Golden tables of requests, one module for each language, and properties that hold for all of
//! them.
//!
//! A row is what a container says and, written short by [`golden::summary`], what becomes of it: a
//! request, nothing, or a refusal.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on stops; helpers are not seen as tests")]

mod alibaba_cgpu;
mod alibaba_egpu;
mod combination;
mod ctyun;
mod golden;
mod hami;
mod kai;
mod large;
mod native;
mod nvidia;
mod nvidia_fractions;
mod properties;
mod service_links;
