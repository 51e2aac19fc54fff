//! Events of this node, for `egpu events` and the counters of `egpu metrics`: `STATE_DIR/events/`.
//!
//! ```text
//! current.jsonl    one JSON object a line, appended by whoever decides or notices: shims, `egpu`
//! previous.jsonl   what `current.jsonl` was before it became too long
//! ```
//! A line is appended with one call under `O_APPEND`, so that those of several processes never mix.
//! Whoever finds the file too long starts another one, under a lock on the file, for which nobody
//! waits; and then writes into it how often each kind was written before, so that counters only
//! grow. Nothing is synced, and the directory is gone at reboot, as grants are.
//!
//! Everything in a line is printable ASCII of a bounded length, whatever a container's author
//! wrote: nobody forges a line, or moves a terminal's cursor. The number of a container's events is
//! for its shim to bound. What cannot be written goes to the process's own log and nobody else: no
//! container fails because of it.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use base::{
    file_lock::{FileLock, try_lock_exclusive},
    format,
};
use jiff::Timestamp;
use runtime_config::request::PodContainer;
use serde::{Deserialize, Serialize};

use crate::ContainerName;

/// The file that is appended to, and the one before it, in [`directory`].
pub const CURRENT: &str = "current.jsonl";
pub const PREVIOUS: &str = "previous.jsonl";
const NEXT: &str = "next.tmp";
/// A file of this length, in bytes, is long enough. Two of them are some 8000 events.
const LONG_ENOUGH: u64 = 1 << 20;
/// Longest text, and longest name, in bytes; what is beyond is cut off and marked with `...`.
const MAX_TEXT: usize = 1024;
const MAX_NAME: usize = 256;
/// A file that is replaced while it is counted is counted anew, so often at most.
const ATTEMPTS: u32 = 5;

/// Directory of the log's files.
pub fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("events")
}

/// Kind of an event. Readers may meet kinds of later versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A container was granted what it asked for.
    Admitted,
    /// A request, or a change of a grant or of a card's policy, was refused.
    Refused,
    /// A container seemed to ask for a GPU, was not believed, and started without one.
    Ignored,
    /// There is no room for a container, and it waits for some.
    Waiting,
    /// A reservation for a container was given back, because a later step of its create failed.
    RolledBack,
    /// A container has ended, and its part of a card is free.
    Released,
    /// A grant was taken back whose shim is gone.
    Reclaimed,
    /// A container's limits were changed while it runs.
    Changed,
    /// A card's policy or period was set.
    Policy,
    /// A container asked for more than it may have, or than the driver has, and was refused.
    Denied,
    /// A process was ended for that.
    Killed,
    /// The driver's account of a container differs from its mediator's.
    Drift,
    /// A card does not take a container off any more: its share of time is a weight.
    Degraded,
    /// It does again.
    Recovered,
    /// A mediator has stalled; its container is ended.
    Stalled,
    /// A mediator has ended before its container, which is ended, too.
    MediatorEnded,
    /// Something that an operator may want to know.
    Warning,
}

impl Kind {
    /// Every kind that this version writes.
    pub const ALL: [Self; 17] = [
        Self::Admitted,
        Self::Refused,
        Self::Ignored,
        Self::Waiting,
        Self::RolledBack,
        Self::Released,
        Self::Reclaimed,
        Self::Changed,
        Self::Policy,
        Self::Denied,
        Self::Killed,
        Self::Drift,
        Self::Degraded,
        Self::Recovered,
        Self::Stalled,
        Self::MediatorEnded,
        Self::Warning,
    ];

    /// Name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Refused => "refused",
            Self::Ignored => "ignored",
            Self::Waiting => "waiting",
            Self::RolledBack => "rolled-back",
            Self::Released => "released",
            Self::Reclaimed => "reclaimed",
            Self::Changed => "changed",
            Self::Policy => "policy",
            Self::Denied => "denied",
            Self::Killed => "killed",
            Self::Drift => "drift",
            Self::Degraded => "degraded",
            Self::Recovered => "recovered",
            Self::Stalled => "stalled",
            Self::MediatorEnded => "mediator-ended",
            Self::Warning => "warning",
        }
    }
}

/// One thing that happened. Keys are fixed; later versions may add some.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Time of writing, RFC 3339, UTC.
    pub time: String,
    /// [`Kind::name`], or that of another version's kind.
    pub kind: String,
    /// containerd's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The container's id; `None` where it is about a card alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Its names in Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodContainer>,
    /// `GPU-...`, where it is about one card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card_index: Option<u32>,
    /// Number of occurrences since it was last written.
    #[serde(default = "once")]
    pub count: u64,
    /// For people.
    pub text: String,
}

