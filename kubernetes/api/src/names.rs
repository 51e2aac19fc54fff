//! Names of objects, fields and files.

/// The DRA driver, and the device class of all of its cards.
pub const DRIVER: &str = "gpu.egpu.io";
/// The extended resource by which a pod gets whole cards without a claim of its own.
pub const EXTENDED_RESOURCE: &str = "egpu.io/gpu";
/// API version of [`GpuConfig`](crate::GpuConfig).
pub const CONFIG_API_VERSION: &str = "egpu.io/v1";
/// Kind of [`GpuConfig`](crate::GpuConfig).
pub const CONFIG_KIND: &str = "GpuConfig";

/// Capacities of a card.
pub mod capacity {
    /// Bytes of memory.
    pub const MEMORY: &str = "memory";
    /// Percent of the card's time.
    pub const COMPUTE: &str = "compute";
    /// Places for containers.
    pub const CONTAINERS: &str = "containers";
    /// Percent that a claim consumes which names none: what containers without a cap keep. It is
    /// no cap.
    pub const UNNAMED_COMPUTE: u8 = 5;
}

/// Attributes of a card; those without a domain belong to [`DRIVER`].
pub mod attribute {
    /// `GPU-...`.
    pub const UUID: &str = "uuid";
    /// NVIDIA's name of the model.
    pub const PRODUCT_NAME: &str = "productName";
    /// `Tesla`, `GeForce`, ...
    pub const BRAND: &str = "brand";
    /// `Hopper`, ...
    pub const ARCHITECTURE: &str = "architecture";
    /// A version: `9.0.0`.
    pub const COMPUTE_CAPABILITY: &str = "cudaComputeCapability";
    pub const DRIVER_VERSION: &str = "driverVersion";
    /// A version: the newest CUDA that the driver serves.
    pub const CUDA_DRIVER_VERSION: &str = "cudaDriverVersion";
    /// `gpu`.
    pub const TYPE: &str = "type";
    /// NVML's index.
    pub const INDEX: &str = "index";
    /// The N of `/dev/nvidiaN`.
    pub const MINOR: &str = "minor";
    /// The policy by which the card is shared.
    pub const POLICY: &str = "policy";
    /// The means by which quotas are held: `mediated`.
    pub const ISOLATION: &str = "isolation";
    /// The card is a simulated one.
    pub const SIMULATED: &str = "simulated";
    /// Kubernetes' own name of the PCI address.
    pub const PCI_BUS_ID: &str = "resource.kubernetes.io/pciBusID";
    /// Kubernetes' own name of the PCIe root.
    pub const PCIE_ROOT: &str = "resource.kubernetes.io/pcieRoot";
    /// Kubernetes' own name of the NUMA node.
    pub const NUMA_NODE: &str = "resource.kubernetes.io/numaNode";
}

/// Taints of a card.
pub mod taint {
    /// The card has failed (`NoExecute`), or works with limits (`NoSchedule`).
    pub const UNHEALTHY: &str = "gpu.egpu.io/unhealthy";
    /// An administrator is emptying the card.
    pub const DRAIN: &str = "gpu.egpu.io/drain";
}

/// Annotation of a Node: the cards to drain, as names of devices between commas, or `*` for all.
pub const DRAIN_ANNOTATION: &str = "egpu.io/drain";

/// Annotation of a pod for the scheduler's extender: `binpack` or `spread` over nodes. It asks for
/// no card.
pub const NODE_PLACEMENT_ANNOTATION: &str = "egpu.io/node-placement";

/// Vendor and class of the CDI devices of claims.
pub const CDI_KIND: &str = "egpu.io/claim";

/// Label of a Node on which containers run under egpu.
pub const READY_LABEL: &str = "egpu.io/ready";

/// Beginning of the names of devices.
const DEVICE_PREFIX: &str = "gpu-";

/// Returns the device name of the card whose node is `/dev/nvidiaMINOR`.
pub fn device_name(minor: u32) -> String {
    format!("{DEVICE_PREFIX}{minor}")
}

/// Returns the minor number of the card of that device name.
pub fn device_minor(name: &str) -> Option<u32> {
    let digits = name.strip_prefix(DEVICE_PREFIX)?;
    let minor = digits.parse().ok()?;
    (device_name(minor) == name).then_some(minor)
}

/// Returns the CDI device of one request of a claim, without its kind.
pub fn cdi_device(claim_uid: &str, request: &str) -> String {
    format!("{claim_uid}-{request}")
}

/// Returns the name of the CDI file of a claim.
pub fn cdi_file(claim_uid: &str) -> String {
    format!("{}-{claim_uid}.json", CDI_KIND.replace('/', "-"))
}

/// Returns the claim whose CDI file has that name.
pub fn claim_of_cdi_file(name: &str) -> Option<&str> {
    let uid = name.strip_prefix("egpu.io-claim-")?.strip_suffix(".json")?;
    (!uid.is_empty()).then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_and_minors_are_one_to_one() {
        for (name, minor) in [
            ("gpu-0", Some(0)),
            ("gpu-12", Some(12)),
            ("gpu-012", None),
            ("gpu-+1", None),
            ("gpu-", None),
            ("gpu-1-mig", None),
            ("card-1", None),
            ("gpu-4294967296", None),
        ] {
            assert_eq!(device_minor(name), minor, "{name}");
            if let Some(minor) = minor {
                assert_eq!(device_name(minor), name);
            }
        }
    }

    #[test]
    fn cdi_files_and_claims_are_one_to_one() {
        assert_eq!(cdi_file("c0ffee"), "egpu.io-claim-c0ffee.json");
        assert_eq!(claim_of_cdi_file("egpu.io-claim-c0ffee.json"), Some("c0ffee"));
        assert_eq!(claim_of_cdi_file("egpu.io-claim-.json"), None);
        assert_eq!(claim_of_cdi_file("nvidia.com-gpu.json"), None);
        assert_eq!(cdi_device("c0ffee", "gpu"), "c0ffee-gpu");
    }
}
