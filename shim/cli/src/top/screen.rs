//! The terminal: taken, painted, and given back whatever happens.

use std::{
    collections::VecDeque,
    io,
    mem::ManuallyDrop,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender},
    thread,
    time::Duration,
};

use nix::sys::signal::{SigSet, Signal, raise};
use ratatui::{
    DefaultTerminal,
    crossterm::{
        cursor::Show,
        event::{self, Event, KeyEvent},
        execute,
        terminal::disable_raw_mode,
    },
};
use rustix::termios::{QueueSelector, tcflush};

use super::{
    changes, gather, input,
    state::{Effect, State},
    view::{self, Theme},
};
use crate::{error::CliError, exit::Exit};

/// News that wait at most: a terminal that takes nothing must not make them pile up.
const MOST_NEWS: usize = 32;
/// Time in which a screen that is not stuck ends after a signal.
const ENDING: Duration = Duration::from_secs(1);

/// News for the screen.
enum Message {
    Look(gather::Look),
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    /// The terminal cannot be read any more.
    Lost(io::Error),
    Signal(Signal),
}

/// Gives the terminal back when dropped. A panic does so, too, by the hook that ratatui sets.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        // Nobody is left to hear of a failure.
        let _ = ratatui::try_restore().and_then(|()| execute!(io::stdout(), Show));
    }
}

/// Shows the screen until the operator leaves it, or a signal ends it.
pub(super) fn run(interval: Duration, theme: &Theme) -> Result<Exit, CliError> {
    let (sender, messages) = mpsc::sync_channel(MOST_NEWS);
    // Before there is another thread, so that every thread has them blocked.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    signals.thread_block().map_err(|error| CliError::Screen(error.into()))?;
    let ended_by = {
        let _restored = Restored;
        // Dropped, it would complain on a stderr that may be gone, and so abort.
        let mut terminal = ManuallyDrop::new(ratatui::try_init().map_err(CliError::Screen)?);
        let wake = start_threads(interval, signals, &sender);
        show(&mut terminal, theme, State::new(interval), (&messages, &wake))?
    };
    if let Some(signal) = ended_by {
        // As it would have been without a screen.
        let _ = raise(signal).and_then(|()| signals.thread_unblock());
    }
    Ok(Exit::Success)
}

fn start_threads(interval: Duration, signals: SigSet, sender: &SyncSender<Message>) -> Sender<()> {
    let (wake, woken) = mpsc::channel();
    let looks = sender.clone();
    thread::spawn(move || gather::run(interval, &woken, |look| looks.send(Message::Look(look)).is_ok()));
    let keys = sender.clone();
    thread::spawn(move || {
        loop {
            let message = match event::read() {
                Ok(Event::Key(key)) => Message::Key(key),
                Ok(Event::Resize(..)) => Message::Resized,
                Ok(_) => continue,
                Err(error) => Message::Lost(error),
            };
            let is_lost = matches!(message, Message::Lost(_));
            if keys.send(message).is_err() || is_lost {
                return;
            }
        }
    });
    let sender = sender.clone();
    thread::spawn(move || {
        if let Ok(signal) = signals.wait() {
            let _ = sender.try_send(Message::Signal(signal));
            thread::sleep(ENDING);
            // The screen waits for a terminal that takes nothing.
            let _ = disable_raw_mode();
            let _ = raise(signal).and_then(|()| signals.thread_unblock());
        }
    });
    wake
}

/// Paints whenever there is news. Returns the signal that ends it; `None`: the operator does.
fn show(
    terminal: &mut DefaultTerminal,
    theme: &Theme,
    mut state: State,
    (messages, wake): (&Receiver<Message>, &Sender<()>),
) -> Result<Option<Signal>, CliError> {
    // A look takes milliseconds.
    let patience = state.interval * 2 + Duration::from_secs(3);
    loop {
        terminal.draw(|frame| view::draw(&state, theme, frame.buffer_mut())).map_err(CliError::Screen)?;
        let first = match messages.recv_timeout(patience) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => {
                state.miss();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        };
        let mut news: VecDeque<Message> = std::iter::once(first).chain(messages.try_iter()).collect();
        while let Some(message) = news.pop_front() {
            let key = match message {
                Message::Look(look) => {
                    state.see(look);
                    continue;
                }
                Message::Resized => continue,
                Message::Lost(error) => return Err(CliError::Screen(error)),
                Message::Signal(signal) => return Ok(Some(signal)),
                Message::Key(key) => key,
            };
            match input::action(key, &state.mode).and_then(|action| state.act(action)) {
                None => {}
                Some(Effect::Quit) => return Ok(None),
                Some(Effect::Redraw) => redraw(terminal)?,
                Some(Effect::Preview(request)) => {
                    let answer = changes::preview(&request);
                    state.previewed(request, answer);
                    let _ = tcflush(io::stdin(), QueueSelector::IFlush);
                    forget_keys(&mut news, messages);
                }
                Some(Effect::Apply(request)) => {
                    let answer = changes::apply(&request);
                    state.applied(&request, answer);
                    // A warning may have gone to stderr.
                    redraw(terminal)?;
                    let _ = wake.send(());
                }
            }
        }
    }
}

/// Forgets the keys among the news and those that are still to be received: what was typed before
/// an answer is shown does not confirm it.
fn forget_keys(news: &mut VecDeque<Message>, messages: &Receiver<Message>) {
    news.extend(messages.try_iter());
    news.retain(|message| !matches!(message, Message::Key(_)));
}

/// Has the next frame painted whole.
fn redraw(terminal: &mut DefaultTerminal) -> Result<(), CliError> {
    let area = terminal.size().map_err(CliError::Screen)?;
    terminal.resize(area.into()).map_err(CliError::Screen)
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyCode;

    use super::*;

    #[test]
    fn what_was_typed_before_an_answer_is_forgotten_and_nothing_else() {
        let (sender, messages) = mpsc::sync_channel(MOST_NEWS);
        let yes = || Message::Key(KeyEvent::from(KeyCode::Char('y')));
        for message in [yes(), Message::Signal(Signal::SIGTERM), yes()] {
            sender.send(message).unwrap();
        }
        let mut news = VecDeque::from([Message::Resized, yes()]);
        forget_keys(&mut news, &messages);
        let left: Vec<Message> = news.into();
        assert!(matches!(left[..], [Message::Resized, Message::Signal(Signal::SIGTERM)]));
        assert!(messages.try_recv().is_err());
    }
}