fn once() -> u64 {
    1
}

impl Entry {
    /// About a container.
    pub fn new<'a>(kind: Kind, container: impl Into<ContainerName<'a>>) -> Self {
        let ContainerName { key, pod } = container.into();
        let name = |name: &String| printable(name, MAX_NAME);
        Self {
            namespace: Some(name(&key.namespace)),
            container: Some(name(&key.id)),
            pod: pod.map(|PodContainer { namespace, pod, container }| PodContainer {
                namespace: name(namespace),
                pod: name(pod),
                container: name(container),
            }),
            ..Self::about_card(kind, None)
        }
    }

    /// About a card, or the node.
    pub fn about_card(kind: Kind, uuid: Option<&str>) -> Self {
        let entry = Self {
            time: String::new(),
            kind: kind.name().to_owned(),
            namespace: None,
            container: None,
            pod: None,
            card: None,
            card_index: None,
            count: 1,
            text: String::new(),
        };
        entry.on_card(uuid)
    }

    /// Sets the card.
    #[must_use]
    pub fn on_card(self, uuid: Option<&str>) -> Self {
        Self { card: uuid.map(|uuid| printable(uuid, MAX_NAME)), ..self }
    }

    /// That often.
    #[must_use]
    pub fn counting(self, count: u64) -> Self {
        Self { count, ..self }
    }

    /// Sets the text.
    #[must_use]
    pub fn with_text(self, text: &str) -> Self {
        Self { text: printable(text, MAX_TEXT), ..self }
    }
}

/// Printable ASCII of no more than about `longest` bytes: line breaks, terminal controls, and
/// letters that look like others are escaped.
fn printable(text: &str, longest: usize) -> String {
    let mut printable = String::with_capacity(text.len().min(longest));
    for character in text.chars() {
        if printable.len() >= longest {
            printable.push_str("...");
            break;
        }
        match character {
            ' '..='~' => printable.push(character),
            _ => printable.extend(character.escape_unicode()),
        }
    }
    printable
}

/// A line of a file that has one before it: how often each kind was written before the file.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    events_before: Totals,
}

/// Parses a line of a file; `None`: half a line, or one that no version of egpu wrote.
pub fn parse(line: &[u8]) -> Option<Entry> {
    serde_json::from_slice(line).ok()
}

/// The log of events. Cheap to make; the file is opened for each write.
#[derive(Debug, Clone)]
pub struct EventLog {
    directory: Option<PathBuf>,
    long_enough: u64,
}

impl EventLog {
    /// Log of the node with this state directory, which need not exist yet.
    pub fn new(state_dir: &Path) -> Self {
        Self { directory: Some(directory(state_dir)), long_enough: LONG_ENOUGH }
    }

    /// Writes nothing.
    pub fn disabled() -> Self {
        Self { directory: None, long_enough: LONG_ENOUGH }
    }

    /// Appends the entries, as of now. A failure goes to the process's own log.
    pub fn write(&self, entries: impl IntoIterator<Item = Entry>) {
        let Some(directory) = &self.directory else { return };
        let mut entries = entries.into_iter().flat_map(|entry| [next_kind(&entry), Some(entry)]).flatten().peekable();
        if entries.peek().is_none() {
            return;
        }
        if let Err(error) = append(directory, entries, self.long_enough) {
            tracing::warn!(directory = %directory.display(), %error, "events not written");
        }
    }
}

/// An event of a kind that no version has yet, in the build that stands for the next one.
fn next_kind(entry: &Entry) -> Option<Entry> {
    let is_wanted = format::IS_NEXT && entry.kind == Kind::Admitted.name();
    is_wanted.then(|| Entry { kind: "next-format".to_owned(), ..entry.clone() })
}

/// Creates the directory of the events, where it is missing. The state directory's group may read
/// it.
///
/// # Errors
/// When it cannot be made.
pub fn make_directory(directory: &Path) -> io::Result<()> {
    // Containers with a user namespace pass through the state directory.
    base::make_directory(directory, 0o750, 0o711)
}

