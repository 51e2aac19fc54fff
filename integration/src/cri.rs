//! Pods as a kubelet makes them, through containerd's CRI plugin.

use std::{collections::HashMap, fs, os::unix::fs::PermissionsExt, path::Path};

use k8s_cri::v1::{
    Capability, ContainerConfig, ContainerMetadata, ContainerStats, ContainerStatsRequest, ContainerStatus,
    ContainerStatusRequest, CreateContainerRequest, ExecSyncRequest, ExecSyncResponse, IdMapping, ImageSpec,
    ImageStatusRequest, Int64Value, KeyValue, LinuxContainerConfig, LinuxContainerResources,
    LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount, NamespaceMode,
    NamespaceOption, PodSandboxConfig, PodSandboxMetadata, RemoveContainerRequest, RemovePodSandboxRequest,
    RunPodSandboxRequest, SecurityProfile, StartContainerRequest, StopContainerRequest, StopPodSandboxRequest,
    UpdateContainerResourcesRequest, UserNamespace, image_service_client::ImageServiceClient,
    runtime_service_client::RuntimeServiceClient,
};
use tonic::{Request, Status, transport::Channel};

use crate::{
    node::Node,
    rootfs::{CUDA_IMAGE, EVIL_IMAGE, IMAGE, PAUSE_IMAGE},
    user_namespace::HOST_ROOT,
    wait::{DEADLINE, eventually},
};

/// Runtime handler that pods name.
pub const HANDLER: &str = "egpu";

macro_rules! cri {
    ($node:expr, $method:ident, $request:expr) => {{
        let mut client: RuntimeServiceClient<Channel> = RuntimeServiceClient::new($node.client().channel());
        let mut request = Request::new($request);
        request.set_timeout(DEADLINE * 2);
        $node.client().block_on(client.$method(request)).map(tonic::Response::into_inner)
    }};
}

impl Node {
    /// Waits until the CRI plugin knows the images: it learns of an import by an event.
    #[track_caller]
    pub(crate) fn wait_for_images(&self) {
        for image in [IMAGE, CUDA_IMAGE, EVIL_IMAGE, PAUSE_IMAGE] {
            eventually("CRI knows an image", || self.image_id(image));
        }
    }

    /// Returns CRI's name of an image: the digest of its configuration.
    pub fn image_id(&self, image: &str) -> Option<String> {
        let mut client: ImageServiceClient<Channel> = ImageServiceClient::new(self.client().channel());
        let spec = ImageSpec { image: image.to_owned(), ..ImageSpec::default() };
        let request = ImageStatusRequest { image: Some(spec), verbose: false };
        let answer = self.client().block_on(client.image_status(request)).ok()?;
        answer.into_inner().image.map(|image| image.id)
    }

    /// Runs a pod's sandbox: host network, its own cgroup, annotations as given.
    pub fn pod(&self, name: &str, annotations: &[(&str, &str)]) -> Result<Pod<'_>, Status> {
        self.pod_with(name, annotations, NamespaceMode::Container, &format!("/{}", self.cgroup_parent()), None, false)
    }

    /// A pod whose containers may be privileged.
    pub fn privileged_pod(&self, name: &str, annotations: &[(&str, &str)]) -> Result<Pod<'_>, Status> {
        self.pod_with(name, annotations, NamespaceMode::Container, &format!("/{}", self.cgroup_parent()), None, true)
    }

    /// A pod with a user namespace (`hostUsers: false`), and a network that a stand-in for a plugin
    /// says there is.
    pub fn pod_with_users(&self, name: &str, annotations: &[(&str, &str)]) -> Result<Pod<'_>, Status> {
        self.open_to_all();
        let parent = format!("/{}", self.cgroup_parent());
        self.pod_with(name, annotations, NamespaceMode::Container, &parent, Some(users()), false)
    }

    /// The same, of which the containers see each other's processes (`shareProcessNamespace`).
    pub fn pod_sharing_processes(&self, name: &str) -> Result<Pod<'_>, Status> {
        self.pod_with(name, &[], NamespaceMode::Pod, &format!("/{}", self.cgroup_parent()), None, false)
    }

    /// A pod in a slice of systemd's, as from a kubelet with the systemd driver.
    pub fn pod_in_slice(&self, name: &str, slice: &str) -> Result<Pod<'_>, Status> {
        self.pod_with(name, &[], NamespaceMode::Container, &format!("/{slice}"), None, false)
    }

    fn pod_with(
        &self,
        name: &str,
        annotations: &[(&str, &str)],
        pid: NamespaceMode,
        cgroup_parent: &str,
        users: Option<UserNamespace>,
        privileged: bool,
    ) -> Result<Pod<'_>, Status> {
        let network = if users.is_some() { NamespaceMode::Pod } else { NamespaceMode::Node };
        let namespaces = NamespaceOption {
            network: network.into(),
            pid: pid.into(),
            userns_options: users,
            ..NamespaceOption::default()
        };
        let config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: name.to_owned(),
                uid: format!("uid-{name}"),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            log_directory: self.directory().join("pods").join(name).display().to_string(),
            annotations: to_map(annotations),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: cgroup_parent.to_owned(),
                security_context: Some(LinuxSandboxSecurityContext {
                    namespace_options: Some(namespaces.clone()),
                    privileged,
                    ..LinuxSandboxSecurityContext::default()
                }),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        };
        std::fs::create_dir_all(&config.log_directory).expect("create the pod's log directory");
        let request = RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: HANDLER.to_owned() };
        let id = cri!(self, run_pod_sandbox, request)?.pod_sandbox_id;
        self.track(&id);
        Ok(Pod { node: self, id, config, namespaces, removed: false })
    }
}

