//! The parts of one container's OCI spec that may speak about GPUs, taken out of the spec by
//! whoever reads it.

use std::collections::BTreeMap;

/// The input of [`parse`](fn@crate::request::parse). All of it may come from a hostile image or
/// pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// `process.env` as it stands in the spec, `NAME=value`, duplicates included and in order.
    pub env: Vec<String>,
    /// The spec's annotations. containerd has merged the pod's into the container's already, the
    /// container's first.
    pub annotations: BTreeMap<String, String>,
    /// NVIDIA device nodes that are in `linux.devices` already (CDI, or a privileged container's
    /// copy of `/dev`).
    pub nodes: PresentNodes,
    /// The NVIDIA prestart hook, if the client put one into the spec.
    pub hook: Option<NvidiaHook>,
    /// Devices asked for by mounts at `/var/run/nvidia-container-devices/ID`: the `ID`s, without
    /// the `cdi/` and `imex/` forms of that path.
    pub volume_mount_devices: Vec<String>,
    /// Privileges that would let the container get around a quota.
    pub privileges: Privileges,
    /// A pod's sandbox (`io.kubernetes.cri.container-type = sandbox`): it gets nothing whatever it
    /// asks.
    pub is_sandbox: bool,
}

/// NVIDIA device nodes of a spec.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PresentNodes {
    /// Minor numbers of `/dev/nvidiaN`.
    pub cards: Vec<u32>,
    /// Minor numbers of `/dev/nvidia-caps/nvidia-capN`.
    pub capabilities: Vec<u32>,
    /// `/dev/nvidiactl` (or WSL's `/dev/dxg`) is there.
    pub control: bool,
}

/// An NVIDIA hook of a spec; the injection takes it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NvidiaHook {
    /// `nvidia-container-runtime-hook` or `nvidia-container-toolkit`: Docker's `--gpus`. It reads
    /// the environment.
    Environment,
    /// `nvidia-container-cli ... configure`, as `ctr run --gpus` and nerdctl write it.
    CommandLine {
        /// The items of `--device=0,1`; empty without that flag.
        devices: Vec<String>,
        /// `compute` for `--compute`, and so on.
        capabilities: Vec<String>,
        /// The values of `--require=`.
        requirements: Vec<String>,
    },
}

/// Privileges of a container that no quota survives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Privileges {
    /// CAP_SYS_ADMIN, in any of the five sets.
    pub cap_sys_admin: bool,
    /// CAP_SYS_MODULE, likewise.
    pub cap_sys_module: bool,
    /// CAP_SYS_RAWIO, likewise.
    pub cap_sys_rawio: bool,
    /// The container has a user namespace of its own: the driver does not honour its capabilities.
    pub user_namespace: bool,
    /// The host's uid 0 is somebody in that user namespace. Its files are then the container's to
    /// write, once its capabilities there have taken away the mounts that hide them or make them
    /// read-only.
    pub maps_host_root: bool,
    /// A device rule allows every character device (`privileged: true`).
    pub wildcard_device_rule: bool,
    /// The container sees the host's processes.
    pub host_pid_namespace: bool,
}

impl Privileges {
    /// Returns whether the container is privileged on the host: capabilities count in the initial
    /// user namespace only.
    pub const fn administers_host(self) -> bool {
        self.cap_sys_admin && !self.user_namespace
    }

    /// Returns, in words, the privileges that let the container get around a quota. Capabilities
    /// count in the initial user namespace only: the driver asks for them there. But who is the
    /// host's root needs none for `/proc/driver/nvidia/*/registry`, only that no mount hides them.
    pub fn against_a_quota(self) -> Vec<&'static str> {
        let in_initial_namespace = !self.user_namespace;
        let as_host_root = self.user_namespace && self.maps_host_root;
        let ways = [
            (self.administers_host(), "CAP_SYS_ADMIN"),
            (self.cap_sys_admin && as_host_root, "CAP_SYS_ADMIN in a user namespace that maps the host's uid 0"),
            (self.cap_sys_module && in_initial_namespace, "CAP_SYS_MODULE"),
            (self.cap_sys_rawio && in_initial_namespace, "CAP_SYS_RAWIO"),
            (self.wildcard_device_rule, "a device rule for every device"),
            (self.host_pid_namespace, "the host's process ids"),
        ];
        ways.into_iter().filter(|(has, _)| *has).map(|(_, way)| way).collect()
    }
}
