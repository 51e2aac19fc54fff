//! Files of the driver, by capability.
//!
//! Libraries and binaries follow libnvidia-container (src/nvc_info.c), which filters by
//! `NVIDIA_DRIVER_CAPABILITIES`; files that came later follow nvidia-container-toolkit (pkg/nvcdi).

use runtime_config::request::DriverCapabilities as Caps;

/// CUDA's libraries; `video` needs them too.
const CUDA: Caps = Caps::COMPUTE.union(Caps::VIDEO);
/// OpenGL's and Vulkan's.
const GL: Caps = Caps::GRAPHICS.union(Caps::DISPLAY);

/// Names of libraries before `.so`, and the capabilities any of which brings them along.
///
/// Left out on purpose: the GLVND loaders (libGL, libEGL, ...) and libOpenCL, which are the
/// image's, and the settings dialog's libraries ([`EXCLUDED`]).
const LIBRARIES: &[(&str, Caps)] = &[
    ("libnvidia-ml", Caps::UTILITY),
    ("libnvidia-cfg", Caps::UTILITY),
    ("libnvidia-nscq", Caps::UTILITY),
    ("libcuda", CUDA),
    ("libcudadebugger", CUDA),
    ("libnvidia-opencl", CUDA),
    ("libnvidia-gpucomp", CUDA.union(GL)),
    ("libnvidia-ptxjitcompiler", CUDA),
    ("libnvidia-fatbinaryloader", CUDA),
    ("libnvidia-allocator", CUDA.union(GL)),
    ("libnvidia-compiler", CUDA),
    ("libnvidia-pkcs11", CUDA),
    ("libnvidia-pkcs11-openssl3", CUDA),
    ("libnvidia-nvvm", CUDA),
    ("libnvidia-nvvm70", CUDA),
    ("libnvidia-tileiras", CUDA),
    ("libvdpau_nvidia", Caps::VIDEO),
    ("libnvidia-encode", Caps::VIDEO),
    ("libnvidia-opticalflow", Caps::VIDEO),
    ("libnvcuvid", Caps::VIDEO),
    ("libnvidia-eglcore", GL),
    ("libnvidia-glcore", GL),
    ("libnvidia-tls", GL),
    ("libnvidia-glsi", GL),
    ("libnvidia-fbc", GL),
    ("libnvidia-ifr", GL),
    ("libnvidia-rtcore", GL),
    ("libnvoptix", GL),
    ("libGLX_nvidia", GL),
    ("libEGL_nvidia", GL),
    ("libGLESv2_nvidia", GL),
    ("libGLESv1_CM_nvidia", GL),
    ("libnvidia-glvkspirv", GL),
    ("libnvidia-cbl", GL),
    ("libnvidia-egl-gbm", GL),
    ("libnvidia-egl-wayland", GL),
    ("libnvidia-egl-wayland2", GL),
    ("libnvidia-egl-xcb", GL),
    ("libnvidia-egl-xlib", GL),
    ("libnvidia-vulkan-producer", GL),
    ("libglxserver_nvidia", Caps::DISPLAY),
    ("libnvidia-ngx", Caps::NGX),
];

/// Libraries whose version is not the driver's.
const OWN_VERSION: &[&str] = &[
    "libnvidia-egl-gbm",
    "libnvidia-egl-wayland",
    "libnvidia-egl-wayland2",
    "libnvidia-egl-xcb",
    "libnvidia-egl-xlib",
    "libnvidia-nvvm70",
];

/// Starts of names of libraries with the driver's version that no container needs.
const EXCLUDED: &[&str] = &["libnvidia-gtk", "libnvidia-wayland-client"];

/// Programs, and the capabilities any of which brings them along.
pub(super) const BINARIES: &[(&str, Caps)] = &[
    ("nvidia-smi", Caps::UTILITY),
    ("nvidia-debugdump", Caps::UTILITY),
    ("nvidia-persistenced", Caps::UTILITY),
    ("nv-fabricmanager", Caps::UTILITY),
    ("nvidia-cuda-mps-control", Caps::COMPUTE),
    ("nvidia-cuda-mps-server", Caps::COMPUTE),
    ("nvidia-xconfig", Caps::DISPLAY),
];

