//! The decision log, `/var/log/egpu.log`: what was asked, what was granted or why not, every
//! reserve, release and rollback. One line a step, `TIME event=NAME container=NAMESPACE/ID
//! pod=NAMESPACE/POD/CONTAINER key=value ...`, `pod` where it is one's.
//!
//! People read it and `grep` does: a value is bare where it is plain, else quoted, with everything
//! that is not printable ASCII escaped, so that nothing that a container's author wrote can end a
//! line or look like another field.
//!
//! What a decision comes to is an event of the node's as well ([`crate::event_log`]); the steps on
//! the way to it are not.

use std::{
    fmt,
    fs::OpenOptions,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub(crate) use base::error_chain as chain;
use base::{Bytes, amounts::human, waiting_thread::WaitingThreads};
use jiff::Timestamp;
use nix::fcntl::OFlag;

use crate::{
    ContainerName,
    event_log::{Entry, EventLog, Kind},
};

/// Wait for the log's disk, which may hang. The lines are written when it answers, if the process
/// lives then.
const DISK_PATIENCE: Duration = Duration::from_secs(1);

static THREADS: WaitingThreads = WaitingThreads::new();

/// Longest value, in bytes as escaped; what is beyond is cut off and marked with `...`.
const MAX_VALUE: usize = 2048;

/// Kind of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A container asks for cards.
    Ask,
    /// The request could not be meant as it is written, or not on this node. Nothing had been
    /// reserved.
    Invalid,
    /// The request is not believed; the container starts without a GPU.
    Ignore,
    /// One card's part was set aside.
    Reserve,
    /// One card's part could not be set aside.
    Refuse,
    /// There is no room, and the container waits for some.
    Wait,
    /// One card's part was given back because another part, or a later step, failed.
    Rollback,
    /// The grant is written down.
    Grant,
    /// The create ended without a container; nothing of it is left.
    Destroy,
    /// The container exists.
    Bind,
    /// A container is about to use requests of claims.
    Attach,
    /// It no longer does.
    Detach,
    /// One card's part was given back at the container's end.
    Release,
    /// A grant was taken back whose shim is gone.
    Reclaim,
    /// A container's limits were changed while it runs.
    Change,
    /// A card's policy or period was set.
    Policy,
    /// Something that an operator may want to know.
    Warn,
}

impl Event {
    /// Name in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Invalid => "invalid",
            Self::Ignore => "ignore",
            Self::Reserve => "reserve",
            Self::Refuse => "refuse",
            Self::Wait => "wait",
            Self::Rollback => "rollback",
            Self::Grant => "grant",
            Self::Destroy => "destroy",
            Self::Bind => "bind",
            Self::Attach => "attach",
            Self::Detach => "detach",
            Self::Release => "release",
            Self::Reclaim => "reclaim",
            Self::Change => "change",
            Self::Policy => "policy",
            Self::Warn => "warn",
        }
    }

    /// Kind of the node event that it makes; `None`: it is an intermediate step.
    fn kind(self) -> Option<Kind> {
        match self {
            Self::Ask | Self::Reserve | Self::Destroy | Self::Bind | Self::Attach | Self::Detach => None,
            Self::Invalid | Self::Refuse => Some(Kind::Refused),
            Self::Ignore => Some(Kind::Ignored),
            Self::Wait => Some(Kind::Waiting),
            Self::Rollback => Some(Kind::RolledBack),
            Self::Grant => Some(Kind::Admitted),
            Self::Release => Some(Kind::Released),
            Self::Reclaim => Some(Kind::Reclaimed),
            Self::Change => Some(Kind::Changed),
            Self::Policy => Some(Kind::Policy),
            Self::Warn => Some(Kind::Warning),
        }
    }
}

/// One line, without its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    text: String,
    /// The same as an event, its text in parts.
    entry: Option<(Entry, Vec<String>)>,
}

