//! A root client.

use std::{fs::File, os::fd::AsRawFd};

use crate::{
    RmError,
    bytes::{get, get_u64, put, put_bytes, put_u64, words},
    check,
    device::Device,
    files::Nodes,
    system,
};

/// `_IOWR('F', number, size)`.
pub const fn command(number: u32, size: u32) -> u32 {
    3 << 30 | size << 16 | 0x46 << 8 | number
}

/// `NV_ESC_RM_FREE`, `_CONTROL`, `_ALLOC`, `_DUP_OBJECT`, `NV_ESC_CARD_INFO`, `_REGISTER_FD`,
/// `_CHECK_VERSION_STR`.
pub const FREE: u32 = 0x29;
/// `NV_ESC_RM_CONTROL`.
pub const CONTROL: u32 = 0x2a;
/// `NV_ESC_RM_ALLOC`.
pub const ALLOC: u32 = 0x2b;
/// `NV_ESC_RM_DUP_OBJECT`.
pub const DUP_OBJECT: u32 = 0x34;
/// `NV_ESC_CARD_INFO`.
pub const CARD_INFO: u32 = 0xc8;
/// `NV_ESC_REGISTER_FD`.
pub const REGISTER_FD: u32 = 0xc9;
/// `NV_ESC_CHECK_VERSION_STR`.
pub const CHECK_VERSION: u32 = 0xd2;
/// `NV01_ROOT_CLIENT`.
pub const ROOT: u32 = 0x41;

/// A card, as the driver lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardInfo {
    /// The driver's number of it.
    pub gpu_id: u32,
    /// Its node.
    pub minor: u32,
    /// `00000000:01:00.0`.
    pub bus: String,
}

/// A client on an open control file.
#[derive(Debug)]
pub struct Client {
    /// `/dev/nvidiactl`, open.
    pub control: File,
    /// Its handle.
    pub handle: u32,
    /// The other nodes.
    pub nodes: Nodes,
}

impl Client {
    /// Opens the control node and makes a client there.
    ///
    /// # Errors
    /// When there is no node, or the driver refuses.
    pub fn open(nodes: &Nodes) -> Result<Self, RmError> {
        Self::on(nodes.control()?, nodes)
    }

