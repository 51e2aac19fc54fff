//! Types that every layer shares: processes, containers, granted cards, quantities, clocks, and
//! files of the state directory.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod amounts;
pub mod block_file;
mod card_grant;
mod card_policy;
pub mod cgroup_tree;
mod clock;
mod container;
mod directory;
mod error_chain;
pub mod file_lock;
pub mod format;
pub mod grant_files;
mod granted_card;
mod in_root;
mod pci;
pub mod process;
mod refusal_code;
mod roots;
mod share;
mod surroundings;
mod throttle;
pub mod units;
pub mod usage;
pub mod waiting_thread;

pub use card_grant::{CardGrant, ComputeEnforcement, ComputeText, Enforcement, describe};
pub use card_policy::{CardPolicies, CardPolicy};
pub use clock::{now_us, real_time_ns};
pub use container::ContainerKey;
pub use directory::make_directory;
pub use error_chain::error_chain;
pub use format::Format;
pub use granted_card::GrantedCard;
pub use in_root::find_in_root;
pub use pci::{ParsePciBusIdError, PciBusId};
pub use process::{Pid, ProcessId};
pub use refusal_code::{Explanation, RefusalCode};
pub use roots::Roots;
pub use share::{ComputeShare, MAX_PERIOD_US, MIN_PERIOD_US, OverMemory, Period, Priority, PriorityMode};
pub use surroundings::Surroundings;
pub use throttle::Throttle;
pub use units::{Bytes, Percent, Weight};
