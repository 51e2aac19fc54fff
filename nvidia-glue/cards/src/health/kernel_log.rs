//! Reading the kernel's log, `/dev/kmsg`, record by record.
//!
//! Format: the kernel's `Documentation/ABI/testing/dev-kmsg`. One `read` gives one record:
//! `<priority>,<sequence>,<microseconds>,<flags>[,...];<message>`, then lines that begin with a
//! space.

use std::{
    fs::OpenOptions,
    io::{self, ErrorKind, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Bytes of the buffer for a record, more than the longest has (the kernel's `PRINTK_MESSAGE_MAX`
/// is 2 KiB, its extended form 8 KiB).
const BUFFER: usize = 16 << 10;
/// Most reads of the log, more than it ever has records: a log that grows as fast as it is read
/// must not hold up a create.
const MOST_READS: usize = 1 << 20;

/// One record that the kernel itself wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record<'a> {
    /// Counts all records since boot.
    pub(super) sequence: u64,
    /// The text.
    pub(super) message: &'a str,
}

/// Calls `each` for the kernel's records from sequence number `from` on, oldest first, and returns
/// the number that the next record will have.
///
/// # Errors
/// When the log cannot be opened or read. Records that were overwritten meanwhile are no error.
pub(super) fn read(path: &Path, from: u64, mut each: impl FnMut(Record<'_>)) -> io::Result<u64> {
    let mut log = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
    let mut next = from;
    let mut buffer = vec![0; BUFFER];
    // A record that a plain file's buffer cut in two; the device gives whole ones.
    let mut begun: Vec<u8> = Vec::new();
    for _ in 0..MOST_READS {
        let bytes = match log.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => buffer.get(..count).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // Overwritten before we came to it, or longer than the buffer: the kernel has moved on
            // to the next.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPIPE | libc::EINVAL)) => continue,
            Err(error) => return Err(error),
        };
        begun.extend_from_slice(bytes);
        let whole = begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let rest = begun.split_off(whole);
        for line in begun.split(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(line);
            let Some((kernel, record)) = parse(&line) else { continue };
            if record.sequence >= from {
                next = next.max(record.sequence.saturating_add(1));
                if kernel {
                    each(record);
                }
            }
        }
        begun = rest;
        begun.truncate(BUFFER);
    }
    Ok(next)
}

/// The record on this line, and whether the kernel wrote it: what programs write into `/dev/kmsg`
/// has another facility, so that no program can report an Xid. `None` for continuation lines and
/// for what is no record.
fn parse(line: &str) -> Option<(bool, Record<'_>)> {
    let (header, message) = line.split_once(';')?;
    let mut fields = header.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let sequence = fields.next()?.parse().ok()?;
    Some((priority >> 3 == 0, Record { sequence, message }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn messages(text: &str, from: u64) -> (Vec<String>, u64) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, text).unwrap();
        let mut seen = Vec::new();
        let next = read(file.path(), from, |record| seen.push(record.message.to_owned())).unwrap();
        (seen, next)
    }

    const LOG: &str = "6,10,100,-;first\n SUBSYSTEM=pci\n DEVICE=+pci:0000:65:00.0\n4,11,200,c;second; with more\n\
                       12,12,300,-;a program's\n3,13,400,-,caller=T1;third\n";

    #[test]
    fn only_the_kernels_records_from_the_given_one_on() {
        assert_eq!(messages(LOG, 0), (vec!["first".into(), "second; with more".into(), "third".into()], 14));
        assert_eq!(messages(LOG, 11), (vec!["second; with more".into(), "third".into()], 14));
        assert_eq!(messages(LOG, 14), (vec![], 14));
        assert_eq!(messages(LOG, 99), (vec![], 99));
        assert_eq!(messages("", 7), (vec![], 7));
    }

    #[test]
    fn records_that_a_read_cuts_in_two_are_put_together() {
        let long = "x".repeat(BUFFER - 20);
        let text = format!("6,1,0,-;{long}\n6,2,0,-;behind\n");
        assert_eq!(messages(&text, 2), (vec!["behind".into()], 3));
    }

    #[test]
    fn an_absent_log_is_an_error() {
        assert!(read(Path::new("/nonexistent/kmsg"), 0, |_| ()).is_err());
    }

    proptest! {
        #[test]
        fn hostile_logs_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(&file, bytes).unwrap();
            prop_assert!(read(file.path(), 0, |_| ()).is_ok());
        }

        #[test]
        fn any_line_is_a_record_or_none(line in "([0-9]{0,25}[,;]?){0,6}\\PC{0,20}") {
            let _ = parse(&line);
        }
    }
}
