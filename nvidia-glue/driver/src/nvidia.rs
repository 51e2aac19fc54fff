//! The driver in the kernel.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use abi::{
    Abi, Handle, Node, Status, encode,
    escapes::{NV_ESC_RM_DUP_OBJECT, command},
    params::NVOS55_PARAMETERS,
};
use base::Roots;
use rustix::fs::{FileType, major, minor};
use schedule::{SwitchLog, SwitchLogError};

use super::{
    CardPlace, DeviceFile, Driver, DriverCall, FileWatch, MappedPage, OwnClient, file_watch::EpollWatch, nvidia_page,
    patch, switch_log::NvidiaSwitchLog,
};

/// Names of the driver's character devices in `/proc/devices`; the first is that of releases before
/// 550.
const FRONTEND: [&str; 3] = ["nvidia-frontend", "nvidia", "nvidiactl"];
/// Unified memory's, whose number the kernel chooses.
const UVM: &str = "nvidia-uvm";
/// `/dev/nvidiactl` (kernel-open/common/inc/nv-linux.h: `NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE`).
const CONTROL_MINOR: u32 = 255;
/// `/dev/nvidia-modeset`, which takes no calls of the resource manager.
const MODESET_MINOR: u32 = 254;

/// NVIDIA's kernel modules, through device nodes below a root.
#[derive(Debug, Clone)]
pub struct NvidiaDriver {
    dev: PathBuf,
    frontend: Vec<u32>,
    uvm: Option<u32>,
}

impl NvidiaDriver {
    /// The driver whose nodes are in `roots.dev`; which numbers its nodes have is read from
    /// `/proc/devices` now.
    ///
    /// # Errors
    /// When that cannot be read, or NVIDIA's driver is not in it.
    pub fn new(roots: &Roots) -> io::Result<Self> {
        let devices = std::fs::read_to_string(roots.proc.join("devices"))?;
        let majors = |names: &[&str]| majors_of(&devices, names);
        let frontend = majors(&FRONTEND);
        if frontend.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the NVIDIA driver is not in /proc/devices: is it loaded?",
            ));
        }
        Ok(Self { dev: roots.dev.clone(), frontend, uvm: majors(&[UVM]).first().copied() })
    }

    fn path_of(&self, node: Node) -> PathBuf {
        match node {
            Node::Control => self.dev.join("nvidiactl"),
            Node::Card(minor) => self.dev.join(format!("nvidia{minor}")),
            Node::Uvm => self.dev.join(UVM),
        }
    }

    fn node_of_number(&self, major: u32, minor: u32) -> Option<Node> {
        if self.frontend.contains(&major) {
            return match minor {
                CONTROL_MINOR => Some(Node::Control),
                MODESET_MINOR => None,
                card => Some(Node::Card(card)),
            };
        }
        // Minor 1 is the tools' node, which has no memory.
        (self.uvm == Some(major) && minor == 0).then_some(Node::Uvm)
    }

    /// Asks the driver to duplicate an object that cannot exist, handle 0, from `source`; returns
    /// its status.
    fn ask_for_nothing(&self, probe: &OwnClient, source: Handle) -> io::Result<Status> {
        let mut args = encode!(NVOS55_PARAMETERS {
            hClient: probe.client,
            hParent: probe.client,
            hClientSrc: source,
            status: u32::MAX,
        });
        let command = command(NV_ESC_RM_DUP_OBJECT, args.len());
        self.ioctl(&probe.control, DriverCall { command, args: &mut args, buffers: &mut [], files: &[] })?;
        Ok(Status(NVOS55_PARAMETERS::status.get(&args).unwrap_or(u32::MAX)))
    }
}

impl Driver for NvidiaDriver {
    fn ioctl(&self, file: &DeviceFile, call: DriverCall<'_>) -> io::Result<i32> {
        patch::execute(file, call)
    }

    fn in_callers_place(&self, _: &DeviceFile, _: DriverCall<'_>) -> Option<io::Result<i32>> {
        None
    }