impl Line {
    /// A line about one container.
    pub fn new<'a>(event: Event, container: impl Into<ContainerName<'a>>) -> Self {
        let container = container.into();
        let entry = event.kind().map(|kind| Entry::new(kind, container));
        let line = Self::begin(event, entry).field("container", container.key);
        match container.pod {
            Some(pod) => line.field("pod", pod),
            None => line,
        }
    }

    fn begin(event: Event, entry: Option<Entry>) -> Self {
        Self { text: format!("event={}", event.name()), entry: entry.map(|entry| (entry, Vec::new())) }
    }

    /// A line about one card.
    pub(crate) fn about_card(event: Event, uuid: &str) -> Self {
        let entry = event.kind().map(|kind| Entry::about_card(kind, Some(uuid)));
        Self::begin(event, entry).field("uuid", uuid)
    }

    /// A line about the node.
    pub(crate) fn about_node(event: Event) -> Self {
        Self::begin(event, event.kind().map(|kind| Entry::about_card(kind, None)))
    }

    /// The last line of a create that failed: nothing of the container is left.
    pub(crate) fn destroyed<'a>(container: impl Into<ContainerName<'a>>) -> Self {
        Self::new(Event::Destroy, container).field("result", "container destroyed").field("reserved", "nothing")
    }

    /// Adds `key=value`. `key` is a word of ours.
    #[must_use]
    pub fn field(self, key: &'static str, value: impl fmt::Display) -> Self {
        let value = value.to_string();
        self.put(key, &value, value.clone())
    }

    /// Adds `key=AMOUNT`, exact here and rounded in the event.
    pub(crate) fn amount(self, key: &'static str, amount: Bytes) -> Self {
        self.put(key, &amount.to_string(), human(amount))
    }

    /// Adds `key=value` to the line, and what the event has of it.
    fn put(mut self, key: &'static str, value: &str, for_event: String) -> Self {
        self.text.push(' ');
        self.text.push_str(key);
        self.text.push('=');
        push_escaped(&mut self.text, value);
        if let Some((entry, parts)) = &mut self.entry {
            match key {
                // What the entry has of its own, and what finds other lines of the log.
                "container" | "pod" | "grant" | "order" | "shim" => {}
                "card" => entry.card_index = value.parse().ok(),
                "uuid" => entry.card = Some(for_event),
                "why" | "warning" | "action" => parts.push(for_event),
                _ => parts.push(format!("{key} {for_event}")),
            }
        }
        self
    }

    fn entry(&self) -> Option<Entry> {
        let (entry, parts) = self.entry.as_ref()?;
        Some(entry.clone().with_text(&parts.join(", ")))
    }
}

fn push_escaped(line: &mut String, value: &str) {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/@%+,-[]()".contains(&byte);
    if !value.is_empty() && value.len() <= MAX_VALUE && value.bytes().all(plain) {
        line.push_str(value);
        return;
    }
    line.push('"');
    let start = line.len();
    for character in value.chars() {
        if line.len() - start > MAX_VALUE {
            line.push_str("...");
            break;
        }
        match character {
            '"' | '\\' => line.extend(['\\', character]),
            ' '..='~' => line.push(character),
            // Line breaks, terminal controls, and letters that look like others.
            _ => line.extend(character.escape_unicode()),
        }
    }
    line.push('"');
}

/// The log of decisions. Cheap to make; the file is opened for each decision, so that it may be
/// rotated.
#[derive(Debug, Clone)]
pub struct DecisionLog {
    path: Option<PathBuf>,
    events: EventLog,
}

impl DecisionLog {
    /// Appends to `path`, and to the events in `state_dir`.
    pub fn new(path: impl Into<PathBuf>, state_dir: &Path) -> Self {
        Self { path: Some(path.into()), events: EventLog::new(state_dir) }
    }

    /// Writes nothing.
    pub fn disabled() -> Self {
        Self { path: None, events: EventLog::disabled() }
    }

