//! Quantities that the API server has checked.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;
use kubernetes_api::{Quantity, QuantityError};

/// Reads a quantity; a fraction counts as the next whole one, as it does for the scheduler.
pub(crate) fn amount(written: &Written) -> u64 {
    match Quantity::rounded_up(&written.0) {
        Ok(Quantity(amount)) => amount,
        Err(QuantityError::TooLarge(_)) => u64::MAX,
        Err(_) => 0,
    }
}
