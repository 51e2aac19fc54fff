//! Files of the events, read on from the end of the last read.

use std::{
    fs::File,
    io::{self, ErrorKind, Read as _},
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
};

use ledger::event_log::{CURRENT, PREVIOUS};

/// The files of the events.
#[derive(Debug)]
pub(crate) struct EventFiles {
    directory: PathBuf,
    /// The last two at most. A process that opened a file before another one was started may still
    /// write into it for a moment.
    open: Vec<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    inode: u64,
    /// The beginning of a line that is not complete.
    rest: Vec<u8>,
}

impl EventFiles {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory, open: Vec::new() }
    }

    /// Reads the lines that have come since the last call.
    pub(crate) fn read(&mut self) -> io::Result<Vec<Vec<u8>>> {
        // Twice: another file may have been started in between.
        while self.open_new()? {}
        let mut lines = Vec::new();
        for open in &mut self.open {
            open.read(&mut lines)?;
        }
        let old = self.open.len().saturating_sub(2);
        self.open.drain(..old);
        Ok(lines)
    }

    /// Opens new files. Returns whether there were any.
    fn open_new(&mut self) -> io::Result<bool> {
        let mut is_any = false;
        for name in [PREVIOUS, CURRENT] {
            let file = match File::open(self.directory.join(name)) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened?,
            };
            let inode = file.metadata()?.ino();
            if self.open.iter().all(|open| open.inode != inode) {
                self.open.push(OpenFile { file, inode, rest: Vec::new() });
                is_any = true;
            }
        }
        Ok(is_any)
    }
}

impl OpenFile {
    fn read(&mut self, lines: &mut Vec<Vec<u8>>) -> io::Result<()> {
        self.file.read_to_end(&mut self.rest)?;
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
        let rest = self.rest.split_off(end + 1);
        let whole = std::mem::replace(&mut self.rest, rest);
        lines.extend(whole.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, OpenOptions},
        io::Write as _,
    };

    use super::*;

    fn texts(files: &mut EventFiles) -> Vec<String> {
        files.read().unwrap().into_iter().map(|line| String::from_utf8(line).unwrap()).collect()
    }

    #[test]
    fn whole_lines_once_each_across_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let append = |name: &str, text: &str| {
            let mut file = OpenOptions::new().append(true).create(true).open(path(name)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        let mut files = EventFiles::new(directory.path().to_owned());
        assert_eq!(texts(&mut files), [""; 0], "nothing has happened yet");
        append(PREVIOUS, "a\n");
        append(CURRENT, "b\nc");
        assert_eq!(texts(&mut files), ["a", "b"]);
        append(CURRENT, "c\n\n");
        assert_eq!(texts(&mut files), ["cc"], "half a line waits for its other half");
        fs::rename(path(CURRENT), path(PREVIOUS)).unwrap();
        append(CURRENT, "e\n");
        append(PREVIOUS, "d\n");
        assert_eq!(texts(&mut files), ["d", "e"], "somebody was late");
        fs::rename(path(CURRENT), path(PREVIOUS)).unwrap();
        append(CURRENT, "f\n");
        fs::rename(path(CURRENT), path(PREVIOUS)).unwrap();
        append(CURRENT, "g\n");
        assert_eq!(texts(&mut files), ["f", "g"], "two files later");
        assert_eq!(files.open.len(), 2);
        assert_eq!(texts(&mut files), [""; 0]);
    }
}
