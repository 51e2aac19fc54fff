//! The rest of a call: work that is left once its answer is sent.

use abi::Handle;
use account::ObjectName;
use driver::DeviceFile;

use crate::{Session, session::managed_on_host::Untold};

/// Work that is left for a call once its answer is sent: [`Session::answered`].
#[derive(Debug)]
pub enum Sequel {
    /// Something was made, which nobody will use who does not hear of it.
    Undo(Undo),
    /// The kernel is about to map something of which the driver must know where to keep it.
    #[expect(private_interfaces, reason = "to be handed back as it is")]
    Tell(Untold),
}

/// Objects that were made in a call, to be unmade if nobody hears of it. Keeps the caller's file
/// open.
#[derive(Debug)]
pub struct Undo {
    pub(super) file: DeviceFile,
    pub(super) made: Vec<ObjectName>,
    pub(super) pinning: Option<Handle>,
}

impl Session {
    /// Does what is left to do for a call. `is_heard`: its answer has reached the caller. Without
    /// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV` a signal interrupts a call that has been executed
    /// (`ENOENT` from `SECCOMP_IOCTL_NOTIF_SEND`), and the program makes it again.
    pub fn answered(&self, sequel: Sequel, is_heard: bool) {
        match sequel {
            Sequel::Undo(Undo { file, made, pinning }) if !is_heard => {
                made.into_iter().for_each(|made| self.unmake(&file, made));
                if let Some(pinning) = pinning {
                    self.undo_pinning(pinning);
                }
            }
            Sequel::Tell(untold) if is_heard => self.tell_when_mapped(untold),
            Sequel::Undo(_) | Sequel::Tell(_) => {}
        }
    }
}
