//! The mediator's log: each event is a sentence, which the shim logs and records for people.

use std::{
    error::Error,
    fmt::{Debug, Write as _},
    sync::Arc,
};

use base::error_chain;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};

use super::{message::FromMediator, outbox::Outbox};

/// Sends the log of this process to the shim.
pub(super) fn to_shim(outbox: &Arc<Outbox>) {
    // The first to call wins, and none has called before: the process was forked for this.
    let _ = tracing::subscriber::set_global_default(Sentences(Arc::clone(outbox)));
}

#[derive(Debug)]
struct Sentences(Arc<Outbox>);

impl Subscriber for Sentences {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let mut sentence = Sentence::default();
        event.record(&mut sentence);
        self.0.put(FromMediator::Log { warning: true, text: sentence.text() }, None);
    }

    // No span is enabled.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Parts of an event: its message, what it concerns, and the error with its causes.
#[derive(Debug, Default)]
struct Sentence {
    message: String,
    concerns: Vec<String>,
    error: Option<String>,
}

impl Sentence {
    fn text(self) -> String {
        let mut text = self.message;
        if !self.concerns.is_empty() {
            let _ = write!(text, " ({})", self.concerns.join(", "));
        }
        if let Some(error) = self.error {
            let _ = write!(text, ": {error}");
        }
        text
    }

    fn add(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.message = value,
            "error" => self.error = Some(value),
            name => self.concerns.push(format!("{} {value}", name.replace('_', " "))),
        }
    }
}

impl Visit for Sentence {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.add(field, error_chain(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::{io, os::fd::AsFd as _};

    use super::*;
    use crate::message;

    #[test]
    fn an_event_is_a_sentence() {
        let (shim, own) = sys::frame::pair().unwrap();
        let outbox = Arc::new(Outbox::new(own).unwrap());
        let error = io::Error::other(io::Error::from_raw_os_error(libc::ENOSPC));
        tracing::subscriber::with_default(Sentences(Arc::clone(&outbox)), || {
            let error: &dyn Error = &error;
            tracing::info!("nobody is told");
            tracing::warn!(error, card = "GPU-a", "the card does not put the container back");
            tracing::warn!(%error, "the file cannot be read");
        });
        assert!(outbox.flush().unwrap());
        let mut texts = Vec::new();
        for _ in 0..2 {
            match message::receive::<FromMediator>(shim.as_fd()).unwrap().unwrap().0 {
                FromMediator::Log { warning: true, text } => texts.push(text),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(
            texts,
            [
                "the card does not put the container back (card GPU-a): No space left on device (os error 28)",
                "the file cannot be read: No space left on device (os error 28)",
            ]
        );
    }
}