fn append(directory: &Path, entries: impl Iterator<Item = Entry>, long_enough: u64) -> io::Result<()> {
    let path = directory.join(CURRENT);
    let open = || OpenOptions::new().append(true).create(true).mode(0o640).open(&path);
    let mut file = match open() {
        Err(error) if error.kind() == ErrorKind::NotFound => make_directory(directory).and_then(|()| open())?,
        opened => opened?,
    };
    for entry in entries {
        let entry = Entry { time: format!("{:.6}", Timestamp::now()), ..entry };
        let mut line = format::to_vec(&entry)?;
        line.push(b'\n');
        // One write(2) a line.
        if file.write(&line)? < line.len() {
            // So that the next one's line is whole.
            let _ = file.write(b"\n");
            return Err(io::Error::new(ErrorKind::StorageFull, "only part of a line was written"));
        }
    }
    if file.metadata()?.len() >= long_enough {
        rotate(directory, file)?;
    }
    Ok(())
}

/// Starts another file. There is a `current.jsonl` at every instant.
fn rotate(directory: &Path, file: File) -> io::Result<()> {
    begin(directory, file)?.map_or(Ok(()), |begun| begun.write_header(directory))
}

/// A file that was begun, and whose first line is not there yet. Until it is, nobody begins a file
/// after this one, which is locked: what that would take for the previous one is then ours.
#[derive(Debug)]
struct Begun {
    file: FileLock,
    /// The file that was full, locked as long.
    _full: FileLock,
    /// Totals of the file before that one.
    before: Totals,
}

/// Replaces `file` with a new one; `None`: somebody else does.
fn begin(directory: &Path, file: File) -> io::Result<Option<Begun>> {
    let (current, previous, next) = (directory.join(CURRENT), directory.join(PREVIOUS), directory.join(NEXT));
    let Ok(Ok(full)) = try_lock_exclusive(file) else { return Ok(None) };
    if fs::metadata(&current)?.ino() != full.metadata()?.ino() {
        return Ok(None);
    }
    let before = before(directory, &Tally::of(&fs::read(&current)?))?;
    remove(&next)?;
    let fresh = OpenOptions::new().append(true).create_new(true).mode(0o640).open(&next)?;
    let Ok(Ok(file)) = try_lock_exclusive(fresh) else { return Ok(None) };
    remove(&previous)?;
    fs::hard_link(&current, &previous)?;
    fs::rename(&next, &current)?;
    Ok(Some(Begun { file, _full: full, before }))
}

impl Begun {
    /// Its first line.
    fn write_header(mut self, directory: &Path) -> io::Result<()> {
        let mut events_before = self.before;
        // What others wrote meanwhile counts, too. Until the line is there, readers count for
        // themselves.
        add(&mut events_before, Tally::of(&fs::read(directory.join(PREVIOUS))?).within);
        let mut line = serde_json::to_vec(&Header { events_before })?;
        line.push(b'\n');
        self.file.write_all(&line)
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Number of events of each kind since the machine's start. Events written at the very instant of a
/// rotation may be missing.
///
/// # Errors
/// When a file is there and cannot be read.
pub fn totals(state_dir: &Path) -> io::Result<Totals> {
    let directory = directory(state_dir);
    let path = directory.join(CURRENT);
    let mut attempt = 0;
    loop {
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Totals::new()),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let tally = Tally::of(&bytes);
        let mut totals = before(&directory, &tally)?;
        add(&mut totals, tally.within);
        attempt += 1;
        // Another file may have been started meanwhile, so that one was counted twice.
        if attempt == ATTEMPTS || fs::metadata(&path)?.ino() == file.metadata()?.ino() {
            return Ok(totals);
        }
    }
}

/// Number of events of each kind, by its name.
pub type Totals = BTreeMap<String, u64>;

/// A file's own, and what its header says.
#[derive(Debug, Default)]
struct Tally {
    before: Option<Totals>,
    within: Totals,
}

impl Tally {
    fn of(file: &[u8]) -> Self {
        let mut tally = Self::default();
        for line in file.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            if let Some(entry) = parse(line) {
                add(&mut tally.within, [(entry.kind, entry.count)]);
            } else if let Ok(Header { events_before }) = serde_json::from_slice(line) {
                tally.before = Some(events_before);
            }
        }
        tally
    }
}

/// Number of events before the current file: from its own header or, while it has none, from the
/// previous file.
fn before(directory: &Path, current: &Tally) -> io::Result<Totals> {
    if let Some(before) = &current.before {
        return Ok(before.clone());
    }
    let previous = match fs::read(directory.join(PREVIOUS)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Totals::new()),
        read => Tally::of(&read?),
    };
    let mut totals = previous.before.unwrap_or_default();
    add(&mut totals, previous.within);
    Ok(totals)
}

fn add(totals: &mut Totals, more: impl IntoIterator<Item = (String, u64)>) {
    for (kind, count) in more {
        let total = totals.entry(kind).or_default();
        *total = total.saturating_add(count);
    }
}

#[cfg(test)]
mod tests;
