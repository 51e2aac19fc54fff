//! NVIDIA's hooks in a spec: what they ask for, and which of them go when egpu injects.

use runtime_config::request::NvidiaHook;
use serde_json::Value;

use super::items;

/// The stages at which a spec may have hooks.
pub(super) const STAGES: [&str; 6] =
    ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

/// NVIDIA program that a hook runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HookOwner {
    /// `nvidia-container-runtime-hook`, formerly `nvidia-container-toolkit`.
    RuntimeHook,
    /// `nvidia-container-cli`, by itself or through `containerd oci-hook --`: its arguments.
    ContainerCli(Vec<String>),
    /// `nvidia-cdi-hook`, or `nvidia-ctk hook`: written by a CDI spec.
    CdiHook,
}

/// The NVIDIA program that `hook` runs; `None` if it is somebody else's.
pub(super) fn owner(hook: &Value) -> Option<HookOwner> {
    let path = hook.get("path").and_then(Value::as_str).unwrap_or_default();
    let args = super::strings(hook.get("args"));
    match base_name(path) {
        "nvidia-container-runtime-hook" | "nvidia-container-toolkit" => return Some(HookOwner::RuntimeHook),
        "nvidia-cdi-hook" => return Some(HookOwner::CdiHook),
        "nvidia-ctk" if args.iter().any(|arg| arg == "hook") => return Some(HookOwner::CdiHook),
        "nvidia-container-cli" => return Some(HookOwner::ContainerCli(args.into_iter().skip(1).collect())),
        _ => {}
    }
    // `containerd oci-hook -- /usr/bin/nvidia-container-cli --load-kmods configure ...`
    let program = args.iter().position(|arg| arg == "--")? + 1;
    (base_name(args.get(program)?) == "nvidia-container-cli")
        .then(|| HookOwner::ContainerCli(args.into_iter().skip(program + 1).collect()))
}

/// Returns whether `hook` is NVIDIA's.
pub(crate) fn hook_is_nvidias(hook: &Value) -> bool {
    owner(hook).is_some()
}

/// Request of a spec's NVIDIA hooks. A command line says more than the hook that reads the
/// environment.
pub(super) fn request(spec: &Value) -> Option<NvidiaHook> {
    let mut environment = None;
    for stage in STAGES {
        for hook in items(spec.get("hooks").and_then(|hooks| hooks.get(stage))) {
            match owner(hook) {
                Some(HookOwner::ContainerCli(args)) if args.iter().any(|arg| arg == "configure") => {
                    return Some(command_line(&args));
                }
                Some(HookOwner::RuntimeHook) => environment = Some(NvidiaHook::Environment),
                _ => {}
            }
        }
    }
    environment
}

/// Reads `nvidia-container-cli [..] configure [..]` (libnvidia-container, src/cli/configure.c;
/// written by containerd's contrib/nvidia).
fn command_line(args: &[String]) -> NvidiaHook {
    const CAPABILITIES: [&str; 8] = ["compute", "utility", "video", "graphics", "display", "ngx", "compat32", "all"];
    let mut devices = Vec::new();
    let mut capabilities = Vec::new();
    let mut requirements = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let (name, value) = match arg.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (arg.as_str(), None),
        };
        match name {
            "--device" | "-d" => {
                let value = value.or_else(|| rest.next().cloned()).unwrap_or_default();
                devices.extend(value.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned));
            }
            "--require" | "-r" => requirements.extend(value.or_else(|| rest.next().cloned())),
            _ => {
                let capability = name.strip_prefix("--").filter(|name| CAPABILITIES.contains(name));
                capabilities.extend(capability.map(str::to_owned));
            }
        }
    }
    NvidiaHook::CommandLine { devices, capabilities, requirements }
}

/// Part of a path after the last slash.
fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
