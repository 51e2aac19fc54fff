//! `egpu park` and `egpu unpark`, with the feature `parking`: a container's memory leaves its card
//! for the host, and comes back. A prototype (docs/design/parking.md).

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixDatagram,
    },
    time::{Duration, Instant},
};

use mediator_process::{
    message,
    parking::{self, Request, Word},
};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nvidia_glue::inject;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sys::{Cuda, CudaPool};

use super::{container_name, error::CliError, exit::Exit, node};

/// Longest wait for a mediator.
const PATIENCE: Duration = Duration::from_secs(60);

/// The container.
#[derive(Debug, clap::Args)]
pub(super) struct ParkArguments {
    /// The container: its id or enough of its beginning, NAMESPACE/ID, POD, NAMESPACE/POD or
    /// NAMESPACE/POD/CONTAINER
    id: String,
    /// containerd's namespace or the pod's, where several have a container of that name
    #[arg(long, short)]
    namespace: Option<String>,
}

pub(super) fn run(arguments: &ParkArguments, request: Request) -> Result<Exit, CliError> {
    let config = crate::config::load()?;
    let records = node::records(&config)?;
    let record = container_name::find(&records, &arguments.id, arguments.namespace.as_deref())?;
    let card = record.cards.first().map(|card| card.uuid.clone()).unwrap_or_default();
    let usage_file = inject::usage_file(&config.state_dir, record.schedule_id())
        .map_err(|error| CliError::Park(io::Error::other(error)))?;
    let began = Instant::now();
    // Before anything waits for it.
    let cuda = Cuda::new(&card).map_err(CliError::Park)?;
    let started = began.elapsed();
    let word = converse(&cuda, &parking::socket_path(&usage_file), request).map_err(CliError::Park)?;
    match word {
        Word::Done { objects, bytes, whole_us, copy_us } => {
            let mib = bytes >> 20;
            print_line(&format!(
                "{mib} MiB in {objects} objects: {:.1} ms, of which the copy took {:.1}; the command {:.0} ms, of which CUDA's start {:.0}\n",
                ms(whole_us),
                ms(copy_us),
                began.elapsed().as_secs_f64() * 1e3,
                started.as_secs_f64() * 1e3,
            ))?;
            Ok(Exit::Success)
        }
        Word::Failed { text } => Err(CliError::Park(io::Error::other(text))),
        other => Err(CliError::Park(io::Error::other(format!("the mediator says {other:?}")))),
    }
}

fn print_line(text: &str) -> Result<(), CliError> {
    super::output::print(text)
}

#[expect(clippy::cast_precision_loss, reason = "times of some seconds, for people")]
fn ms(micros: u64) -> f64 {
    micros as f64 / 1e3
}

/// Asks the mediator, and copies for it until it is done.
fn converse(cuda: &Cuda, path: &std::path::Path, request: Request) -> io::Result<Word> {
    let (own, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    let door = UnixDatagram::unbound()?;
    door.connect(path)?;
    message::send(door.as_fd(), &request, Some(theirs.as_fd()))?;
    drop(theirs);
    let mut pool: Option<CudaPool> = None;
    let mut pieces: Vec<(OwnedFd, usize, usize)> = Vec::new();
    loop {
        match parking::hear(&own, PATIENCE)? {
            (Word::Needs { bytes }, _) => {
                let (file, made) = make_pool(cuda, bytes)?;
                pool = Some(made);
                parking::say(&own, &Word::Pool { bytes }, Some(&file))?;
            }
            (Word::Pool { bytes }, Some(file)) => {
                pool = Some(cuda.pool(&File::from(file), length(bytes)?)?);
                parking::say(&own, &Word::Pool { bytes }, None)?;
            }
            (Word::Piece { at, size }, Some(file)) => pieces.push((file, length(at)?, length(size)?)),
            (Word::Copy { is_out }, _) => {
                let pool = pool.as_ref().ok_or(io::ErrorKind::InvalidData)?;
                let copied = cuda.copy(pool, &pieces, is_out);
                pieces.clear();
                let word = match copied {
                    Ok(()) => Word::Copied,
                    Err(error) => Word::Failed { text: error.to_string() },
                };
                parking::say(&own, &word, None)?;
            }
            (last, _) => return Ok(last),
        }
    }
}

fn length(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Pages for the container's memory: huge ones, if the node has enough of them free.
fn make_pool(cuda: &Cuda, bytes: u64) -> io::Result<(File, CudaPool)> {
    let make = |flags: MemfdFlags| {
        let file = memfd_create("egpu-parked", MemfdFlags::CLOEXEC | flags)?;
        ftruncate(&file, bytes)?;
        let file = File::from(file);
        let pool = cuda.pool(&file, length(bytes)?)?;
        Ok((file, pool))
    };
    make(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB).or_else(|_: io::Error| make(MemfdFlags::empty()))
}
