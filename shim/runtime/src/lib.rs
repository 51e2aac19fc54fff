//! The helper: a single-threaded process, forked before the shim's first thread exists, that runs
//! libcontainer.
//!
//! It forks one short-lived worker per operation. What libcontainer forks or changes must not run
//! in the threaded shim: it forks without libc's handlers, allocates in the child, and changes its
//! caller's oom score, dumpable flag and directory. Start and delete do none of that but for their
//! hooks, and a fork costs as much as they do: the shim runs them itself ([`client`]).
//!
//! ```text
//! shim ── operation ──> zygote ── fork (CLONE_PARENT) ──> worker ── libcontainer ──> init
//!   ^                                                       |
//!   └──────── Hello, WorkerReply on the call's socket ──────┘
//! ```
//! Zygote, worker and init are the shim's children.
#![forbid(unsafe_code)]

mod absence;
pub mod blocking;
pub mod capabilities;
pub mod cgroup;
mod cgroup_mounts;
pub mod client;
pub mod containerd;
mod create;
mod delegation;
pub mod delete;
mod device_filter;
mod devices;
mod exec;
mod fence;
mod freed;
mod hook_namespaces;
mod hooks;
mod id_maps;
mod ids;
mod image;
mod init_failure;
mod intermediate;
mod inventory;
mod launch;
mod log_capture;
mod mapped_rootfs;
mod masked_paths;
mod mounts;
mod namespaces;
mod private_mounts;
mod privileges;
mod proc_driver;
mod process;
mod program;
pub mod protocol;
pub mod reaper;
mod refused;
mod rlimits;
mod rootfs;
mod rootfs_setup;
mod rules;
mod seccomp_listener;
mod start;
mod state;
mod stdio;
mod worker;
mod working_directory;
pub mod zygote;
pub mod zygote_supervisor;

pub use client::{ContainerProcess, RuntimeClient, RuntimeError};
pub use rootfs::MountError;
pub use state::StateError;
pub use sys::frame::FrameError;
pub use zygote::{Zygote, spawn};
pub use zygote_supervisor::ZygoteSupervisor;
