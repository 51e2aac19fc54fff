//! A table like `nvidia-smi`'s.

use std::fmt::Write as _;

use crate::{Client, Device, Memory, RmError};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardRow {
    /// Its place in the driver's list.
    pub index: usize,
    /// Product name.
    pub name: String,
    /// `GPU-...`.
    pub uuid: String,
    /// Its PCI address.
    pub bus: String,
    /// Memory of the card.
    pub memory: Memory,
    /// Pids, and what they use.
    pub processes: Vec<(u32, u64)>,
}

impl CardRow {
    /// Asks the driver about the card at a place of its list.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn of(client: &Client, index: usize) -> Result<Self, RmError> {
        let device: Device<'_> = client.device(index)?;
        let processes = client.processes(device.subdevice)?;
        Ok(Self {
            index,
            name: device.name()?,
            uuid: device.uuid()?,
            bus: device.info.bus.clone(),
            memory: device.memory()?,
            processes,
        })
    }
}

/// Rows of all cards that the driver lists and whose nodes can be opened.
///
/// # Errors
/// The driver's status, where it refuses.
pub fn rows(client: &Client) -> Result<Vec<CardRow>, RmError> {
    let count = client.cards()?.len();
    let openable = |row: &Result<CardRow, RmError>| !matches!(row, Err(RmError::System { .. }));
    (0..count).map(|index| CardRow::of(client, index)).filter(openable).collect()
}

/// As people know it: `used / total` in MiB.
pub fn table(version: &str, rows: &[CardRow]) -> String {
    const LINE: &str = "+-----------------------------------------------------------------------------+\n";
    let mut text = String::from(LINE);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "| {:<75} |", format!("RM-CLIENT          Driver Version: {version}"));
    text.push_str(LINE);
    let _ = writeln!(text, "| {:<3} {:<34} {:<18} {:>17} |", "GPU", "Name", "Bus-Id", "Memory-Usage");
    text.push_str(&LINE.replace('-', "="));
    for row in rows {
        let Memory { total, free } = row.memory;
        let _ = writeln!(
            text,
            "| {:>3} {:<34.34} {:<18} {:>17} |",
            row.index,
            row.name,
            row.bus,
            format!("{}MiB / {}MiB", mib(total.saturating_sub(free)), mib(total)),
        );
    }
    text.push_str(LINE);
    let _ = writeln!(text, "| {:<75} |", "Processes:      GPU         PID    GPU Memory Usage");
    for (row, (pid, used)) in rows.iter().flat_map(|row| row.processes.iter().map(move |process| (row, process))) {
        let _ = writeln!(text, "| {:<75} |", format!("{:>19} {pid:>11} {:>16}MiB", row.index, mib(*used)));
    }
    text.push_str(LINE);
    text
}

const fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_of_total() {
        let memory = Memory { total: 3276 << 20, free: 3200 << 20 };
        let (name, bus) = ("NVIDIA H200".to_owned(), "00000000:01:00.0".to_owned());
        let row = CardRow { index: 0, name, uuid: String::new(), bus, memory, processes: vec![(7, 76 << 20)] };
        let text = table("580.159.04", &[row]);
        assert!(text.contains("76MiB / 3276MiB"), "{text}");
        assert!(text.contains("580.159.04") && text.contains(" 7 "), "{text}");
        assert!(text.lines().all(|line| line.len() == 79), "{text}");
    }
}
