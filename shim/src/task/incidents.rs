//! Incidents of a container while it runs, for the node's events: so seldom that no container
//! pushes others' out.
//!
//! Of each kind the first is recorded at once, and what follows is recorded in sums, after ten
//! seconds, then twenty, and so on to ten minutes. Each warning is a kind of its own, and so is
//! each bound besides cards' memory that a container met: one that comes all the time hides no
//! other.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use ledger::{
    ContainerKey, ContainerName,
    event_log::{Entry, EventLog, Kind},
};
use runtime::blocking::detached;
use runtime_config::request::PodContainer;
use sys::sync::lock;
use tokio::time::sleep;

const FIRST_WINDOW: Duration = Duration::from_secs(10);
const LONGEST_WINDOW: Duration = Duration::from_secs(600);
/// So many texts are summed up each by itself; others together.
const MOST_TEXTS: usize = 16;

/// One container's.
#[derive(Debug)]
pub(super) struct Incidents {
    log: EventLog,
    container: ContainerKey,
    pod: Option<PodContainer>,
    /// Its cards' UUIDs, and their indices on the node.
    cards: Vec<(String, u32)>,
    /// Of what something was recorded a short while ago, and what came since.
    since: Mutex<HashMap<Subject, Option<Entry>>>,
}

/// Kind of an incident, and its text if it is summed up by its text.
type Subject = (Kind, String);

impl Incidents {
    pub(super) fn new(
        log: EventLog,
        (container, pod): (ContainerKey, Option<PodContainer>),
        cards: Vec<(String, u32)>,
    ) -> Arc<Self> {
        Arc::new(Self { log, container, pod, cards, since: Mutex::default() })
    }

    /// Records that it has happened `count` times.
    pub(super) fn record(self: &Arc<Self>, kind: Kind, card: Option<&str>, count: u64, text: &str) {
        let (card, text) = self.by_number(card, text);
        let index = self.cards.iter().find(|(uuid, _)| card == Some(uuid.as_str())).map(|(_, index)| *index);
        let name = ContainerName { key: &self.container, pod: self.pod.as_ref() };
        let entry = Entry::new(kind, name).on_card(card).counting(count).with_text(&text);
        let entry = Entry { card_index: index, ..entry };
        if let Some((subject, first)) = self.take(kind, entry) {
            self.write(vec![first]);
            let incidents = Arc::clone(self);
            tokio::spawn(async move { incidents.record_sums(&subject).await });
        }
    }

