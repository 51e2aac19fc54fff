//! The channels of a card as a small file, which every process of the machine that simulates the
//! driver reads and writes.
//!
//! One line for each engine, each channel and each sample, then `end`, behind which an older,
//! longer content may stand. Whoever looks holds the file's lock, and drops the channels of
//! processes that are gone, as the driver does.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    str::FromStr,
};

use base::{ProcessId, file_lock::FileLock};

use super::{
    super::participants::is_there,
    time::{Channel, Channels, Engine, GroupKey, Sample},
};

const END: &str = "end";

/// State of a card's channels.
#[derive(Debug)]
pub(super) struct ChannelFile {
    pub(super) path: PathBuf,
}

impl ChannelFile {
    pub(super) fn new(directory: &Path, uuid: &str) -> io::Result<Self> {
        let path = directory.join(format!("{uuid}.channels"));
        // Here, and not at each use: a mediator may not make files any more by then.
        OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
        Ok(Self { path })
    }

    /// Reads the channels of living processes on the card, changes them, and writes them, under the
    /// file's lock.
    pub(super) fn locked<T>(&self, change: impl FnOnce(&mut Channels) -> T) -> io::Result<T> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        let file = FileLock::wait(file)?;
        let mut channels = read(&file)?;
        drop_dead(&mut channels);
        let answer = change(&mut channels);
        // In one write, so that nobody ever sees half of it, whenever the writer is killed.
        file.write_all_at(text(&channels).as_bytes(), 0)?;
        Ok(answer)
    }
}

fn drop_dead(channels: &mut Channels) {
    let mut alive: BTreeMap<(i32, u64), bool> = BTreeMap::new();
    channels.channels.retain(|Channel { owner, .. }| {
        *alive.entry((owner.pid, owner.start_time)).or_insert_with(|| is_there(*owner))
    });
    let Channels { cold, channels, .. } = channels;
    cold.retain(|group, _| channels.iter().any(|channel| channel.key() == *group));
}

fn read(mut file: &File) -> io::Result<Channels> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut channels = Channels::default();
    for line in text.lines().take_while(|line| *line != END) {
        // What cannot be read is nobody's: a user may write anything into a state directory.
        let _known = parse(line, &mut channels);
    }
    Ok(channels)
}

fn parse(line: &str, channels: &mut Channels) -> Option<()> {
    let mut words = line.split(' ');
    match words.next()? {
        "at" => channels.at_ns = next(&mut words)?,
        "switches" => channels.switches = next(&mut words)?,
        "sampled" => channels.sampled = (next(&mut words)?, next(&mut words)?),
        "sample" => channels.samples.push_back(Sample {
            at_ns: next(&mut words)?,
            busy: next(&mut words)?,
            pid: next(&mut words)?,
        }),
        "engine" => {
            let number = next(&mut words)?;
            let (busy_ns, resident, slice_left_ns) = (next(&mut words)?, next(&mut words)?, next(&mut words)?);
            let mut group =
                || Some(GroupKey { pid: next(&mut words)?, start_time: next(&mut words)?, group: next(&mut words)? });
            channels.engines.insert(number, Engine { busy_ns, resident, slice_left_ns, last: group() });
        }
        "cold" => {
            let group = GroupKey { pid: next(&mut words)?, start_time: next(&mut words)?, group: next(&mut words)? };
            channels.cold.insert(group, next(&mut words)?);
        }
        "channel" => channels.channels.push(Channel {
            owner: ProcessId { pid: next(&mut words)?, start_time: next(&mut words)? },
            client: next(&mut words)?,
            handle: next(&mut words)?,
            token: next(&mut words)?,
            group: next(&mut words)?,
            engine: next(&mut words)?,
            slice_us: next(&mut words)?,
            scheduled: next(&mut words)?,
            disabled: next(&mut words)?,
            submitted_ns: next(&mut words)?,
            executed_ns: next(&mut words)?,
        }),
        _ => return None,
    }
    Some(())
}

fn next<'a, T: FromStr>(words: &mut impl Iterator<Item = &'a str>) -> Option<T> {
    words.next()?.parse().ok()
}

