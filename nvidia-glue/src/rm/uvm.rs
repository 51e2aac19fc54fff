//! The ioctls of `/dev/nvidia-uvm`.