/// As a kubelet asks for them.
fn users() -> UserNamespace {
    let mapping = IdMapping { host_id: HOST_ROOT, container_id: 0, length: 65536 };
    UserNamespace { mode: NamespaceMode::Pod.into(), uids: vec![mapping], gids: vec![mapping] }
}

/// Installs a network plugin that makes nothing and reports success: a pod with a user namespace
/// cannot share the host's network.
pub(crate) fn write_network_plugin(directory: &Path) {
    const PLUGIN: &str = r#"#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}' ;;
ADD) echo '{"cniVersion":"1.0.0","interfaces":[{"name":"'$CNI_IFNAME'","sandbox":"'$CNI_NETNS'"}],"ips":[{"address":"10.9.8.7/24","interface":0}]}' ;;
esac
"#;
    let [programs, networks] = ["cni/bin", "cni/net.d"].map(|part| directory.join(part));
    for folder in [&programs, &networks] {
        fs::create_dir_all(folder).expect("create the network plugins' directory");
    }
    for name in ["loopback", "egpu-test"] {
        let program = programs.join(name);
        fs::write(&program, PLUGIN).expect("write a network plugin");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("make a network plugin executable");
    }
    let network = r#"{"cniVersion":"1.0.0","name":"egpu-test","plugins":[{"type":"egpu-test"}]}"#;
    fs::write(networks.join("10-egpu-test.conflist"), network).expect("write the network");
}

fn to_map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// A running sandbox. Dropped without [`Pod::remove`] it is removed.
#[derive(Debug)]
pub struct Pod<'node> {
    node: &'node Node,
    /// Id of the sandbox container.
    pub id: String,
    config: PodSandboxConfig,
    namespaces: NamespaceOption,
    removed: bool,
}

/// Levels of Kubernetes' PodSecurity: a container that has all that its level may have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PodSecurity {
    /// `privileged: true`, in a [`Node::privileged_pod`].
    Privileged,
    /// The kubelet's request where a pod says nothing.
    #[default]
    Baseline,
    /// Nothing of what has to be given up: every capability, root, and gaining rights.
    Restricted,
}

/// A container of a pod, to be created.
#[derive(Debug, Clone, Default)]
pub struct PodContainerConfig<'a> {
    /// Its image, if it is not [`IMAGE`].
    pub image: Option<&'a str>,
    /// Program and arguments; the image's default when empty.
    pub command: &'a [&'a str],
    /// Variables.
    pub env: &'a [(&'a str, &'a str)],
    /// Annotations of the container, as a device plugin or a kubelet would set them.
    pub annotations: &'a [(&'a str, &'a str)],
    /// Memory limit in bytes; 0 for none.
    pub memory: i64,
    /// With the test programs at [`PROGRAM`](crate::hostile::PROGRAM).
    pub armed: bool,
    /// Every capability.
    pub all_capabilities: bool,
    /// Its level.
    pub security: PodSecurity,
    /// A directory of the host's at `/volume`, its owners mapped if the pod has a user namespace.
    pub volume: Option<&'a Path>,
}