    /// Makes a client on a control file that is open, by whomever.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn on(control: File, nodes: &Nodes) -> Result<Self, RmError> {
        let mut client = Self { control, handle: 0, nodes: nodes.clone() };
        client.handle = client.alloc(0, 0, ROOT, None)?;
        Ok(client)
    }

    /// One call on the control file; the status is at `status`.
    ///
    /// # Errors
    /// The errno, or the status.
    pub fn escape(&self, what: &str, number: u32, args: &mut [u8], status: usize) -> Result<(), RmError> {
        let size = u32::try_from(args.len()).map_err(|_| RmError::Nonsense { what: format!("{what}: too long") })?;
        self.nodes.ioctl(&self.control, command(number, size), args).map_err(system(what))?;
        check(what, get(args, status))
    }

    /// `NV_ESC_RM_ALLOC` in its long form; `handle` 0 lets the driver choose.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn alloc(&self, parent: u32, handle: u32, class: u32, params: Option<&mut [u8]>) -> Result<u32, RmError> {
        let mut args = words([self.handle, parent, handle, class], 48);
        if let Some(params) = params {
            put_u64(&mut args, 16, address_of(params));
        }
        self.escape(&format!("allocation of class {class:#06x}"), ALLOC, &mut args, 40)?;
        Ok(get(&args, 8))
    }

    /// `NV_ESC_RM_FREE`.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn free(&self, handle: u32) -> Result<(), RmError> {
        let mut args = words([self.handle, 0, handle], 16);
        self.escape(&format!("free of {handle:#x}"), FREE, &mut args, 12)
    }

    /// `NV_ESC_RM_CONTROL`.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn control(&self, object: u32, number: u32, params: &mut [u8]) -> Result<(), RmError> {
        self.control_in(self.handle, object, number, params)
    }

    /// The same of an object of any client, on this one's file.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn control_in(&self, client: u32, object: u32, number: u32, params: &mut [u8]) -> Result<(), RmError> {
        let mut args = words([client, object, number], 32);
        put_u64(&mut args, 16, address_of(params));
        put(&mut args, 24, u32::try_from(params.len()).unwrap_or(u32::MAX));
        self.escape(&format!("control {number:#x}"), CONTROL, &mut args, 28)
    }

    /// `NV_ESC_RM_DUP_OBJECT`: a handle of one's own for another client's object.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn duplicate(&self, parent: u32, source_client: u32, source: u32) -> Result<u32, RmError> {
        let mut args = words([self.handle, parent, 0, source_client, source], 28);
        self.escape("duplicate", DUP_OBJECT, &mut args, 24)?;
        Ok(get(&args, 8))
    }

    /// The driver's version.
    ///
    /// # Errors
    /// The errno.
    pub fn version(&self) -> Result<String, RmError> {
        let mut args = words([u32::from(b'2')], 72);
        self.nodes.ioctl(&self.control, command(CHECK_VERSION, 72), &mut args).map_err(system("version"))?;
        Ok(text(args.get(8..).unwrap_or_default()))
    }

    /// The cards that the driver lists.
    ///
    /// # Errors
    /// The errno.
    pub fn cards(&self) -> Result<Vec<CardInfo>, RmError> {
        const ENTRY: usize = 72;
        const MOST: usize = 32;
        let mut args = vec![0; ENTRY * MOST];
        let size = u32::try_from(args.len()).unwrap_or(0);
        self.nodes.ioctl(&self.control, command(CARD_INFO, size), &mut args).map_err(system("card list"))?;
        let cards = args.chunks_exact(ENTRY).filter(|entry| entry.first() == Some(&1));
        Ok(cards
            .map(|entry| CardInfo {
                gpu_id: get(entry, 16),
                minor: get(entry, 56),
                bus: format!(
                    "{:08X}:{:02X}:{:02X}.{}",
                    get(entry, 4),
                    entry.get(8).unwrap_or(&0),
                    entry.get(9).unwrap_or(&0),
                    entry.get(10).unwrap_or(&0)
                ),
            })
            .collect())
    }

    /// The card at a place of that list, with its node open and a device and subdevice below this
    /// client.
    ///
    /// # Errors
    /// When there is no such card, or the driver refuses.
    pub fn device(&self, index: usize) -> Result<Device<'_>, RmError> {
        let cards = self.cards()?;
        let info = cards.get(index).cloned().ok_or_else(|| RmError::Nonsense {
            what: format!("there is no card {index}; the driver lists {}", cards.len()),
        })?;
        Device::open(self, info)
    }

    /// Lets `file`, a card's node, use this client.
    ///
    /// # Errors
    /// The errno.
    pub fn register(&self, file: &File) -> Result<(), RmError> {
        let mut args = self.control.as_raw_fd().to_le_bytes();
        self.nodes.ioctl(file, command(REGISTER_FD, 4), &mut args).map_err(system("registering a card's file"))?;
        Ok(())
    }

    /// Returns which process uses a card, and how much of it: pids as this process sees them.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn processes(&self, subdevice: u32) -> Result<Vec<(u32, u64)>, RmError> {
        const SUBDEVICE: u32 = 0x2080;
        let mut pids = words([0, SUBDEVICE], 3812);
        self.control(subdevice, 0x2080_018d, &mut pids)?;
        let count = (get(&pids, 8) as usize).min(200);
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut info = vec![0; 14408];
        put(&mut info, 0, u32::try_from(count).unwrap_or(0));
        for index in 0..count {
            put_bytes(&mut info, 8 + index * 72, &get(&pids, 12 + index * 4).to_le_bytes());
        }
        self.control(subdevice, 0x2080_018e, &mut info)?;
        let entry = |index: usize| {
            let at = 8 + index * 72;
            (get(&info, at), get_u64(&info, at + 16) + get_u64(&info, at + 24))
        };
        Ok((0..count).map(entry).collect())
    }
}

/// For a pointer field.
pub fn address_of(bytes: &mut [u8]) -> u64 {
    bytes.as_mut_ptr().expose_provenance() as u64
}

/// Text that a zero ends.
pub fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}
