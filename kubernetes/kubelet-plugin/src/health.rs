//! Health of the cards for the kubelet, which shows it in the status of the pods that have them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cards::Health as CardHealth;
use futures_util::{Stream, stream};
use kubernetes_api::names::device_name;
use tokio::{sync::watch, time::timeout};
use tonic::Status;

use crate::{
    kubelet_api::{DeviceHealth, DeviceIdentifier, Health, HealthStatus},
    node::View,
};

/// Interval at which the kubelet is told again what it knows.
const REPEAT: Duration = Duration::from_secs(20);
/// Seconds after which it may take a device's health for unknown.
const VALID_SECONDS: i64 = 60;

/// Health of one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CardState {
    /// Name of the device.
    pub(crate) device: String,
    /// Empty: it works. Else its fault.
    pub(crate) fault: String,
}

/// Health of all cards of a view.
pub(crate) fn of(view: &View) -> Vec<CardState> {
    let state = |card: &cards::Card| CardState {
        device: device_name(card.minor),
        fault: match &card.health {
            CardHealth::Ok if view.degraded.contains(&card.uuid) => {
                "the card no longer takes containers off: shares of its time are weights".to_owned()
            }
            CardHealth::Ok => String::new(),
            CardHealth::Unusable { reason } => reason.clone(),
        },
    };
    view.facts.inventory.cards.iter().map(state).collect()
}

/// The stream for one kubelet: at once, at each change, and again and again. Ends with the sender.
pub(crate) fn stream(
    pool: String,
    mut states: watch::Receiver<Vec<CardState>>,
) -> impl Stream<Item = Result<Health, Status>> + Send {
    states.mark_changed();
    stream::unfold((pool, states), |(pool, mut states)| async move {
        if let Ok(Err(_)) = timeout(REPEAT, states.changed()).await {
            return None;
        }
        let message = message(&pool, &states.borrow_and_update());
        Some((Ok(message), (pool, states)))
    })
}

fn message(pool: &str, states: &[CardState]) -> Health {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let device = |state: &CardState| {
        let health = if state.fault.is_empty() { HealthStatus::Healthy } else { HealthStatus::Unhealthy };
        DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: pool.to_owned(), device_name: state.device.clone() }),
            health: health.into(),
            last_updated_time: i64::try_from(now).unwrap_or_default(),
            health_check_timeout_seconds: VALID_SECONDS,
            message: state.fault.clone(),
        }
    };
    Health { devices: states.iter().map(device).collect() }
}
