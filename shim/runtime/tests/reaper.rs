//! The reaper in a process of its own: it waits for any child, so tests that have children cannot
//! be beside it.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    process::{Command, Stdio},
    sync::Arc,
};

use runtime::reaper::Reaper;

#[tokio::test(flavor = "current_thread")]
async fn exits_reach_their_claimants() {
    let reaper = Arc::new(Reaper::default());
    let running = tokio::spawn(Arc::clone(&reaper).run().unwrap());
    let spawn = |script: &str| {
        let mut command = Command::new("/bin/sh");
        i32::try_from(command.args(["-c", script]).stdin(Stdio::null()).spawn().unwrap().id()).unwrap()
    };

    // Ended before it was claimed.
    let expectation = reaper.expect();
    let early = spawn("exit 7");
    while !has_ended(early) {
        tokio::task::yield_now().await;
    }
    // A stray that ends while something is expected stays, and goes with the expectation.
    let stray = spawn("exit 1");
    while !has_ended(stray) {
        tokio::task::yield_now().await;
    }
    let early = expectation.claim(early);
    assert_eq!(early.await.unwrap().status, 7);
    assert!(has_ended(stray), "not reaped while something is expected");
    drop(expectation);
    assert!(!std::path::Path::new(&format!("/proc/{stray}")).exists(), "reaped afterwards");

    // Ended after it was claimed, by an ordinary and by a real-time signal.
    for (script, status) in [("kill -KILL $$", 137), ("kill -35 $$; sleep 60", 128 + 35)] {
        let expectation = reaper.expect();
        let exit = expectation.claim(spawn(script));
        drop(expectation);
        assert_eq!(exit.await.unwrap().status, status, "{script}");
    }
    running.abort();
}

fn has_ended(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
}
