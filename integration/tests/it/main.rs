//! Tests of egpu on real containerd.
//!
//! `cargo test -p integration --test it [FILTER]`. A name is `containerd-VERSION/module::test`.
//! `EGPU_TEST_CONTAINERD=1.6,2.1` narrows the versions down,
//! `EGPU_TEST_RUNTIME=io.containerd.runc.v2` runs the plain task tests against runc,
//! `EGPU_TEST_BIN=DIR` takes shim and `egpu` from elsewhere, `EGPU_TEST_NEXT_BIN=DIR` those of the
//! next version; `EGPU_TEST_FIXTURES=DIR` keeps the files of a real run. `EGPU_TEST_REAL_CARDS=1`
//! runs what can be run on the machine's own cards, with `--test-threads 1` as they are shared; the
//! rest is skipped, and says why.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and reports by printing"
)]

mod against_runc;
mod attacks;
mod case;
mod claims;
mod compute;
mod ctr;
mod docker;
mod events;
mod examples;
#[cfg(target_arch = "x86_64")]
mod faults;
mod gpu;
mod images;
mod install;
mod memory;
mod metrics;
mod page;
mod pods;
mod recovery;
mod renewal;
mod systemd;
mod task;
mod waiting;

/// Not here.
#[cfg(not(target_arch = "x86_64"))]
mod faults {
    use crate::case::Case;

    pub(crate) fn cases() -> Vec<Case> {
        let why = || Err("integration/src/injector/registers.rs knows those of x86_64 alone".to_owned());
        vec![Case::egpu("faults::injected", |_| {}).once().needing(why)]
    }
}

use integration::ContainerdRelease;
use libtest_mimic::Arguments;

fn main() -> std::process::ExitCode {
    let mut arguments = Arguments::from_args();
    // Each test starts daemons and looks at the whole machine's processes: a few at a time unless
    // said otherwise.
    arguments.test_threads.get_or_insert(2);
    integration::hostile::look_at_real_cards();
    let releases = ContainerdRelease::all();
    let cases: Vec<case::Case> = [
        task::cases(),
        against_runc::cases(),
        pods::cases(),
        claims::cases(),
        images::cases(),
        gpu::cases(),
        waiting::cases(),
        memory::cases(),
        attacks::cases(),
        compute::cases(),
        recovery::cases(),
        faults::cases(),
        renewal::cases(),
        events::cases(),
        metrics::cases(),
        page::cases(),
        systemd::cases(),
        ctr::cases(),
        docker::cases(),
        examples::cases(),
        install::cases(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut trials = case::trials(&releases, &cases);
    trials.extend(install::trials(&releases));
    libtest_mimic::run(&arguments, trials).exit_code()
}
