//! The ioctls of `/dev/nvidiactl` and `/dev/nvidiaN`.
