//! Messages between the kubelet and its plugins, by the field numbers of Kubernetes' protocol
//! files (`k8s.io/kubelet/pkg/apis`: `pluginregistration/v1`, `dra/v1`, `dra-health/v1alpha1`).

use std::collections::HashMap;

/// Methods by which the kubelet gets to know a plugin.
pub(crate) mod registration {
    /// Asks for the plugin's name.
    pub(crate) const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";
    /// Tells the plugin the outcome.
    pub(crate) const NOTIFY: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";
    /// Type of plugins for claims.
    pub(crate) const DRA_PLUGIN: &str = "DRAPlugin";
}

/// Methods for claims.
pub(crate) mod dra {
    /// The service, as a plugin lists it.
    pub(crate) const SERVICE: &str = "v1.DRAPlugin";
    /// Prepares claims, before their pod starts.
    pub(crate) const PREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
    /// Undoes that, after it has ended.
    pub(crate) const UNPREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources";
}

/// Method for the health of devices.
pub(crate) mod health {
    /// The service, as a plugin lists it.
    pub(crate) const SERVICE: &str = "v1alpha1.DRAResourceHealth";
    /// Streams the state of all devices.
    pub(crate) const WATCH: &str = "/v1alpha1.DRAResourceHealth/NodeWatchResources";
}

/// A message without fields.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Empty {}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct PluginInfo {
    /// [`registration::DRA_PLUGIN`].
    #[prost(string, tag = "1")]
    pub(crate) plugin_type: String,
    /// Name of the driver.
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    /// Path of the socket at which it serves.
    #[prost(string, tag = "3")]
    pub(crate) endpoint: String,
    /// Services that it has there.
    #[prost(string, repeated, tag = "4")]
    pub(crate) supported_versions: Vec<String>,
}

/// Outcome of a registration.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub(crate) plugin_registered: bool,
    /// If not: why.
    #[prost(string, tag = "2")]
    pub(crate) error: String,
}

/// A claim, as the kubelet names it.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub(crate) struct ClaimName {
    #[prost(string, tag = "1")]
    pub(crate) namespace: String,
    #[prost(string, tag = "2")]
    pub(crate) uid: String,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

/// Claims to prepare, or to unprepare.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Claims {
    /// All of one pod.
    #[prost(message, repeated, tag = "1")]
    pub(crate) claims: Vec<ClaimName>,
}

/// Answers about claims that were to be prepared.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Prepared {
    /// By uid, for each claim that was asked about.
    #[prost(map = "string, message", tag = "1")]
    pub(crate) claims: HashMap<String, PreparedClaim>,
}

/// Answer about one claim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct PreparedClaim {
    /// Its devices of this driver.
    #[prost(message, repeated, tag = "1")]
    pub(crate) devices: Vec<PreparedDevice>,
    /// Not empty: it is not prepared, and why.
    #[prost(string, tag = "2")]
    pub(crate) error: String,
}

/// One device of a prepared claim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct PreparedDevice {
    /// Requests that it was allocated for, without their alternatives.
    #[prost(string, repeated, tag = "1")]
    pub(crate) request_names: Vec<String>,
    #[prost(string, tag = "2")]
    pub(crate) pool_name: String,
    /// Its name there.
    #[prost(string, tag = "3")]
    pub(crate) device_name: String,
    /// CDI devices for containers that use the request.
    #[prost(string, repeated, tag = "4")]
    pub(crate) cdi_device_ids: Vec<String>,
    /// The share of it that was allocated.
    #[prost(string, optional, tag = "5")]
    pub(crate) share_id: Option<String>,
}

/// Answers about claims that were to be unprepared.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Unprepared {
    /// By uid, for each claim that was asked about.
    #[prost(map = "string, message", tag = "1")]
    pub(crate) claims: HashMap<String, UnpreparedClaim>,
}

/// Answer about one claim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct UnpreparedClaim {
    /// Not empty: it is prepared still, and why.
    #[prost(string, tag = "1")]
    pub(crate) error: String,
}

/// Health of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum HealthStatus {
    /// Not known.
    Unknown = 0,
    /// It works.
    Healthy = 1,
    /// It does not.
    Unhealthy = 2,
}

/// A device, by its pool.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct DeviceIdentifier {
    #[prost(string, tag = "1")]
    pub(crate) pool_name: String,
    /// Its name there.
    #[prost(string, tag = "2")]
    pub(crate) device_name: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct DeviceHealth {
    #[prost(message, optional, tag = "1")]
    pub(crate) device: Option<DeviceIdentifier>,
    #[prost(enumeration = "HealthStatus", tag = "2")]
    pub(crate) health: i32,
    /// Time of the last look, seconds since 1970.
    #[prost(int64, tag = "3")]
    pub(crate) last_updated_time: i64,
    /// Seconds after which the kubelet takes it for unknown.
    #[prost(int64, tag = "4")]
    pub(crate) health_check_timeout_seconds: i64,
    /// For people.
    #[prost(string, tag = "5")]
    pub(crate) message: String,
}

/// Health of all devices.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Health {
    /// Each of them.
    #[prost(message, repeated, tag = "1")]
    pub(crate) devices: Vec<DeviceHealth>,
}
