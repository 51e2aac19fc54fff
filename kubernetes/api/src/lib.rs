//! Vocabulary that egpu shares with Kubernetes: names of objects and fields, exact quantities, the
//! configuration of claims, and the variable that leads a container to its claim.
//!
//! Pure: strings in, values or errors out.
#![forbid(unsafe_code)]

mod claim_variable;
mod gpu_config;
pub mod names;
mod quantity;

pub use claim_variable::{ClaimVariable, ClaimVariableError, base_request};
pub use gpu_config::{GpuConfig, Isolation, Oom, Policy, Priority};
pub use quantity::{Quantity, QuantityError};