    fn open(&self, node: Node) -> io::Result<DeviceFile> {
        let path = self.path_of(node);
        let file = open_node(&path)?;
        if self.node_of(&file)? != Some(node) {
            let message = format!("{} is not the driver's node of that name", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(DeviceFile { node, file: Arc::new(file) })
    }

    fn node_of(&self, file: &File) -> io::Result<Option<Node>> {
        // Not by the standard library, whose `statx` takes longer; this is asked at every call.
        let stat = rustix::fs::fstat(file)?;
        if !FileType::from_raw_mode(stat.st_mode).is_char_device() {
            return Ok(None);
        }
        Ok(self.node_of_number(major(stat.st_rdev), minor(stat.st_rdev)))
    }

    fn client_exists(&self, probe: &OwnClient, client: Handle) -> io::Result<bool> {
        // The driver looks up both clients first (rs_server.c, serverCopyResource), then whether
        // the own one may be used, then the object in the source: which is missing tells how far it
        // came.
        let status = self.ask_for_nothing(probe, client)?;
        match status {
            Status::OBJECT_NOT_FOUND => Ok(true),
            // Being torn down: not gone yet.
            Status::INVALID_STATE => Ok(true),
            // The same words as for a probe that is itself gone.
            Status::INVALID_OBJECT_HANDLE | Status::INVALID_CLIENT
                if self.ask_for_nothing(probe, probe.client)? == Status::OBJECT_NOT_FOUND =>
            {
                Ok(false)
            }
            Status(other) => Err(io::Error::other(format!(
                "the driver answers {other:#x} where it should say whether client {:#x} exists",
                client.0
            ))),
        }
    }

    fn file_watch(&self) -> io::Result<Box<dyn FileWatch>> {
        Ok(Box::new(EpollWatch::new()?))
    }

    fn map_page(&self, abi: &Abi, own: &OwnClient, place: CardPlace) -> io::Result<Box<dyn MappedPage>> {
        nvidia_page::map(self, *abi, own, place)
    }

    fn switch_log(
        &self,
        abi: &Abi,
        own: &OwnClient,
        subdevice: Handle,
    ) -> Result<Option<Box<dyn SwitchLog>>, SwitchLogError> {
        Ok(Some(Box::new(NvidiaSwitchLog::open(Box::new(self.clone()), *abi, own, subdevice)?)))
    }
}

fn open_node(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC).open(path)
}

/// The majors under which `/proc/devices` has one of `names` as a character device.
fn majors_of(devices: &str, names: &[&str]) -> Vec<u32> {
    devices
        .lines()
        .skip_while(|line| !line.starts_with("Character"))
        .take_while(|line| !line.starts_with("Block"))
        .filter_map(|line| {
            let (number, name) = line.trim().split_once(' ')?;
            names.contains(&name.trim()).then(|| number.parse().ok())?
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::same_open_file;

    const DEVICES: &str = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n234 nvidia-caps\n511 nvidia-uvm\n\n\
                           Block devices:\n 195 nvidia-frontend\n";

    fn driver() -> NvidiaDriver {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/devices"), DEVICES).unwrap();
        NvidiaDriver::new(&Roots::under(root.path())).unwrap()
    }

    #[test]
    fn nodes_are_identified_by_their_numbers() {
        let driver = driver();
        for (major, minor, node) in [
            (195, 0, Some(Node::Card(0))),
            (195, 7, Some(Node::Card(7))),
            (195, 255, Some(Node::Control)),
            (195, 254, None),
            (511, 0, Some(Node::Uvm)),
            (511, 1, None),
            (234, 0, None),
            (1, 3, None),
        ] {
            assert_eq!(driver.node_of_number(major, minor), node, "{major}:{minor}");
        }
        assert_eq!(driver.node_of(&File::open("/dev/null").unwrap()).unwrap(), None);
        assert_eq!(driver.node_of(&File::open("/proc/self/exe").unwrap()).unwrap(), None);
    }

    #[test]
    fn a_machine_without_the_driver_has_none() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/devices"), "Character devices:\n  1 mem\n\nBlock devices:\n").unwrap();
        let error = NvidiaDriver::new(&Roots::under(root.path())).unwrap_err();
        assert!(error.to_string().contains("is it loaded"), "{error}");
    }

    #[test]
    fn a_node_that_is_something_else_is_not_opened() {
        let dev = tempfile::tempdir().unwrap();
        std::fs::write(dev.path().join("nvidiactl"), "").unwrap();
        std::os::unix::fs::symlink("/dev/null", dev.path().join("nvidia0")).unwrap();
        let driver = NvidiaDriver { dev: dev.path().to_owned(), ..driver() };
        assert_eq!(driver.open(Node::Control).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(driver.open(Node::Card(0)).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        assert_eq!(driver.open(Node::Uvm).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_duplicate_is_the_same_open_file_and_a_second_open_is_not() {
        let one = File::open("/dev/null").unwrap();
        let duplicate = one.try_clone().unwrap();
        let other = File::open("/dev/null").unwrap();
        match same_open_file(&one, &duplicate) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                testing::skipped("this kernel has no kcmp(2)");
            }
            answer => {
                assert!(answer.unwrap());
                assert!(!same_open_file(&one, &other).unwrap());
            }
        }
    }
}