fn text(channels: &Channels) -> String {
    let mut lines = vec![format!("at {}", channels.at_ns), format!("switches {}", channels.switches)];
    lines.push(format!("sampled {} {}", channels.sampled.0, channels.sampled.1));
    lines.extend(channels.samples.iter().map(|Sample { at_ns, busy, pid }| format!("sample {at_ns} {busy} {pid}")));
    lines.extend(channels.engines.iter().map(|(number, Engine { busy_ns, resident, slice_left_ns, last })| {
        let group = last.map(|GroupKey { pid, start_time, group }| format!(" {pid} {start_time} {group}"));
        format!("engine {number} {busy_ns} {resident} {slice_left_ns}{}", group.unwrap_or_default())
    }));
    lines.extend(
        channels
            .cold
            .iter()
            .map(|(GroupKey { pid, start_time, group }, cold_ns)| format!("cold {pid} {start_time} {group} {cold_ns}")),
    );
    lines.extend(channels.channels.iter().map(|channel| {
        let Channel { owner, client, handle, token, group, engine, slice_us, .. } = channel;
        let Channel { scheduled, disabled, submitted_ns, executed_ns, .. } = channel;
        let ProcessId { pid, start_time } = owner;
        format!(
            "channel {pid} {start_time} {client} {handle} {token} {group} {engine} {slice_us} {scheduled} {disabled} \
             {submitted_ns} {executed_ns}"
        )
    }));
    lines.push(format!("{END}\n"));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> (tempfile::TempDir, ChannelFile) {
        let directory = tempfile::tempdir().unwrap();
        let file = ChannelFile::new(directory.path(), "GPU-1").unwrap();
        (directory, file)
    }

    fn channel(owner: ProcessId, token: u32) -> Channel {
        Channel {
            owner,
            client: 0xc1d0_0001,
            handle: 7,
            token,
            group: 3,
            engine: 1,
            slice_us: 1024,
            scheduled: true,
            disabled: 0,
            submitted_ns: u64::MAX,
            executed_ns: 12,
        }
    }

    #[test]
    fn what_one_wrote_the_next_reads_and_the_dead_are_gone() {
        let (_directory, file) = file();
        let own = ProcessId::current().unwrap();
        let other = ProcessId { pid: own.pid, start_time: own.start_time + 1 };
        let group = GroupKey { pid: 3, start_time: 4, group: 5 };
        let written = Channels {
            at_ns: 5,
            switches: 6,
            engines: BTreeMap::from([
                (1, Engine { busy_ns: 4, last: None, resident: false, slice_left_ns: 0 }),
                (9, Engine { busy_ns: u64::MAX, last: Some(group), resident: true, slice_left_ns: 7 }),
            ]),
            cold: BTreeMap::from([(channel(own, 0).key(), 8), (channel(other, 1).key(), 9)]),
            channels: vec![channel(own, 0), channel(other, 1), channel(own, 2)],
            samples: [1, 2].map(|at_ns| Sample { at_ns, busy: 10_000, pid: 7 }).into(),
            sampled: (2, 3),
        };
        file.locked(|channels| channels.clone_from(&written)).unwrap();
        let read = file.locked(|channels| channels.clone()).unwrap();
        let living = vec![channel(own, 0), channel(own, 2)];
        let cold = BTreeMap::from([(channel(own, 0).key(), 8)]);
        assert_eq!(read, Channels { cold, channels: living, ..written });
        file.locked(|channels| channels.channels.clear()).unwrap();
        assert_eq!(file.locked(|channels| channels.channels.len()).unwrap(), 0, "an older, longer text does not count");
    }

    #[test]
    fn a_file_of_garbage_is_an_empty_one() {
        let (_directory, file) = file();
        std::fs::write(&file.path, "at x\nengine 1\nchannel 1 2 3\nchannel a b c d e f g h i j k l\n\n99\n").unwrap();
        assert_eq!(file.locked(|channels| channels.clone()).unwrap(), Channels::default());
    }
}
