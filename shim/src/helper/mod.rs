//! The helper: a single-threaded process, forked before the shim's first thread exists, that runs libcontainer.
//!
//! It forks one short-lived worker per operation. libcontainer must not run in the threaded shim: it forks without libc's
//! handlers, allocates in the child, and changes its caller's oom score, dumpable flag and directory.

pub mod protocol;
