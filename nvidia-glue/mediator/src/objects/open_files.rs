//! Open files of the container that stand for something by themselves: control files with clients,
//! UVM address spaces, and files to which objects were exported.
//!
//! The driver ties all of them to the open file, whatever its descriptors' numbers are, and a
//! process may have the same one under several numbers, or hand it to another process, also one of
//! another container. So a duplicate of each is kept, by which it is known again and what hangs on
//! it can be ended, until no process of the container has it any more.

use std::{collections::BTreeSet, fs::File, io, sync::Arc, time::Instant};

use abi::Handle;
use account::{ExportFile, Mm, UvmFile};
use base::Pid;
use driver::{DeviceFile, same_open_file};

/// A control file with clients, by number; none is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ControlFile(u64);

/// A control file on which clients were made: the driver takes calls in them on this file alone,
/// and frees them at its last close, which is not in the container's hands alone.
#[derive(Debug, Clone)]
pub(crate) struct RetainedControlFile {
    pub(crate) id: ControlFile,
    pub(crate) file: DeviceFile,
    /// Process that made the first client on it; most likely to have it still.
    pub(crate) opener: Pid,
    pub(crate) clients: BTreeSet<Handle>,
}

#[derive(Debug, Clone)]
pub(crate) struct RetainedUvmFile {
    pub(crate) id: UvmFile,
    /// Address space and flags with which it was initialised first, for all that is known.
    pub(crate) initialized: Option<(Mm, u64)>,
    pub(crate) file: DeviceFile,
    /// Process that made the first call on it; most likely to have it still.
    pub(crate) opener: Pid,
}

/// A file that the container takes for an export, and the one on which the export really is.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) id: ExportFile,
    pub(crate) token: Arc<File>,
    /// A control file of the mediator's own: what was exported to it ends with the mediator,
    /// wherever the token has gone.
    pub(crate) own: DeviceFile,
    pub(crate) exporter: Pid,
    /// Objects that the driver keeps room for with the file.
    room: u16,
    /// Since when no process has it. It may be on its way through a socket.
    pub(crate) unheld_since: Option<Instant>,
}

/// Most control files with clients.
const MOST_CONTROL: usize = if cfg!(test) { 64 } else { 1024 };
/// Most UVM files: each keeps an address space of the kernel's, though no process may have it any
/// more.
pub(crate) const MOST_UVM: usize = if cfg!(test) { 64 } else { 512 };
/// Most exports; each takes two descriptors of the mediator's.
const MOST_TOKENS: usize = 4096;
/// Most objects that the driver keeps room for with all exports together, 4 bytes each. libcuda
/// asks for one for each 32 MiB that a memory pool can have.
const MOST_ROOM: usize = 1 << 21;

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    controls: Vec<RetainedControlFile>,
    uvm: Vec<RetainedUvmFile>,
    tokens: Vec<Token>,
    next: u64,
    /// The container has ended: nothing is taken up any more.
    is_over: bool,
}

