//! Children that do something and say how it ended.

use std::io::{self, Read, Write};

use nix::sys::wait::{WaitStatus, waitpid};

use crate::sys;

/// Runs `work` in `count` children at once. Each ends when all have done their work, so that all
/// hold what they have got at one time. Exit codes in the order of the children; -1 for one that a
/// signal ended.
///
/// # Errors
/// When a child cannot be made or waited for.
pub fn at_once(count: usize, work: impl Fn(usize) -> (i32, Box<dyn std::any::Any>)) -> io::Result<Vec<i32>> {
    let (mut done, ready) = io::pipe()?;
    let (go, release) = io::pipe()?;
    let mut children = Vec::new();
    for index in 0..count {
        match sys::fork()? {
            Some(child) => children.push(child),
            None => {
                drop(release);
                drop(done);
                let (code, _held) = work(index);
                let (mut ready, mut go) = (ready, go);
                let _gone_if_the_parent_is = ready.write_all(&[0]);
                let _ends_when_the_parent_lets_go = go.read(&mut [0]);
                #[allow(clippy::exit, reason = "a child must not return into what its parent was doing")]
                std::process::exit(code);
            }
        }
    }
    drop((ready, go));
    let mut finished = vec![0; count];
    // A child that dies early writes nothing; the rest closing their ends is the end of it.
    let _short = done.read_exact(&mut finished);
    drop(release);
    children
        .into_iter()
        .map(|child| match waitpid(child, None)? {
            WaitStatus::Exited(_, code) => Ok(code),
            _ => Ok(-1),
        })
        .collect()
}
