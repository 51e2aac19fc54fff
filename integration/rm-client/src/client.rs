//! A root client.

use std::{fs::File, os::fd::AsRawFd};

use abi::{
    Handle,
    classes::{NV01_ROOT_CLIENT, NV20_SUBDEVICE_0},
    controls::{NV2080_CTRL_CMD_GPU_GET_PID_INFO, NV2080_CTRL_CMD_GPU_GET_PIDS},
    encode,
    escapes::{
        NV_ESC_CARD_INFO, NV_ESC_CHECK_VERSION_STR, NV_ESC_REGISTER_FD, NV_ESC_RM_ALLOC, NV_ESC_RM_CONTROL,
        NV_ESC_RM_DUP_OBJECT, NV_ESC_RM_FREE, command,
    },
    params::{
        Field, NV2080_CTRL_GPU_GET_PID_INFO_PARAMS, NV2080_CTRL_GPU_GET_PIDS_PARAMS, NV2080_CTRL_GPU_PID_INFO,
        NVOS00_PARAMETERS, NVOS54_PARAMETERS, NVOS55_PARAMETERS, NVOS64_PARAMETERS, nv_ioctl_card_info_t,
        nv_ioctl_register_fd_t, nv_ioctl_rm_api_version_t,
    },
};

use crate::{
    RmError,
    bytes::{get, put},
    check,
    device::Device,
    files::Nodes,
    system,
};

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

    /// Creates a client on a control file that is open, by whomever.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn on(control: File, nodes: &Nodes) -> Result<Self, RmError> {
        let mut client = Self { control, handle: 0, nodes: nodes.clone() };
        client.handle = client.alloc(0, 0, NV01_ROOT_CLIENT, None)?;
        Ok(client)
    }

    /// Makes a call on the control file; `status` is the field of its struct for the status.
    ///
    /// # Errors
    /// The errno, or the status.
    pub fn escape(&self, what: &str, number: u8, args: &mut [u8], status: Field<u32>) -> Result<(), RmError> {
        self.nodes.ioctl(&self.control, command(number, args.len()), args).map_err(system(what))?;
        check(what, get(args, status))
    }

    /// `NV_ESC_RM_ALLOC` in its long form; `handle` 0 lets the driver choose.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn alloc(&self, parent: u32, handle: u32, class: u32, params: Option<&mut [u8]>) -> Result<u32, RmError> {
        let mut args = alloc_args(self.handle, parent, handle, class);
        if let Some(params) = params {
            put(&mut args, NVOS64_PARAMETERS::pAllocParms, address_of(params));
        }
        let what = format!("allocation of class {class:#06x}");
        self.escape(&what, NV_ESC_RM_ALLOC, &mut args, NVOS64_PARAMETERS::status)?;
        Ok(get(&args, NVOS64_PARAMETERS::hObjectNew).0)
    }

    /// `NV_ESC_RM_FREE`.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn free(&self, handle: u32) -> Result<(), RmError> {
        let mut args = encode!(NVOS00_PARAMETERS { hRoot: Handle(self.handle), hObjectOld: Handle(handle) });
        self.escape(&format!("free of {handle:#x}"), NV_ESC_RM_FREE, &mut args, NVOS00_PARAMETERS::status)
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
        let mut args = encode!(NVOS54_PARAMETERS {
            hClient: Handle(client),
            hObject: Handle(object),
            cmd: number,
            params: address_of(params),
            paramsSize: u32::try_from(params.len()).unwrap_or(u32::MAX),
        });
        self.escape(&format!("control {number:#x}"), NV_ESC_RM_CONTROL, &mut args, NVOS54_PARAMETERS::status)
    }

    /// `NV_ESC_RM_DUP_OBJECT`: a handle of one's own for another client's object.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn duplicate(&self, parent: u32, source_client: u32, source: u32) -> Result<u32, RmError> {
        let mut args = encode!(NVOS55_PARAMETERS {
            hClient: Handle(self.handle),
            hParent: Handle(parent),
            hClientSrc: Handle(source_client),
            hObjectSrc: Handle(source),
        });
        self.escape("duplicate", NV_ESC_RM_DUP_OBJECT, &mut args, NVOS55_PARAMETERS::status)?;
        Ok(get(&args, NVOS55_PARAMETERS::hObject).0)
    }

    /// The driver's version.
    ///
    /// # Errors
    /// The errno.
    pub fn version(&self) -> Result<String, RmError> {
        type Args = nv_ioctl_rm_api_version_t;
        let mut args = encode!(Args { cmd: u32::from(b'2') });
        let command = command(NV_ESC_CHECK_VERSION_STR, args.len());
        self.nodes.ioctl(&self.control, command, &mut args).map_err(system("version"))?;
        Ok(text(Args::versionString.bytes(&args).unwrap_or_default()))
    }

    /// The cards that the driver lists.
    ///
    /// # Errors
    /// The errno.
    pub fn cards(&self) -> Result<Vec<CardInfo>, RmError> {
        type Entry = nv_ioctl_card_info_t;
        const MOST: usize = 32;
        let mut args = vec![0; Entry::SIZE * MOST];
        let command = command(NV_ESC_CARD_INFO, args.len());
        self.nodes.ioctl(&self.control, command, &mut args).map_err(system("card list"))?;
        let cards = args.chunks_exact(Entry::SIZE).filter(|entry| get(entry, Entry::valid) == 1);
        Ok(cards
            .map(|entry| CardInfo {
                gpu_id: get(entry, Entry::gpu_id),
                minor: get(entry, Entry::minor_number),
                bus: format!(
                    "{:08X}:{:02X}:{:02X}.{}",
                    get(entry, Entry::domain),
                    get(entry, Entry::bus),
                    get(entry, Entry::slot),
                    get(entry, Entry::function)
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
        let mut args = encode!(nv_ioctl_register_fd_t { ctl_fd: self.control.as_raw_fd() });
        let command = command(NV_ESC_REGISTER_FD, args.len());
        self.nodes.ioctl(file, command, &mut args).map_err(system("registering a card's file"))?;
        Ok(())
    }

    /// Processes that use a card, with the bytes that each holds of it: pids as this process sees
    /// them.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn processes(&self, subdevice: u32) -> Result<Vec<(u32, u64)>, RmError> {
        type Pids = NV2080_CTRL_GPU_GET_PIDS_PARAMS;
        type Infos = NV2080_CTRL_GPU_GET_PID_INFO_PARAMS;
        type Info = NV2080_CTRL_GPU_PID_INFO;
        const MOST: usize = 200;
        let mut pids = encode!(Pids { id: NV20_SUBDEVICE_0 });
        self.control(subdevice, NV2080_CTRL_CMD_GPU_GET_PIDS, &mut pids)?;
        let count = (get(&pids, Pids::pidTblCount) as usize).min(MOST);
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut infos = encode!(Infos { pidInfoListCount: u32::try_from(count).unwrap_or(0) });
        let entries = Infos::pidInfoList.bytes_mut(&mut infos).unwrap_or_default().chunks_exact_mut(Info::SIZE);
        for (index, info) in entries.take(count).enumerate() {
            put(info, Info::pid, Pids::pidTbl.element(index).map_or(0, |pid| get(&pids, pid)));
        }
        self.control(subdevice, NV2080_CTRL_CMD_GPU_GET_PID_INFO, &mut infos)?;
        let entries = Infos::pidInfoList.bytes(&infos).unwrap_or_default().chunks_exact(Info::SIZE);
        let used = |info| get(info, Info::memPrivate) + get(info, Info::memSharedOwned);
        Ok(entries.take(count).map(|info| (get(info, Info::pid), used(info))).collect())
    }
}

/// Makes the struct of an allocation without parameters.
pub fn alloc_args(client: u32, parent: u32, handle: u32, class: u32) -> [u8; NVOS64_PARAMETERS::SIZE] {
    encode!(NVOS64_PARAMETERS {
        hRoot: Handle(client),
        hObjectParent: Handle(parent),
        hObjectNew: Handle(handle),
        hClass: class,
    })
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
