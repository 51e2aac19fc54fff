//! Shares of a card's time.
//!
//! ```text
//! records + settings of cards   (the ledger, under its lock)
//!   ── plan ──> Timetable          (a file)
//!   ── Turn of this container ──>  (its mediator, one thread a card)
//!   ── when to open and close ──> Gate (its channels, off and on)
//! ```
//! Nobody schedules for others: whoever changes the ledger writes down who runs when, from which
//! instant on, and each mediator keeps its own container to that. Instants are microseconds of
//! `CLOCK_MONOTONIC`, which all processes of a time namespace share. Periods begin at whole
//! multiples of their length, so that two layouts of the same period agree about where it begins.
#![forbid(unsafe_code)]

mod connected_cards;
mod epochs;
mod gate;
pub mod layout;
pub mod meter;
pub mod pacer;
mod plan;
mod plan_settings;
pub mod policy;
pub mod priority;
mod residency;
pub mod round_robin;
mod shares;
pub mod soft;
mod status;
mod switches;
mod timeline;
mod timetable;
mod waits;
pub mod work;

pub use base::now_us;
pub use epochs::{CardEpochs, advance};
pub use gate::{Calls, Edge, EdgeError, Gate, Submitted};
pub use layout::LayoutError;
pub use pacer::MOST_WINDOW_LOSS_US;
pub use plan::{can_be_laid_out, plan};
pub use plan_settings::PlanSettings;
pub use residency::Residency;
pub use shares::Member;
pub use status::{CardStatus, Running, Status, StatusFile, ThreadPriority};
pub use switches::{Presence, Switch, SwitchBatch, SwitchLog, SwitchLogError};
pub use timeline::{Span, Timeline};
pub use timetable::{CardTurn, Epoch, Pass, Timetable, Turn, Window};
pub use waits::{WAIT_BOUNDS_US, Waits};
