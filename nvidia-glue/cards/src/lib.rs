//! The node's cards: what they are, how they are connected, whether they may be used.
//!
//! [`discover()`] asks the driver (or the configuration, for simulated cards),
//! [`Inventory::resolve`] turns what a request names into one of them, [`Inventory::distance`] says
//! how near two of them are.

mod cache;
mod discover;
pub mod driver_files;
mod health;
mod inventory;
pub mod kernel_module;
mod nvidia;
mod pci;
mod resolve;
mod simulated;
mod state_file;
mod sys;
#[cfg(test)]
mod tests;
mod topology;

pub use base::Roots;
pub use discover::persistence;
pub use discover::{DiscoverError, cached, discover, memory, processes, refresh, sensors};
pub use health::{SimulatedFault, SimulatedFaults};
pub use inventory::{Card, Distance, Health, Inventory, MigDevice, SimulatedEdges, Source};
pub use nvidia::{CardMemory, DriverError, ProcessMemory, SensorReading, Sensors};
pub use resolve::{CardOrMig, ResolveError};
pub use simulated::{SimulatedError, SimulatedNodes, SimulatedNodesError, make_simulated_nodes};
