//! Priority of the threads that schedule: the lowest real-time one, or else the highest of the
//! others.
//!
//! Taking one needs a privilege that the mediator drops, and threads inherit it from the thread
//! that starts them. So the mediator takes it while it is privileged, starts one thread that keeps
//! it, starts those that schedule and becomes the last of them, and gives it back for itself.

use std::{collections::VecDeque, io, sync::Arc, thread};

use rustix::process::{getpriority_process, setpriority_process};
use schedule::ThreadPriority;
use sys::sync::Monitor;

use super::{STACK, card::CardScheduler, clock::Monotonic};
use crate::outbox::Outbox;

/// Priority that the calling thread has taken, and that the threads it starts inherit.
#[derive(Debug)]
pub(super) struct TakenPriority {
    pub(super) granted: ThreadPriority,
    /// The thread's nice value before.
    nice: i32,
}

/// Takes the priority for the calling thread; to be called while the mediator is privileged.
pub(super) fn take() -> TakenPriority {
    // 0: this thread.
    let nice = getpriority_process(None).unwrap_or(0);
    let granted = match sys::become_real_time() {
        Ok(()) => ThreadPriority::RealTime,
        Err(_) if setpriority_process(None, -20).is_ok() => ThreadPriority::Nice,
        Err(_) => ThreadPriority::None,
    };
    TakenPriority { granted, nice }
}

/// Starts the threads that schedule.
///
/// No channel of the standard library: a receiver spins while the sender is in the middle of a
/// message. A real-time one keeps its processor from the sender then, until the kernel kills it.
#[derive(Debug)]
pub(super) struct ThreadStarter(Arc<Monitor<VecDeque<Box<CardScheduler<Monotonic>>>>>);

impl TakenPriority {
    /// Hands the priority over to a thread of its own, which starts those of as many `cards`; the
    /// calling one has what it had before.
    pub(super) fn hand_over(self, cards: usize, outbox: &Arc<Outbox>) -> io::Result<ThreadStarter> {
        let nice = self.nice;
        let queue = Arc::new(Monitor::default());
        let (queued, outbox) = (Arc::clone(&queue), Arc::clone(outbox));
        let start = move || start_all(&queued, cards, &outbox);
        thread::Builder::new().name("starter".into()).stack_size(STACK).spawn(start)?;
        sys::become_ordinary()?;
        setpriority_process(None, nice)?;
        Ok(ThreadStarter(queue))
    }
}

impl ThreadStarter {
    /// Starts a card's thread.
    pub(super) fn start(&self, scheduler: Box<CardScheduler<Monotonic>>) {
        self.0.update(|queue| queue.push_back(scheduler));
    }
}

fn start_all(queue: &Monitor<VecDeque<Box<CardScheduler<Monotonic>>>>, mut cards: usize, outbox: &Arc<Outbox>) {
    while cards > 0 {
        let Some(scheduler) = queue.wait_while(|queue| queue.is_empty()).pop_front() else { continue };
        cards -= 1;
        if cards == 0 {
            sys::set_name(c"scheduler");
            run(*scheduler, outbox);
        }
        let of_thread = Arc::clone(outbox);
        let run = move || run(*scheduler, &of_thread);
        if let Err(error) = thread::Builder::new().name("scheduler".into()).stack_size(STACK).spawn(run) {
            outbox.fail(format!("the scheduler of a card cannot be started: {error}"));
        }
    }
}

fn run(scheduler: CardScheduler<Monotonic>, outbox: &Outbox) -> ! {
    outbox.fail(format!("the scheduler of a card has failed: {}", scheduler.run()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::unistd::{geteuid, getppid};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use testing::skipped;

    use super::*;
    use crate::privileges::{Role, drop_privileges};

    const NAME: &str = "scheduler::thread_priority::tests::nobody_takes_a_priority_once_rights_are_given_up";
    const IN_CHILD: &str = "EGPU_TEST_GIVES_UP_RIGHTS";

    /// Privileges are dropped for good, so another process, of this test alone, does that.
    #[test]
    fn nobody_takes_a_priority_once_rights_are_given_up() {
        if std::env::var_os(IN_CHILD).is_some() {
            return gives_up_rights();
        }
        if !geteuid().is_root() {
            return skipped("needs root: who has no rights cannot give them up");
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", NAME, "--nocapture", "--test-threads", "1"]).env(IN_CHILD, "1");
        let output = child.output().unwrap();
        let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && printed.contains("1 passed"), "{}: {printed}", output.status);
    }

    /// Drops privileges as a mediator does.
    fn gives_up_rights() {
        let taken = take();
        if taken.granted == ThreadPriority::None {
            skipped("this machine gives nobody a priority");
        }
        // Limits as the parent may have left them. Without the right to set them there is nothing
        // to lower.
        for (resource, most) in [(Resource::Rtprio, 99), (Resource::Nice, 40)] {
            let _ = setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
        }
        let outbox = Outbox::of_tests();
        drop_privileges(Role::Mediator { shim: getppid().as_raw() }).unwrap();
        let _starter = taken.hand_over(1, &outbox).unwrap();
        has_none_and_takes_none();
        thread::spawn(has_none_and_takes_none).join().unwrap();
    }

    fn has_none_and_takes_none() {
        // From the third on, as the second may contain anything: 19 is the nice value, 40 the
        // real-time priority, 41 the policy.
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let field = |number: usize| fields[number - 3].parse::<i32>().unwrap();
        assert_eq!((field(40), field(41)), (0, libc::SCHED_OTHER), "an ordinary thread: {stat}");
        // The mediator's own filter knows no such call.
        assert_eq!(sys::become_real_time().unwrap_err().raw_os_error(), Some(libc::ENOSYS));
        // This call it allows, to give a priority back.
        assert!(setpriority_process(None, field(19) - 1).is_err(), "a nice value below {}", field(19));
        for resource in [Resource::Rtprio, Resource::Nice] {
            assert_eq!(getrlimit(resource), Rlimit { current: Some(0), maximum: Some(0) }, "{resource:?}");
            let more = Rlimit { current: Some(1), maximum: Some(1) };
            assert!(setrlimit(resource, more).is_err(), "{resource:?}");
        }
    }
}