    /// Logs a request that was refused before the ledger saw it: its text is malformed or
    /// contradicts itself. `asked` is what the container said about GPUs, `why` the error, which is
    /// written with all its causes.
    pub fn refused_at_validation<'a>(
        &self,
        container: impl Into<ContainerName<'a>>,
        asked: &str,
        why: &dyn std::error::Error,
    ) {
        let container = container.into();
        self.write(&[
            Line::new(Event::Ask, container).field("containerd", &container.key.containerd).field("asked", asked),
            Line::new(Event::Invalid, container).field("why", chain(why)),
            Line::destroyed(container),
        ]);
    }

    /// Logs a request that is ignored: its container starts without a GPU. `why` says what to do,
    /// too.
    pub fn ignored(&self, container: ContainerName<'_>, asked: &str, why: &str) {
        self.write(&[
            Line::new(Event::Ask, container).field("containerd", &container.key.containerd).field("asked", asked),
            Line::new(Event::Ignore, container).field("why", why),
        ]);
    }

    /// Appends `lines`, one write each. A failure goes to the process's own log (`tracing`) and
    /// nobody else: no container fails, or waits for long, because a log is full or its disk hangs.
    /// Not to be called with a lock.
    pub fn write(&self, lines: &[Line]) {
        if let Err(error) = self.append(lines) {
            let path = self.path.as_deref().unwrap_or(Path::new(""));
            tracing::warn!(path = %path.display(), %error, "decision log not written");
        }
        self.tell(lines);
    }

    /// The half of [`DecisionLog::write`] that may fail.
    pub(crate) fn append(&self, lines: &[Line]) -> io::Result<()> {
        let Some(path) = self.path.clone().filter(|_| !lines.is_empty()) else { return Ok(()) };
        let texts: Vec<String> = lines.iter().map(|line| format!("{:.6} {}\n", Timestamp::now(), line.text)).collect();
        let texts = Arc::new(texts);
        let own = (path.clone(), Arc::clone(&texts));
        match THREADS.run(DISK_PATIENCE, move || append(&own.0, &own.1)) {
            // There can be no further thread.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => append(&path, &texts),
            appended => appended.and_then(|done| done),
        }
    }

    /// The other half: events.
    pub(crate) fn tell(&self, lines: &[Line]) {
        self.events.write(lines.iter().filter_map(Line::entry));
    }
}

