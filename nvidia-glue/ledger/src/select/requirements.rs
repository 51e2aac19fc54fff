//! `NVIDIA_REQUIRE_*` against the driver and each card.

use cards::{Card, Inventory};
use runtime_config::request::{GpuRequest, Platform};

use super::SelectError;

/// Returns whether every condition holds on every card; without a card, whether those on the driver
/// hold.
pub(super) fn check_all<'a>(
    inventory: &Inventory,
    request: &GpuRequest,
    cards: impl Iterator<Item = &'a Card>,
) -> Result<(), SelectError> {
    check(inventory, request, None)?;
    cards.into_iter().try_for_each(|card| check(inventory, request, Some(card)))
}

/// Cards among `cards` on which every condition holds.
///
/// # Errors
/// When it is none of them, what the first one lacks.
pub(super) fn fitting<'a>(
    inventory: &Inventory,
    request: &GpuRequest,
    cards: Vec<&'a Card>,
) -> Result<Vec<&'a Card>, SelectError> {
    let first = cards.first().map_or(Ok(()), |card| check(inventory, request, Some(card)));
    let fitting: Vec<_> = cards.into_iter().filter(|card| check(inventory, request, Some(card)).is_ok()).collect();
    if fitting.is_empty() { first.map(|()| fitting) } else { Ok(fitting) }
}

fn check(inventory: &Inventory, request: &GpuRequest, card: Option<&Card>) -> Result<(), SelectError> {
    let arch = card.map(|card| format!("{}.{}", card.compute_capability.0, card.compute_capability.1));
    let platform = Platform {
        driver: &inventory.driver_version,
        cuda: &inventory.cuda_version,
        card: arch.as_deref().zip(card.map(|card| card.brand.as_str())),
    };
    for requirement in &request.requirements {
        requirement
            .check(&platform)
            .map_err(|unsatisfied| SelectError::Requirement { index: card.map(|card| card.index), unsatisfied })?;
    }
    Ok(())
}
