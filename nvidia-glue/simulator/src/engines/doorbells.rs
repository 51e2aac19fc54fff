//! Work of programs, passed through the content of the card's node, since nothing can be submitted
//! here.
//!
//! On a real card a program puts work into its channel's ring, moves `GP_PUT` in the channel's
//! memory and writes the channel's work submit token to the doorbell page; no call is made. On a
//! simulated one it writes to the file that stands for `/dev/nvidiaN`, at the token's place
//! ([`SIZE`] bytes each, numbers in little-endian order):
//!
//! | offset | who writes | what |
//! |---|---|---|
//! | 0 | the program | nanoseconds of engine time of all work that it has submitted so far; all ones: work without end |
//! | 8 | the program | `CLOCK_MONOTONIC` in nanoseconds, when the last of it was submitted |
//! | 16 | the driver, whenever the token is asked for | nanoseconds of engine time that the channel got |
//! | 24 | likewise | as of when |
//!
//! What is written is seen at the next event on the card, and counts from the instant that it
//! names; of two submissions between two events the later names it for both. Everybody who has the
//! node may write anywhere in it, as into the file itself: simulated cards are for trying egpu, not
//! for tenants.

use std::{fs::File, io, os::unix::fs::FileExt};

use super::super::bytes::{get_u64, put_u64};
use super::time::Submitted;

/// Bytes of a channel's place.
const SIZE: usize = 64;
const EXECUTED: u64 = 16;

/// The content of a card's node.
#[derive(Debug)]
pub(super) struct Doorbells(pub(super) File);

impl Doorbells {
    fn place(token: u32) -> u64 {
        u64::from(token) * SIZE as u64
    }

    /// Clears the slot of a new channel.
    pub(super) fn clear(&self, token: u32) -> io::Result<()> {
        self.0.write_all_at(&[0; SIZE], Self::place(token))
    }

    /// Reports the time that a channel has executed.
    pub(super) fn tell(&self, token: u32, executed_ns: u64, now_ns: u64) -> io::Result<()> {
        let mut bytes = [0; 16];
        put_u64(&mut bytes, 0, executed_ns);
        put_u64(&mut bytes, 8, now_ns);
        self.0.write_all_at(&bytes, Self::place(token) + EXECUTED)
    }

    /// Resets the submitted work of a channel to `work_ns`.
    pub(super) fn rewind(&self, token: u32, work_ns: u64) -> io::Result<()> {
        self.0.write_all_at(&work_ns.to_le_bytes(), Self::place(token))
    }

    /// Returns the work that has been submitted to the channels with tokens below `end`.
    pub(super) fn read(&self, end: u32) -> io::Result<Vec<Submitted>> {
        let mut bytes = vec![0; end as usize * SIZE];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.0.read_at(rest, filled as u64) {
                // Somebody has shortened the file: there is no work beyond.
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let submitted = |place: &[u8]| Submitted { work_ns: get_u64(place, 0), at_ns: get_u64(place, 8) };
        Ok(bytes.chunks_exact(SIZE).map(submitted).collect())
    }
}
