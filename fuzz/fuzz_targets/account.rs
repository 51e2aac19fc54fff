//! Any program: the account says no less than the driver holds, and nothing once everything has
//! ended.
//!
//! The same programs, on the same model, as `tests::properties` of crate account.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../nvidia-glue/account/src/tests/model/mod.rs"]
mod model;

mod api {
    pub(crate) use nvidia_glue::{
        account::*,
        mediate::Pid,
        rm::{
            Handle,
            memory::{FRAME, GRANULE, Layout},
        },
    };
    pub(crate) use runtime_config::units::Bytes;

    pub(crate) const GROUP: Kind = Kind::ChannelGroup(Card(0));
    pub(crate) const CHANNEL: Kind = Kind::Channel { card: Card(0), is_bare: false };
}

fuzz_target!(|program: &[u8]| model::run(program));
