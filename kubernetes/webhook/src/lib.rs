//! The admission webhook for pods that ask in older words: HAMi's resources, ACK's, egpu's
//! annotations.
//!
//! ```text
//! pod ──> demand ──> template ──> patch ──> pod with a claim
//!           │           └── ensured in the namespace, collected when nobody names it
//!           └── refused with the reason, or told on the pod
//! ```
//! It is asked when a pod is made and at no other time: without it, pods run as they do, and new
//! ones that ask in older words wait for resources that no node has.
#![forbid(unsafe_code)]

mod api;
mod collection;
mod demand;
mod options;
mod own_certificate;
mod patch;
mod review;
mod selectors;
mod server;
mod settings;
mod template;
#[cfg(test)]
mod tests;
mod tls;
mod webhook;

pub use api::{ApiError, ConnectError};
pub use options::Options;
pub use own_certificate::OwnCertificateError;
pub use settings::{Ack, Hami, Settings, SettingsError};
pub use tls::TlsError;
pub use webhook::{WebhookError, main_of, run};
