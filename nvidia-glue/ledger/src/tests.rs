//! Tests of the ledger as a whole.

mod admission;
mod crash;
mod floors;
mod formats;
mod orphans;
mod owners;
mod properties;
mod race;
mod refusals;
mod timetable;
mod vendor;
mod waiting;
mod waiting_model;