    /// Returns the card that a text is about, which may be the only one that it names, and the text
    /// with the numbers of cards in place of their UUIDs.
    fn by_number<'a>(&'a self, card: Option<&'a str>, text: &str) -> (Option<&'a str>, String) {
        let mut named = self.cards.iter().filter(|(uuid, _)| text.contains(uuid.as_str()));
        let only = || named.next().filter(|_| named.next().is_none()).map(|(uuid, _)| uuid.as_str());
        let card = card.or_else(only);
        let numbered = self.cards.iter().fold(text.to_owned(), |text, (uuid, index)| {
            let number = format!("card {index}");
            text.replace(&format!("card {uuid}"), &number).replace(uuid.as_str(), &number)
        });
        (card, numbered)
    }

    /// `Some`: to be recorded at once, and what it is summed up with from now on.
    fn take(&self, kind: Kind, entry: Entry) -> Option<(Subject, Entry)> {
        let mut since = lock(&self.since);
        let has_own = kind == Kind::Warning || (kind == Kind::Denied && entry.card.is_none());
        let mut subject = (kind, if has_own { entry.text.clone() } else { String::new() });
        if !since.contains_key(&subject) && since.len() >= MOST_TEXTS {
            subject.1.clear();
        }
        match since.get_mut(&subject) {
            None => {
                since.insert(subject.clone(), None);
                Some((subject, entry))
            }
            Some(waiting) => {
                let before = waiting.as_ref().map_or(0, |waiting| waiting.count);
                let count = entry.count.saturating_add(before);
                *waiting = Some(entry.counting(count));
                None
            }
        }
    }

    /// Returns the sum of what came since the last entry; `None`: nothing did, and the next is the
    /// first again.
    fn due(&self, subject: &Subject) -> Option<Entry> {
        let mut since = lock(&self.since);
        let waiting = since.get_mut(subject).and_then(Option::take);
        if waiting.is_none() {
            since.remove(subject);
        }
        waiting
    }

    async fn record_sums(&self, subject: &Subject) {
        let mut window = FIRST_WINDOW;
        loop {
            sleep(window).await;
            let Some(entry) = self.due(subject) else { return };
            self.write(vec![entry]);
            window = (window * 2).min(LONGEST_WINDOW);
        }
    }

    /// Writes the entries that wait: nothing more happens to the container.
    pub(super) fn finish(&self) {
        let waiting: Vec<Entry> = lock(&self.since).values_mut().filter_map(Option::take).collect();
        if !waiting.is_empty() {
            self.write(waiting);
        }
    }

    fn write(&self, entries: Vec<Entry>) {
        let log = self.log.clone();
        detached(move || log.write(entries));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incidents(log: EventLog) -> Arc<Incidents> {
        let (containerd, namespace, id) = ("/run/a.sock".to_owned(), "default".to_owned(), "a".to_owned());
        Incidents::new(log, (ContainerKey { containerd, namespace, id }, None), vec![("GPU-1".to_owned(), 3)])
    }

    #[test]
    fn the_first_is_reported_at_once_and_the_others_in_sums() {
        let incidents = incidents(EventLog::disabled());
        let entry = |kind, count| Entry::new(kind, &incidents.container).on_card(Some("GPU-1")).counting(count);
        let denied = (Kind::Denied, String::new());
        assert!(incidents.take(Kind::Denied, entry(Kind::Denied, 1)).is_some());
        assert!(incidents.take(Kind::Killed, entry(Kind::Killed, 1)).is_some(), "each kind by itself");
        for _ in 0..1000 {
            assert!(incidents.take(Kind::Denied, entry(Kind::Denied, 3)).is_none());
        }
        assert_eq!(incidents.due(&denied).map(|entry| entry.count), Some(3000));
        assert!(incidents.take(Kind::Denied, entry(Kind::Denied, 2)).is_none(), "it goes on");
        assert_eq!(incidents.due(&denied).map(|entry| entry.count), Some(2));
        assert_eq!(incidents.due(&denied), None);
        assert!(incidents.take(Kind::Denied, entry(Kind::Denied, 1)).is_some(), "it was over");
    }

    #[test]
    fn a_warning_that_comes_all_the_time_hides_no_other() {
        let incidents = incidents(EventLog::disabled());
        let warning = |text: &str| Entry::new(Kind::Warning, &incidents.container).with_text(text);
        assert!(incidents.take(Kind::Warning, warning("chatty")).is_some());
        assert!(incidents.take(Kind::Warning, warning("chatty")).is_none());
        assert!(incidents.take(Kind::Warning, warning("quiet")).is_some(), "another one");
        let due = incidents.due(&(Kind::Warning, "chatty".to_owned()));
        assert_eq!(due.map(|entry| (entry.text, entry.count)), Some(("chatty".to_owned(), 1)));
        // However many texts there are, so many events at once, and one for the others.
        let told = (0..1000).filter(|number| incidents.take(Kind::Warning, warning(&number.to_string())).is_some());
        assert_eq!(told.count(), MOST_TEXTS - 2 + 1);
    }

    #[test]
    fn bounds_are_told_each_by_itself_and_beside_memory() {
        let incidents = incidents(EventLog::disabled());
        let denied = |text: &str| Entry::new(Kind::Denied, &incidents.container).with_text(text);
        assert!(incidents.take(Kind::Denied, denied("too much").on_card(Some("GPU-1"))).is_some());
        assert!(incidents.take(Kind::Denied, denied("too much again").on_card(Some("GPU-1"))).is_none());
        assert!(incidents.take(Kind::Denied, denied("channels")).is_some());
        assert!(incidents.take(Kind::Denied, denied("pinned memory")).is_some());
    }

    #[test]
    fn a_card_is_told_by_its_number() {
        let incidents = incidents(EventLog::disabled());
        for (card, text, expected) in [
            (None, "it is lost (card GPU-1): 0xf", (Some("GPU-1"), "it is lost (card 3): 0xf")),
            (Some("GPU-1"), "3 GiB of GPU-1", (Some("GPU-1"), "3 GiB of card 3")),
            (None, "no processor", (None, "no processor")),
        ] {
            assert_eq!(incidents.by_number(card, text), (expected.0, expected.1.to_owned()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_an_hour_is_a_few_events_and_none_is_lost() {
        let state = tempfile::tempdir().unwrap();
        let incidents = incidents(EventLog::new(state.path()));
        for _ in 0..3600 {
            incidents.record(Kind::Denied, Some("GPU-1"), 5, "too much");
            sleep(Duration::from_secs(1)).await;
        }
        incidents.record(Kind::Denied, Some("GPU-1"), 5, "too much");
        incidents.finish();
        let path = ledger::event_log::directory(state.path()).join(ledger::event_log::CURRENT);
        let mut written = (0, 0);
        // The last are being written by other threads, on which the paused clock does not wait.
        for _ in 0..60_000 {
            if written.1 == 18_005 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let whole = text.lines().filter_map(|line| ledger::event_log::parse(line.as_bytes()));
            let whole = whole.inspect(|entry| assert_eq!(entry.card_index, Some(3)));
            written = whole.fold((0, 0), |(events, count), entry| (events + 1, count + entry.count));
        }
        assert_eq!(written.1, 18_005);
        assert!(written.0 < 20, "{written:?}");
    }
}
