//! Shares of a card's time.
//!
//! ```text
//! records + settings of cards ── plan ──> Timetable ── Turn of this container ──> when to open and close ──> Gate
//!        (the ledger, under its lock)      (a file)            (its mediator, one thread a card)      (its channels, off and on)
//! ```
//! Nobody schedules for others: whoever changes the ledger writes down who runs when, from which instant on, and each mediator
//! keeps its own container to that. Instants are microseconds of `CLOCK_MONOTONIC`, which all processes of a node share, in
//! whatever time namespace of the host's they are. Periods begin at whole multiples of their length, so that two layouts of
//! the same period agree about where it begins.

mod course;
mod gate;
pub mod pacer;
pub mod priority;
mod residency;
pub mod soft;
mod status;
mod timetable;

pub use course::{Course, Span};
pub use gate::{Edge, EdgeError, Gate};
pub use residency::Residency;
pub use status::{CardStatus, Running, Status, StatusFile, now_us};
pub use timetable::{CardTurn, Epoch, Neighbour, Pass, Timetable, Turn, Window};