/// Configuration files below /etc or /usr/share: relative path, where it goes in the container, and
/// for whom.
pub(super) const CONFIG_FILES: &[(&str, &str, Caps)] = &[
    ("OpenCL/vendors/nvidia.icd", "/etc", Caps::COMPUTE),
    ("vulkan/icd.d/nvidia_icd.json", "/etc", GL),
    ("vulkan/icd.d/nvidia_icd.x86_64.json", "/etc", GL),
    ("vulkan/icd.d/nvidia_icd.aarch64.json", "/etc", GL),
    ("vulkan/icd.d/nvidia_layers.json", "/etc", GL),
    ("vulkan/implicit_layer.d/nvidia_layers.json", "/etc", GL),
    ("glvnd/egl_vendor.d/10_nvidia.json", "/usr/share", GL),
    ("egl/egl_external_platform.d/15_nvidia_gbm.json", "/usr/share", GL),
    ("egl/egl_external_platform.d/10_nvidia_wayland.json", "/usr/share", GL),
    ("egl/egl_external_platform.d/09_nvidia_wayland2.json", "/usr/share", GL),
    ("egl/egl_external_platform.d/20_nvidia_xcb.json", "/usr/share", GL),
    ("egl/egl_external_platform.d/20_nvidia_xlib.json", "/usr/share", GL),
    ("nvidia/nvoptix.bin", "/usr/share", GL),
    ("X11/xorg.conf.d/10-nvidia.conf", "/usr/share", Caps::DISPLAY),
    ("X11/xorg.conf.d/nvidia-drm-outputclass.conf", "/usr/share", Caps::DISPLAY),
];

/// Sockets of NVIDIA's daemons, without /run or /var/run.
///
/// Not among them: the MPS directory. Work that goes to an MPS server runs in a process outside of
/// the container that has every card open, so it is neither confined to the granted cards nor seen
/// by anything that enforces a quota.
pub(super) const SOCKETS: &[(&str, Caps)] =
    &[("nvidia-persistenced/socket", Caps::UTILITY), ("nvidia-fabricmanager/socket", Caps::UTILITY)];

/// The capabilities that bring the library `file` along in driver `version`; `None` if it is not
/// part of that driver.
///
/// A library with the driver's version that no list names is one that a newer driver has added;
/// others of its libraries may need it, so CUDA's and OpenGL's users both get it.
pub(super) fn library(file: &str, version: &str) -> Option<Caps> {
    let (name, suffix) = file.split_once(".so.")?;
    let listed = LIBRARIES.iter().find(|(listed, _)| *listed == name).map(|(_, capabilities)| *capabilities);
    if suffix == version {
        let excluded = !name.starts_with("lib") || EXCLUDED.iter().any(|start| name.starts_with(start));
        return listed.or_else(|| (!excluded).then_some(CUDA.union(GL)));
    }
    // `libnvidia-egl-gbm.so.1.1.2`, not the link `.so.1`; `libnvidia-nvvm70.so.4` has one number.
    let real = suffix.contains('.') || name == "libnvidia-nvvm70";
    let numeric = suffix.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    listed.filter(|_| real && numeric && OWN_VERSION.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_belong_to_capabilities() {
        for (file, expected) in [
            ("libcuda.so.580.159.04", Some(CUDA)),
            ("libcuda.so.570.1", None),
            ("libcuda.so.1", None),
            ("libcuda.so", None),
            ("libnvidia-ml.so.580.159.04", Some(Caps::UTILITY)),
            ("libnvidia-future.so.580.159.04", Some(CUDA.union(GL))),
            ("libnvidia-gtk3.so.580.159.04", None),
            ("libnvidia-egl-gbm.so.1.1.2", Some(GL)),
            ("libnvidia-egl-gbm.so.1", None),
            ("libnvidia-nvvm70.so.4", Some(CUDA)),
            ("libnvidia-nvvm70.so.x", None),
            ("libc.so.6", None),
            ("nvidia_drv.so.580.159.04", None),
        ] {
            assert_eq!(library(file, "580.159.04"), expected, "{file}");
        }
    }
}
