//! Processes, their address spaces and managed memory.

use std::collections::BTreeSet;

use super::{
    api::{Bytes, ExportFile, ManagedReservation, Mapping, Mm, Pid, UvmFile},
    program::{Look, Program},
    world::{Mmap, PAGE, PAGES_OF_A_BLOCK, Vma, World},
};

/// Pages that are charged for a range: whole blocks, unless it begins with one and is not smaller.
fn charged(page: u64, pages: u64) -> u64 {
    if page.is_multiple_of(PAGES_OF_A_BLOCK) && pages >= PAGES_OF_A_BLOCK {
        return pages;
    }
    ((page + pages - 1) / PAGES_OF_A_BLOCK - page / PAGES_OF_A_BLOCK + 1) * PAGES_OF_A_BLOCK
}

impl Program<'_> {
    /// fork, with descriptors and an address space of its own (at times with copies of managed
    /// memory, `MADV_DOFORK`), or one shared with its parent (`CLONE_VM`).
    pub(super) fn fork(&mut self) -> Option<()> {
        let parent = self.process()?;
        if self.world.processes.len() >= 6 {
            return None;
        }
        let (child, mm) = (self.next_process, *self.world.processes.get(&parent)?);
        self.next_process += 1;
        let World { control, uvm, export, .. } = &mut self.world;
        for file in control.iter_mut().chain(uvm).chain(export) {
            if file.holders.contains(&parent) {
                file.holders.insert(child);
            }
        }
        let choice = self.byte();
        if choice.is_multiple_of(4) {
            self.world.processes.insert(child, mm);
            return Some(());
        }
        let of_child = self.next_mm;
        self.next_mm += 1;
        self.world.processes.insert(child, of_child);
        if choice % 16 == 1 {
            let of_parent = self.world.vmas.range((mm, 0)..=(mm, u64::MAX));
            let copies: Vec<_> = of_parent.map(|(&(_, page), vma)| ((of_child, page), vma.file)).collect();
            self.behind |= !copies.is_empty();
            self.copied |= !copies.is_empty();
            for (key, file) in copies {
                self.world.vmas.insert(key, Vma { file, enabled: false, is_on_host: false });
            }
        }
        Some(())
    }

    pub(super) fn exit(&mut self) -> Option<()> {
        let process = self.process().filter(|_| self.byte().is_multiple_of(2))?;
        let mm = *self.world.processes.get(&process)?;
        // Of a file that is shared, ranges count as kept whose `mmap` never happened, or that were
        // unmapped since the last look.
        let of_mm = self.mapped_of.range((mm, 0)..=(mm, u64::MAX));
        self.mixed |= of_mm.into_iter().any(|(_, &(file, _))| self.world.uvm[file].shared);
        // Of what fork has copied, the file is not known: it may be one of those.
        self.mixed |= self.copied && self.world.uvm.iter().any(|file| file.alive && file.shared);
        self.world.exit(process);
        self.behind = true;
        if self.byte().is_multiple_of(2) {
            let ended = self.accounts.process_ended(Pid(process));
            for client in ended.clients.into_iter().filter(|client| !self.world.clients.contains_key(&client.0)) {
                self.accounts.client_gone(client);
            }
            for file in ended.uvm_files {
                self.report_uvm(usize::try_from(file.0).unwrap());
            }
        }
        Some(())
    }

    /// Descriptors travel (`SCM_RIGHTS`), or are closed.
    pub(super) fn pass_files(&mut self) -> Option<()> {
        let (from, to) = (self.process()?, self.process()?);
        let choice = usize::from(self.byte());
        let World { control, uvm, export, .. } = &mut self.world;
        let mut held: Vec<_> = control.iter_mut().chain(uvm).chain(export).collect();
        held.retain(|file| file.holders.contains(&from));
        let count = held.len().max(1);
        let file = held.get_mut(choice / 2 % count)?;
        if choice.is_multiple_of(2) {
            file.holders.insert(to);
        } else {
            file.holders.remove(&from);
            self.world.close_unheld();
            self.behind = true;
        }
        Some(())
    }

    /// A thread asks for a range; the kernel maps it later.
    pub(super) fn mmap(&mut self) -> Option<()> {
        let mmap = self.begin_mmap(false)?;
        let Mmap { process, page, pages, .. } = mmap;
        let usages: Vec<_> = self.accounts.cards().map(|(_, usage)| usage).collect();
        let asked = charged(page, pages) * PAGE;
        let fits = usages
            .iter()
            .all(|usage| usage.used.0 + asked <= usage.limit.0 && usage.frames.0 + asked <= usage.frames_limit.0);
        let Ok(reservation) = self.accounts.reserve_managed(Pid(process), page * PAGE, Bytes(pages * PAGE)) else {
            assert!(!fits || self.accounts.counts().managed_ranges > 0, "it fits, but was refused");
            return None;
        };
        assert!(fits, "it does not fit, but was reserved");
        if self.byte().is_multiple_of(8) {
            self.accounts.cancel_managed(reservation);
            return None;
        }
        self.commit_mmap(reservation, mmap)
    }

    /// A thread that maps nothing else makes a call.
    fn begin_mmap(&mut self, is_on_host: bool) -> Option<Mmap> {
        let (process, file) = (self.process()?, self.uvm()?);
        let thread = process * 2 + i32::from(self.byte() % 2);
        if self.world.mmaps.iter().any(|mmap| mmap.thread == thread) {
            return None;
        }
        let (page, pages) = self.span();
        let mm = *self.world.processes.get(&process)?;
        self.accounts.thread_called(thread);
        Some(Mmap { process, thread, mm, file, page, pages, is_on_host })
    }

    fn commit_mmap(&mut self, reservation: ManagedReservation, mmap: Mmap) -> Option<()> {
        let Mmap { thread, mm, file, page, pages, .. } = mmap;
        self.accounts.commit_managed(reservation, Mm(mm), UvmFile(file as u64), thread).ok()?;
        let new = (file, mmap.is_on_host);
        for page in page..page + pages {
            self.mixed |= *self.mapped_of.entry((mm, page)).or_insert(new) != new;
        }
        self.world.mmaps.push(mmap);
        self.behind = true;
        Some(())
    }

    /// The same of a range that is to stay on the host.
    pub(super) fn mmap_on_host(&mut self) -> Option<()> {
        let mmap = self.begin_mmap(true)?;
        let (start, length) = (mmap.page * PAGE, Bytes(mmap.pages * PAGE));
        let reservation = self.accounts.reserve_managed_on_host(Pid(mmap.process), start, length).ok()?;
        self.commit_mmap(reservation, mmap)
    }

    /// The driver is told of ranges that are to stay on the host, where it can be.
    pub(super) fn tell(&mut self) -> Option<()> {
        for (mm, part) in self.accounts.untold_managed() {
            let pages = part.start / PAGE..(part.start + part.length) / PAGE;
            let files: BTreeSet<usize> =
                pages.filter_map(|page| Some(self.world.vmas.get(&(mm.0, page))?.file)).collect();
            match files.iter().collect::<Vec<_>>().as_slice() {
                [] => {}
                [file] => self.accounts.managed_was_told(mm, UvmFile(**file as u64), part, Bytes(0)),
                _ => {
                    let charged = self.accounts.managed_cannot_be_told(mm, part);
                    self.may_exceed = self.may_exceed.map(|may| may || charged.0 > 0);
                    self.behind = true;
                }
            }
        }
        Some(())
    }

    /// A call brings onto cards what is on the host, as far as that fits.
    pub(super) fn move_to_cards(&mut self) -> Option<()> {
        let file = self.uvm()?;
        let (page, pages) = self.span();
        let parts = self.accounts.move_managed_to_cards(UvmFile(file as u64), page * PAGE, pages * PAGE).ok()?;
        let is_meant = |at: u64| parts.iter().any(|part| (part.start..part.start + part.length).contains(&(at * PAGE)));
        for (_, vma) in self.world.vmas.iter_mut().filter(|((_, at), _)| is_meant(*at)) {
            vma.is_on_host &= vma.file != file;
            // The account does not know whose it is.
            self.mixed |= vma.is_on_host;
        }
        // It is moved before it is there.
        self.mixed |= self.world.mmaps.iter().any(|mmap| mmap.is_on_host);
        Some(())
    }

    pub(super) fn execute_mmap(&mut self) -> Option<()> {
        let index = self.below(self.world.mmaps.len());
        if index >= self.world.mmaps.len() {
            return None;
        }
        let Mmap { mm, file, page, pages, is_on_host, .. } = self.world.mmaps.swap_remove(index);
        if !self.byte().is_multiple_of(4) {
            for page in page..page + pages {
                self.world.vmas.insert((mm, page), Vma { file, enabled: true, is_on_host });
            }
        }
        self.world.close_unheld();
        self.behind = true;
        Some(())
    }

    pub(super) fn munmap(&mut self) -> Option<()> {
        let process = self.process()?;
        let (page, pages) = self.span();
        let mm = *self.world.processes.get(&process)?;
        let covers = |&(of, at): &(u64, u64)| of == mm && (page..page + pages).contains(&at);
        self.world.vmas.retain(|key, _| !covers(key));
        self.world.close_unheld();
        self.behind = true;
        Some(())
    }

    /// Begins a comparison with what is mapped, or reads one more address space for it.
    pub(super) fn look(&mut self) -> Option<()> {
        let choice = self.byte();
        if self.looks.is_empty() || (self.looks.len() < 2 && choice.is_multiple_of(4)) {
            self.settle_threads(choice.is_multiple_of(2));
            let left = self.world.processes.values().copied().collect();
            self.looks.push(Look { sync: self.accounts.begin_sync(), left, read: Vec::new() });
        }
        let process = self.process()?;
        let mm = *self.world.processes.get(&process)?;
        let mappings = self.mappings(mm);
        let index = self.below(self.looks.len());
        let look = self.looks.get_mut(index)?;
        look.read.push((mm, process, mappings));
        Some(())
    }

    /// Reports the mappings that a comparison has read, and ends it if they were the last.
    pub(super) fn tell_look(&mut self) -> Option<()> {
        let index = self.below(self.looks.len());
        let look = self.looks.get_mut(index)?;
        for (mm, process, mappings) in std::mem::take(&mut look.read) {
            look.left.remove(&mm);
            let drift = self.accounts.set_managed(&mut look.sync, Mm(mm), Pid(process), &mappings);
            self.may_exceed = self.may_exceed.map(|may| may || !drift.found.is_empty());
        }
        // One that has ended meanwhile need not be read.
        look.left.retain(|mm| self.world.processes.values().any(|of| of == mm));
        if look.left.is_empty() {
            let look = self.looks.swap_remove(index);
            self.accounts.finish_sync(look.sync);
        }
        Some(())
    }

    fn mappings(&self, mm: u64) -> Vec<Mapping> {
        let shown = self.world.mapped(mm).into_iter();
        shown.map(|(page, pages)| Mapping { start: page * PAGE, length: pages * PAGE }).collect()
    }

    /// Reports as returned the threads that are gone, or else those that are not in a `mmap`.
    fn settle_threads(&mut self, gone_only: bool) {
        for thread in self.accounts.pending_threads() {
            let gone = !self.world.processes.contains_key(&(thread / 2));
            let back = !self.world.mmaps.iter().any(|mmap| mmap.thread == thread);
            if back && (gone || !gone_only) {
                self.accounts.thread_called(thread);
            }
        }
    }

    /// A UVM file of which there is no descriptor, and which nothing keeps as far as the account
    /// knows, is given up, and what it has is freed: should something keep it all the same (a copy
    /// that fork has made), there is nothing in it.
    fn report_uvm(&mut self, index: usize) {
        let file = UvmFile(index as u64);
        if self.world.uvm[index].holders.is_empty()
            && !self.accounts.is_uvm_file_kept(file)
            && self.reported.insert(index)
        {
            self.world.empty_uvm(index);
            self.accounts.uvm_file_gone(file);
        }
    }

    /// Reports everything that has ended.
    pub(super) fn catch_up(&mut self) -> Option<()> {
        self.looks.clear();
        while !self.world.mmaps.is_empty() {
            self.execute_mmap();
        }
        for (client, _) in self.accounts.clients().collect::<Vec<_>>() {
            if !self.world.clients.contains_key(&client.0) {
                self.accounts.client_gone(client);
            }
        }
        for file in self.accounts.export_files() {
            if !self.world.export[usize::try_from(file.0).unwrap()].alive {
                self.accounts.export_file_gone(ExportFile(file.0));
            }
        }
        self.settle_threads(false);
        let mut sync = self.accounts.begin_sync();
        let mms: BTreeSet<_> = self.world.processes.iter().map(|(&process, &mm)| (mm, process)).collect();
        for (mm, process) in mms {
            let mappings = self.mappings(mm);
            let drift = self.accounts.set_managed(&mut sync, Mm(mm), Pid(process), &mappings);
            self.may_exceed = self.may_exceed.map(|may| may || !drift.found.is_empty());
        }
        self.accounts.finish_sync(sync);
        // A file that another one keeps was opened before it: the later ones first.
        for index in (0..self.world.uvm.len()).rev() {
            self.report_uvm(index);
        }
        // What fork has copied is charged though it is nothing, and may keep files that are closed.
        self.behind = self.world.vmas.values().any(|vma| !vma.enabled);
        Some(())
    }
}
