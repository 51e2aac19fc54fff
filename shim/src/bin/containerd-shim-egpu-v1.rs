//! The containerd runtime `io.containerd.egpu.v1`: the program that containerd executes.
//!
//! It has no `main` of Rust's: three processes of it are executed for each container, and what the
//! standard library prepares before that takes a tenth of their processor time, to tell of an
//! overflowing stack on a stderr that nobody reads.
#![no_main]

use std::{env, error::Error, ffi::OsString, io::Write, path::Path, time::Duration};

use egpu_shim::{
    args::Invocation,
    delete::{answer_deleted, delete, sweep},
    info, logging, server,
    start::start,
    task::chain,
};
use runtime::blocking;
use sys::spans;

/// Time for what the shim still does with files when it ends.
const END_LIMIT: Duration = Duration::from_secs(5);

sys::program!(program);

/// Returns the exit code.
fn program() -> i32 {
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    match run(&args) {
        Ok(()) => 0,
        Err(error) => {
            // containerd shows what a shim command says on stderr. Nothing is left to do when that
            // fails, too.
            let _ = writeln!(std::io::stderr(), "containerd-shim-egpu-v1: {}", chain(&*error));
            1
        }
    }
}

fn run(args: &[OsString]) -> Result<(), Box<dyn Error>> {
    match Invocation::parse(args)? {
        Invocation::Version => Ok(info::print_version()?),
        Invocation::Info => Ok(info::print_info()?),
        Invocation::Start(identity) => {
            // Not stderr: containerd 1.6 takes all that `start` prints for its answer.
            spans::mark("start", &identity.id);
            logging::to_bundle(Path::new("."), identity.debug);
            Ok(start(identity)?)
        }
        Invocation::Delete { identity, bundle } => {
            spans::mark("delete command", &identity.id);
            if answer_deleted(&identity, bundle.as_deref())? {
                return Ok(());
            }
            // Before the first thread, and before the log, as its workers have their own.
            let zygote = ::runtime::spawn()?;
            logging::to_stderr(identity.debug);
            runtime()?.block_on(delete(&identity, bundle, zygote))?;
            Ok(())
        }
        Invocation::Sweep(identity) => {
            // Before the first thread.
            let zygote = ::runtime::spawn()?;
            logging::to_bundle(Path::new("."), identity.debug);
            runtime()?.block_on(sweep(&identity, zygote))?;
            Ok(())
        }
        Invocation::Helper => Ok(::runtime::zygote::serve()?),
        Invocation::Serve { identity, socket } => {
            spans::mark("serve", &identity.id);
            // Before the socket gets another number, which the helper would inherit.
            let zygote = ::runtime::spawn()?;
            // After the helper, whose mediators allocate from many threads at once: those with a
            // real-time priority would wait for others that hold the arena's lock.
            sys::share_one_arena();
            let prepared = server::prepare()?;
            let runtime = runtime()?;
            let served = runtime.block_on(server::serve(prepared, identity, socket, zygote));
            runtime.block_on(blocking::finish(END_LIMIT));
            Ok(served?)
        }
    }
}

/// One thread; an idle shim keeps no other.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // The reactor keeps room for so many; an idle shim seldom has more than one.
        .max_io_events_per_tick(64)
        .build()
}