impl OpenFiles {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// From now on no file is taken up that is not known yet.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
    }

    /// Returns whether that was said.
    pub(crate) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// The number of a control file on which a client is to be made; a new one if there is none on
    /// it. `EMFILE` when there are too many.
    pub(crate) fn control(&mut self, file: &DeviceFile, pid: Pid) -> io::Result<ControlFile> {
        for kept in self.controls.iter().rev() {
            if same_open_file(&kept.file.file, &file.file)? {
                return Ok(kept.id);
            }
        }
        if self.is_over {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        if self.controls.len() >= MOST_CONTROL {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let id = ControlFile(self.number());
        self.controls.push(RetainedControlFile { id, file: file.clone(), opener: pid, clients: BTreeSet::new() });
        Ok(id)
    }

    pub(crate) fn knows_control(&self, id: ControlFile) -> bool {
        self.controls.iter().any(|kept| kept.id == id)
    }

    /// The file that a client lives on.
    pub(crate) fn control_of(&self, client: Handle) -> Option<RetainedControlFile> {
        self.controls.iter().find(|kept| kept.clients.contains(&client)).cloned()
    }

    pub(crate) fn all_controls(&self) -> Vec<RetainedControlFile> {
        self.controls.clone()
    }

    pub(crate) fn has_controls(&self) -> bool {
        !self.controls.is_empty()
    }

    /// A client was made on a file. Whoever had the handle before is gone.
    pub(crate) fn add_client(&mut self, id: ControlFile, client: Handle) {
        self.remove_client(client);
        if let Some(kept) = self.controls.iter_mut().find(|kept| kept.id == id) {
            kept.clients.insert(client);
        }
    }

    /// A client is gone; its file is of no interest any more when it was the last.
    pub(crate) fn remove_client(&mut self, client: Handle) {
        self.controls.retain_mut(|kept| !kept.clients.remove(&client) || !kept.clients.is_empty());
    }

    /// Forgets a file on which no client could be made.
    pub(crate) fn remove_unused_control(&mut self, id: ControlFile) {
        self.controls.retain(|kept| kept.id != id || !kept.clients.is_empty());
    }

    pub(crate) fn take_control(&mut self, id: ControlFile) -> Option<RetainedControlFile> {
        let at = self.controls.iter().position(|kept| kept.id == id)?;
        Some(self.controls.swap_remove(at))
    }

    /// Keeps a file again of which something is left.
    pub(crate) fn put_back_control(&mut self, kept: RetainedControlFile) {
        self.controls.push(kept);
    }

    /// A file that the next call of a process is likely to be made on: the one that it used last
    /// for such calls, as far as that is known, or one that it has made a client on.
    pub(crate) fn likely(&self, pid: Pid, is_escape: bool) -> Option<DeviceFile> {
        let control = || self.controls.iter().rev().find(|kept| kept.opener == pid).map(|kept| &kept.file);
        let uvm = || self.uvm.iter().rev().find(|kept| kept.opener == pid).map(|kept| &kept.file);
        if is_escape { control() } else { uvm() }.cloned()
    }

    /// The number of a UVM file; a new one if it was never seen. `EMFILE` when there are too many.
    pub(crate) fn uvm(&mut self, file: &DeviceFile, pid: Pid) -> io::Result<UvmFile> {
        // The last used is the last, and looked at first: each of the others costs a system call.
        for at in (0..self.uvm.len()).rev() {
            let Some(kept) = self.uvm.get(at) else { continue };
            if Arc::ptr_eq(&kept.file.file, &file.file) || same_open_file(&kept.file.file, &file.file)? {
                let id = kept.id;
                let last = self.uvm.len() - 1;
                self.uvm.swap(at, last);
                return Ok(id);
            }
        }
        if self.is_over {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        if self.uvm.len() >= MOST_UVM {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let id = UvmFile(self.number());
        self.uvm.push(RetainedUvmFile { id, initialized: None, file: file.clone(), opener: pid });
        Ok(id)
    }

    pub(crate) fn knows_uvm(&self, id: UvmFile) -> bool {
        self.uvm.iter().any(|kept| kept.id == id)
    }

    /// A UVM file is about to be initialised.
    pub(crate) fn initialize_uvm(&mut self, id: UvmFile, mm: Mm, flags: u64) {
        if let Some(kept) = self.uvm.iter_mut().find(|kept| kept.id == id) {
            kept.initialized.get_or_insert((mm, flags));
        }
    }

    pub(crate) fn uvm_file(&self, id: UvmFile) -> Option<RetainedUvmFile> {
        self.uvm.iter().find(|kept| kept.id == id).cloned()
    }

    /// UVM files in which an address space can have managed memory.
    pub(crate) fn uvm_of(&self, mm: Mm) -> Vec<UvmFile> {
        let is_meant = |kept: &&RetainedUvmFile| kept.initialized.is_some_and(|(of, _)| of == mm);
        self.uvm.iter().filter(is_meant).map(|kept| kept.id).collect()
    }

    pub(crate) fn all_uvm(&self) -> Vec<RetainedUvmFile> {
        self.uvm.clone()
    }

    pub(crate) fn remove_uvm(&mut self, id: UvmFile) {
        self.uvm.retain(|kept| kept.id != id);
    }

    /// The export that a file stands for.
    pub(crate) fn token(&self, file: &File) -> io::Result<Option<Token>> {
        for token in self.tokens.iter().rev() {
            if same_open_file(&token.token, file)? {
                return Ok(Some(token.clone()));
            }
        }
        Ok(None)
    }

    /// Returns whether one more may stand for something.
    pub(crate) fn has_room_for_a_token(&self) -> bool {
        self.tokens.len() < MOST_TOKENS
    }

    /// A file is to stand for what is on `own`.
    pub(crate) fn add_token(&mut self, token: Arc<File>, own: DeviceFile, exporter: Pid) -> Token {
        let id = ExportFile(self.number());
        let token = Token { id, token, own, exporter, room: 0, unheld_since: None };
        self.tokens.push(token.clone());
        token
    }

    /// Notes that the driver is to keep room for so many objects with an export. Returns whether it
    /// may.
    pub(crate) fn reserve_room(&mut self, id: ExportFile, room: u16) -> bool {
        let others = self.tokens.iter().filter(|token| token.id != id).map(|token| usize::from(token.room));
        let has_room = others.sum::<usize>() + usize::from(room) <= MOST_ROOM;
        if let Some(token) = self.tokens.iter_mut().find(|token| token.id == id && has_room) {
            token.room = token.room.max(room);
        }
        has_room
    }

    pub(crate) fn knows_token(&self, id: ExportFile) -> bool {
        self.tokens.iter().any(|token| token.id == id)
    }

    pub(crate) fn all_tokens(&self) -> Vec<Token> {
        self.tokens.clone()
    }

    pub(crate) fn set_unheld(&mut self, id: ExportFile, since: Option<Instant>) {
        if let Some(token) = self.tokens.iter_mut().find(|token| token.id == id) {
            token.unheld_since = since;
        }
    }

    pub(crate) fn remove_token(&mut self, id: ExportFile) {
        self.tokens.retain(|token| token.id != id);
    }
}

#[cfg(test)]
mod tests {
    use abi::Node;

    use super::*;

    fn device(file: File) -> DeviceFile {
        DeviceFile { node: Node::Uvm, file: Arc::new(file) }
    }

    #[test]
    fn a_file_is_known_again_by_any_duplicate() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("uvm");
        let one = File::create(&path).unwrap();
        let other = File::open(&path).unwrap();
        let mut files = OpenFiles::default();
        let first = files.uvm(&device(one.try_clone().unwrap()), Pid(1)).unwrap();
        assert_ne!(files.uvm(&device(other.try_clone().unwrap()), Pid(1)).unwrap(), first);
        assert_eq!(files.uvm(&device(one.try_clone().unwrap()), Pid(2)).unwrap(), first);
        files.remove_uvm(first);
        assert!(!files.knows_uvm(first));
        assert_ne!(files.uvm(&device(one.try_clone().unwrap()), Pid(2)).unwrap(), first, "numbers are not used again");

        assert!(files.token(&one).unwrap().is_none());
        let token = files.add_token(Arc::new(one.try_clone().unwrap()), device(other), Pid(1));
        assert_eq!(files.token(&one).unwrap().map(|token| token.id), Some(token.id));
        files.remove_token(token.id);
        assert!(files.token(&one).unwrap().is_none());
    }

    #[test]
    fn the_likely_file_is_the_process_s_own_which_it_used_last() {
        let mut files = OpenFiles::default();
        let open = || device(tempfile::tempfile().unwrap());
        let [own, other, later, control] = [open(), open(), open(), open()];
        for (file, pid) in [(&own, Pid(1)), (&later, Pid(1)), (&other, Pid(2)), (&own, Pid(1))] {
            files.uvm(file, pid).unwrap();
        }
        files.control(&control, Pid(1)).unwrap();
        let is = |found: Option<DeviceFile>, file: &DeviceFile| Arc::ptr_eq(&found.unwrap().file, &file.file);
        assert!(is(files.likely(Pid(1), false), &own) && is(files.likely(Pid(2), false), &other));
        assert!(is(files.likely(Pid(1), true), &control));
        assert!(files.likely(Pid(2), true).is_none() && files.likely(Pid(3), false).is_none());
    }
}
