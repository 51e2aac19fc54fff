//! The container's objects in the driver and its open files.

mod chunked_free;
pub(crate) mod open_files;
pub(crate) mod topology;
