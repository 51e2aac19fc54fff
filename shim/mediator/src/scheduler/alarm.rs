//! Sleep of a card's thread: until an instant of the clock, or until it is woken.

use std::{io, os::fd::AsFd};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        time::TimeSpec,
        timer::{Expiration, TimerSetTimeFlags},
        timerfd::{ClockId, TimerFd, TimerFlags},
    },
};

/// Wakes a thread that sleeps on an [`Alarm`].
#[derive(Debug)]
pub(super) struct Waker(EventFd);

impl Waker {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?))
    }

    pub(super) fn wake(&self) {
        // Full means that it is awake.
        let _ = self.0.write(1);
    }
}

/// An instant of `CLOCK_MONOTONIC` at which a descriptor becomes readable.
#[derive(Debug)]
pub(super) struct Alarm(TimerFd);

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Ok(Self(TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?))
    }

    /// Sets the instant; `None`: never. The former instant is forgotten, even if it has expired.
    pub(super) fn set(&self, at_us: Option<u64>) -> io::Result<()> {
        match at_us {
            // 0 would switch it off.
            Some(at_us) => {
                let part = |us: u64| i64::try_from(us).unwrap_or(i64::MAX);
                let at_us = at_us.max(1);
                let at = TimeSpec::new(part(at_us / 1_000_000), part(at_us % 1_000_000 * 1_000));
                self.0.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
            }
            None => self.0.unset()?,
        }
        Ok(())
    }

    /// Sleeps until the instant that was set, or until it is woken.
    pub(super) fn sleep(&self, waker: &Waker) -> io::Result<()> {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN), PollFd::new(waker.0.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Nothing to read: the alarm expired.
        let _ = waker.0.read();
        Ok(())
    }

    pub(super) fn fd(&self) -> &TimerFd {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use schedule::now_us;

    use super::*;

    #[test]
    fn who_is_woken_does_not_wait_for_the_alarm() {
        let (alarm, waker) = (Alarm::new().unwrap(), Waker::new().unwrap());
        alarm.set(Some(u64::MAX)).unwrap();
        waker.wake();
        waker.wake();
        alarm.sleep(&waker).unwrap();
        let at = now_us() + 1_000;
        alarm.set(Some(at)).unwrap();
        alarm.sleep(&waker).unwrap();
        assert!(now_us() >= at, "it was woken twice and slept once");
        alarm.set(Some(0)).unwrap();
        alarm.sleep(&waker).unwrap();
    }
}