impl Pod<'_> {
    /// Creates and starts a container in the pod.
    pub fn start(&self, name: &str, config: &PodContainerConfig<'_>) -> Result<PodContainer<'_>, Status> {
        let container = self.create(name, config)?;
        container.start()?;
        Ok(container)
    }

    /// Creates a container in the pod: CRI knows it, and no shim.
    pub fn create(&self, name: &str, config: &PodContainerConfig<'_>) -> Result<PodContainer<'_>, Status> {
        let envs = config.env.iter().map(|&(key, value)| KeyValue { key: key.to_owned(), value: value.to_owned() });
        let programs = || Mount {
            container_path: crate::hostile::PROGRAM.to_owned(),
            host_path: crate::hostile::built().expect("the test programs").display().to_string(),
            readonly: true,
            ..Mount::default()
        };
        let users = self.namespaces.userns_options.clone().unwrap_or_default();
        let volume = config.volume.map(|path| Mount {
            container_path: "/volume".to_owned(),
            host_path: path.display().to_string(),
            uid_mappings: users.uids,
            gid_mappings: users.gids,
            ..Mount::default()
        });
        let request = CreateContainerRequest {
            pod_sandbox_id: self.id.clone(),
            config: Some(ContainerConfig {
                metadata: Some(ContainerMetadata { name: name.to_owned(), attempt: 0 }),
                image: Some(ImageSpec { image: config.image.unwrap_or(IMAGE).to_owned(), ..ImageSpec::default() }),
                command: config.command.iter().map(|&word| word.to_owned()).collect(),
                envs: envs.collect(),
                mounts: config.armed.then(programs).into_iter().chain(volume).collect(),
                annotations: to_map(config.annotations),
                log_path: format!("{name}.log"),
                linux: Some(LinuxContainerConfig {
                    resources: Some(LinuxContainerResources {
                        memory_limit_in_bytes: config.memory,
                        ..LinuxContainerResources::default()
                    }),
                    security_context: Some(self.security_context(config)),
                }),
                ..ContainerConfig::default()
            }),
            sandbox_config: Some(self.config.clone()),
        };
        let id = cri!(self.node, create_container, request)?.container_id;
        self.node.track(&id);
        Ok(PodContainer { pod: self, name: name.to_owned(), id })
    }

    fn security_context(&self, config: &PodContainerConfig<'_>) -> LinuxContainerSecurityContext {
        let all = || vec!["ALL".to_owned()];
        let is_restricted = config.security == PodSecurity::Restricted;
        let capabilities = Capability {
            add_capabilities: if config.all_capabilities { all() } else { Vec::new() },
            drop_capabilities: if is_restricted { all() } else { Vec::new() },
            ..Capability::default()
        };
        let context = LinuxContainerSecurityContext {
            namespace_options: Some(self.namespaces.clone()),
            capabilities: Some(capabilities),
            privileged: config.security == PodSecurity::Privileged,
            ..LinuxContainerSecurityContext::default()
        };
        if !is_restricted {
            return context;
        }
        LinuxContainerSecurityContext {
            run_as_user: Some(Int64Value { value: 1000 }),
            no_new_privs: true,
            // 0: the runtime's own.
            seccomp: Some(SecurityProfile::default()),
            ..context
        }
    }

    /// Stops and removes the pod with all its containers.
    #[track_caller]
    pub fn remove(mut self) {
        self.removed = true;
        self.try_remove().expect("remove the pod");
    }

    fn try_remove(&self) -> Result<(), Status> {
        cri!(self.node, stop_pod_sandbox, StopPodSandboxRequest { pod_sandbox_id: self.id.clone() })?;
        cri!(self.node, remove_pod_sandbox, RemovePodSandboxRequest { pod_sandbox_id: self.id.clone() })?;
        Ok(())
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        if !self.removed {
            let _ = self.try_remove();
        }
    }
}

/// A container of a pod.
#[derive(Debug)]
pub struct PodContainer<'pod> {
    pod: &'pod Pod<'pod>,
    name: String,
    pub id: String,
}

impl PodContainer<'_> {
    /// Starts it: its shim creates it, and lets its program run.
    pub fn start(&self) -> Result<(), Status> {
        cri!(self.pod.node, start_container, StartContainerRequest { container_id: self.id.clone() }).map(drop)
    }

    /// Runs a command in it.
    #[track_caller]
    pub fn exec(&self, command: &[&str]) -> ExecSyncResponse {
        let request = ExecSyncRequest {
            container_id: self.id.clone(),
            cmd: command.iter().map(|&word| word.to_owned()).collect(),
            timeout: 60,
        };
        cri!(self.pod.node, exec_sync, request).expect("exec in a pod's container")
    }

    /// Returns its status by CRI.
    #[track_caller]
    pub fn status(&self) -> ContainerStatus {
        let request = ContainerStatusRequest { container_id: self.id.clone(), verbose: false };
        cri!(self.pod.node, container_status, request).expect("container status").status.expect("a status")
    }

    /// Its resource use.
    #[track_caller]
    pub fn stats(&self) -> ContainerStats {
        let request = ContainerStatsRequest { container_id: self.id.clone() };
        cri!(self.pod.node, container_stats, request).expect("container stats").stats.expect("stats")
    }

    /// Changes its limits as a kubelet does.
    pub fn update(&self, linux: LinuxContainerResources) -> Result<(), Status> {
        let request = UpdateContainerResourcesRequest {
            container_id: self.id.clone(),
            linux: Some(linux),
            ..UpdateContainerResourcesRequest::default()
        };
        cri!(self.pod.node, update_container_resources, request).map(drop)
    }

    /// Its log, as CRI writes it.
    pub fn log(&self) -> String {
        let path = format!("{}/{}.log", self.pod.config.log_directory, self.name);
        std::fs::read_to_string(path).unwrap_or_default()
    }

    pub fn stop(&self, timeout: i64) -> Result<(), Status> {
        let request = StopContainerRequest { container_id: self.id.clone(), timeout };
        cri!(self.pod.node, stop_container, request).map(drop)
    }

    pub fn remove(&self) -> Result<(), Status> {
        cri!(self.pod.node, remove_container, RemoveContainerRequest { container_id: self.id.clone() }).map(drop)
    }
}