/// Appends to the log. A pipe without a reader is an error, and one that is full takes no more.
fn append(path: &Path, texts: &[String]) -> io::Result<()> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut file = OpenOptions::new().append(true).create(true).mode(0o640).custom_flags(flags.bits()).open(path)?;
    for text in texts {
        // One write(2) a line: with O_APPEND, lines of several shims never mix.
        let written = file.write(text.as_bytes())?;
        if written < text.len() {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "only part of a line was written"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use base::ContainerKey;
    use proptest::prelude::*;
    use runtime_config::request::PodContainer;

    use super::*;

    fn container(id: &str) -> ContainerKey {
        ContainerKey { containerd: "/run/containerd.sock".into(), namespace: "k8s.io".into(), id: id.into() }
    }

    #[test]
    fn plain_values_stay_readable() {
        let line = Line::new(Event::Reserve, &container("web-1")).field("memory", "3276MiB").field("why", "a b");
        assert_eq!(line.text, r#"event=reserve container=k8s.io/web-1 memory=3276MiB why="a b""#);
    }

    #[test]
    fn amounts_are_exact_in_the_log_and_short_in_events() {
        let line = Line::new(Event::Release, &container("a")).amount("memory", Bytes(308_551 << 10));
        assert_eq!(line.text, "event=release container=k8s.io/a memory=308551KiB");
        assert_eq!(line.entry().unwrap().text, "memory 301.3 MiB");
    }

    #[test]
    fn a_pods_container_is_called_by_both_names() {
        let pod = PodContainer { namespace: "team".into(), pod: "web-0".into(), container: "a\nb".into() };
        let key = container("6918");
        let line = Line::new(Event::Refuse, ContainerName { key: &key, pod: Some(&pod) }).field("why", "full");
        assert_eq!(line.text, r#"event=refuse container=k8s.io/6918 pod="team/web-0/a\u{a}b" why=full"#);
        let entry = line.entry().unwrap();
        let pod = entry.pod.unwrap();
        assert_eq!((entry.container.as_deref(), entry.text.as_str()), (Some("6918"), "full"));
        assert_eq!((pod.namespace.as_str(), pod.pod.as_str(), pod.container.as_str()), ("team", "web-0", "a\\u{a}b"));
    }

    #[test]
    fn nobody_forges_a_line_or_a_field() {
        let line = Line::new(Event::Ask, &container("x")).field("asked", "a\nevent=grant \"b\\\u{202e}\u{1b}[2J");
        assert_eq!(line.text, r#"event=ask container=k8s.io/x asked="a\u{a}event=grant \"b\\\u{202e}\u{1b}[2J""#);
    }

    #[test]
    fn lines_are_appended_with_their_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("egpu.log");
        let log = DecisionLog::new(&path, directory.path());
        log.write(&[Line::new(Event::Ask, &container("a"))]);
        log.write(&[Line::new(Event::Grant, &container("a")), Line::new(Event::Release, &container("a"))]);
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        for line in lines {
            let time = line.split(' ').next().unwrap();
            assert!(time.parse::<Timestamp>().is_ok() && time.ends_with('Z'), "{time}");
        }
    }

    #[test]
    fn outcomes_are_events_and_steps_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let log = DecisionLog::new(directory.path().join("egpu.log"), directory.path());
        log.write(&[
            Line::new(Event::Ask, &container("a")).field("asked", "EGPU_MEMORY=1GiB"),
            Line::new(Event::Refuse, &container("a"))
                .field("card", 3)
                .field("asked", "1GiB")
                .field("why", "it is full"),
            Line::about_card(Event::Policy, "GPU-1").field("policy", "soft"),
        ]);
        let text = std::fs::read_to_string(directory.path().join("events/current.jsonl")).unwrap();
        let entries: Vec<Entry> = text.lines().map(|line| crate::event_log::parse(line.as_bytes()).unwrap()).collect();
        let [refused, policy] = entries.try_into().unwrap();
        assert_eq!((refused.kind.as_str(), refused.container.as_deref()), ("refused", Some("a")));
        assert_eq!((refused.card_index, refused.text.as_str()), (Some(3), "asked 1GiB, it is full"));
        assert_eq!((policy.kind.as_str(), policy.container, policy.card.as_deref()), ("policy", None, Some("GPU-1")));
        assert_eq!(policy.text, "policy soft");
    }

    #[test]
    fn a_log_that_cannot_be_written_is_no_error() {
        DecisionLog::new("/proc/no/such/file", Path::new("/proc/no")).write(&[Line::new(Event::Ask, &container("a"))]);
        DecisionLog::new("/dev/full", Path::new("/proc/no")).write(&[Line::new(Event::Ask, &container("a"))]);
        DecisionLog::disabled().write(&[Line::new(Event::Ask, &container("a"))]);
    }

    #[test]
    fn a_pipe_that_nobody_reads_keeps_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("egpu.log");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let line = Line::new(Event::Grant, &container("a"));
        DecisionLog::new(&path, directory.path()).write(&[line]);
        assert_eq!(append(&path, &["text".to_owned()]).unwrap_err().raw_os_error(), Some(nix::libc::ENXIO));
        let events = std::fs::read_to_string(directory.path().join("events/current.jsonl")).unwrap();
        assert_eq!(events.lines().count(), 1, "what does not reach the log is an event all the same");
    }

    proptest! {
        #[test]
        fn any_value_is_one_printable_field(value in any::<String>()) {
            let mut text = String::new();
            push_escaped(&mut text, &value);
            prop_assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            prop_assert!(text.len() <= MAX_VALUE + 32);
            if let Some(inner) = text.strip_prefix('"') {
                let inner = inner.strip_suffix('"').unwrap();
                // Every quote inside has a backslash of its own before it.
                let unescaped = inner.replace("\\\\", "").replace("\\\"", "");
                prop_assert!(!unescaped.contains('"'));
            } else {
                prop_assert!(!text.is_empty() && !text.contains([' ', '=', '"']));
            }
        }
    }
}
