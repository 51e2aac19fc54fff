//! Any program: the account says no less than the driver holds, and nothing once everything has
//! ended.
//!
//! The same programs, on the same model, as `tests::properties` of crate account.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|program: &[u8]| account::model::run(program));
