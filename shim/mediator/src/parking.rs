//! Parking by hand, with the feature `parking`: what `egpu park` and `egpu unpark` say to a
//! mediator, and the thread that does it.
//!
//! ```text
//!  egpu ── datagram with one end of a socket pair ──> mediator
//!       <── Needs | Pool ──┐
//!       ── Pool + pages ──>│ over the pair
//!       <── Piece + file, ..., Copy ── Copied ──>
//!       <── Done | Failed ─┘
//! ```
//!
//! The command copies: it has the host's libcuda and a context of its own for that moment. If it
//! ends in the middle, the mediator goes back to where it was.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixDatagram,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use mediator::{Copier, Copying, ParkError, Parked, Piece, StillParked};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::stat::{Mode, umask},
};
use serde::{Deserialize, Serialize};

use super::{mediation::Mediation, message, message::FromMediator};

/// Longest time in which the command answers.
const PATIENCE: Duration = Duration::from_secs(30);

/// Request to a mediator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// To take its container off the card.
    Park,
    /// To bring it back.
    Unpark,
}

/// Message between command and mediator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// So many bytes of the host's memory are needed.
    Needs { bytes: u64 },
    /// Here they are, as a file; or that the command has mapped those of the mediator.
    Pool { bytes: u64 },
    /// Memory of the card's, as a file to import.
    Piece {
        /// Its place in the pool.
        at: u64,
        /// Bytes.
        size: u64,
    },
    /// Copy all pieces.
    Copy {
        /// From the card to the host.
        is_out: bool,
    },
    /// All are copied, and let go.
    Copied,
    /// It is over.
    Done {
        /// Objects that were moved.
        objects: usize,
        /// Their bytes.
        bytes: u64,
        /// From the first call that waited, or the first step back, to the end; microseconds.
        whole_us: u64,
        /// The copy's part of that.
        copy_us: u64,
    },
    /// It was not done.
    Failed {
        /// The reason.
        text: String,
    },
}

/// Path of the socket of a mediator whose usage file this is.
pub fn socket_path(usage_file: &Path) -> PathBuf {
    usage_file.with_file_name("park")
}

/// Opens the socket, before the mediator has a mount namespace of its own.
pub(super) fn open(usage_file: &Path) -> io::Result<UnixDatagram> {
    let path = socket_path(usage_file);
    let _ = std::fs::remove_file(&path);
    // The mediator has one thread still. Only root may send.
    let before = umask(Mode::from_bits_truncate(0o177));
    let socket = UnixDatagram::bind(path);
    umask(before);
    socket
}

/// Receives a word, for so long.
pub fn hear(socket: &OwnedFd, limit: Duration) -> io::Result<(Word, Option<OwnedFd>)> {
    let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    if poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], timeout)? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    message::receive(socket.as_fd())?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Sends a word.
pub fn say(socket: &OwnedFd, word: &Word, file: Option<&File>) -> io::Result<()> {
    message::send(socket.as_fd(), word, file.map(AsFd::as_fd))
}

/// The command, as a copier.
struct Command<'a> {
    socket: &'a OwnedFd,
    copied: Duration,
}

impl Copier for Command<'_> {
    fn copy(&mut self, direction: Copying, pieces: Vec<Piece>) -> io::Result<()> {
        let began = Instant::now();
        for piece in &pieces {
            say(self.socket, &Word::Piece { at: piece.at, size: piece.size }, Some(&piece.file.file))?;
        }
        say(self.socket, &Word::Copy { is_out: direction == Copying::Out }, None)?;
        let answer = hear(self.socket, PATIENCE)?.0;
        self.copied = began.elapsed();
        match answer {
            Word::Copied => Ok(()),
            Word::Failed { text } => Err(io::Error::other(text)),
            other => Err(io::Error::other(format!("the command says {other:?}"))),
        }
    }
}

/// State of a container that is parked.
struct Away<'s> {
    parked: Parked<'s>,
    pages: File,
    length: u64,
}

/// Does what commands ask for, one after the other.
fn run(mediation: &Mediation, door: &UnixDatagram) {
    let mut away = None;
    loop {
        let asked = message::receive::<Request>(door.as_fd());
        let Ok(Some((request, Some(socket)))) = asked else { continue };
        let result;
        (away, result) = match (request, away.take()) {
            (Request::Park, None) => match park(mediation, &socket) {
                Ok((now, word)) => (Some(now), Ok(word)),
                Err(text) => (None, Err(text)),
            },
            (Request::Unpark, Some(before)) => unpark(mediation, &socket, before),
            (Request::Park, before) => (before, Err("the container is parked already".to_owned())),
            (Request::Unpark, None) => (None, Err("the container is not parked".to_owned())),
        };
        // A command that is gone hears nothing.
        let _ = say(&socket, &result.unwrap_or_else(|text| Word::Failed { text }), None);
    }
}

fn text(mediation: &Mediation, error: &ParkError) -> String {
    let text = base::error_chain(error).to_string();
    if matches!(error, ParkError::Lost) {
        mediation.outbox.put(FromMediator::EndContainer { text: text.clone() }, None);
    }
    text
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn park<'m>(mediation: &'m Mediation, socket: &OwnedFd) -> Result<(Away<'m>, Word), String> {
    let io = |error: io::Error| format!("the command does not answer: {error}");
    let bytes = mediation.session.bytes_to_park().map_err(|error| text(mediation, &error))?;
    say(socket, &Word::Needs { bytes }, None).map_err(io)?;
    let (Word::Pool { bytes: length }, Some(pages)) = hear(socket, PATIENCE).map_err(io)? else {
        return Err("the command brings no pages".to_owned());
    };
    let pages = File::from(pages);
    let mut command = Command { socket, copied: Duration::ZERO };
    let parked = mediation.session.park(&pages, length, &mut command).map_err(|error| text(mediation, &error))?;
    let (objects, bytes) = parked.away();
    let word = Word::Done { objects, bytes, whole_us: micros(parked.took()), copy_us: micros(command.copied) };
    Ok((Away { parked, pages, length }, word))
}

/// Returns what is left parked, too.
fn unpark<'m>(mediation: &'m Mediation, socket: &OwnedFd, away: Away<'m>) -> (Option<Away<'m>>, Result<Word, String>) {
    let Away { parked, pages, length } = away;
    let brought = say(socket, &Word::Pool { bytes: length }, Some(&pages)).and_then(|()| hear(socket, PATIENCE));
    if !matches!(brought, Ok((Word::Pool { .. }, _))) {
        let text = "the command does not map the pages".to_owned();
        return (Some(Away { parked, pages, length }), Err(text));
    }
    let (objects, bytes) = parked.away();
    let mut command = Command { socket, copied: Duration::ZERO };
    match mediation.session.unpark(parked, &mut command) {
        Ok(took) => {
            let (whole_us, copy_us) = (micros(took), micros(command.copied));
            (None, Ok(Word::Done { objects, bytes, whole_us, copy_us }))
        }
        Err(failed) => {
            let StillParked { parked, error } = *failed;
            (parked.map(|parked| Away { parked, pages, length }), Err(text(mediation, &error)))
        }
    }
}

/// Starts the thread.
pub(super) fn start(mediation: &Arc<Mediation>, door: UnixDatagram) -> io::Result<()> {
    let mediation = Arc::clone(mediation);
    std::thread::Builder::new().name("parking".into()).spawn(move || run(&mediation, &door))?;
    Ok(())
}
