//! `/dev/nvidia-uvm`: mappings that keep memory allocated.

use abi::{
    Handle, Node, Status,
    decode::{Range, UvmCall, UvmMemory, UvmObject},
    escapes::Action,
    params::{UVM_MAP_EXTERNAL_ALLOCATION_PARAMS, UVM_MAP_EXTERNAL_ALLOCATION_PARAMS_525, UvmGpuMappingAttributes},
};
use account::{Card, ObjectName};
use base::Bytes;

use crate::{
    Answer, Session,
    in_flight::{CallEnd, InFlightCall, errno},
    locks::lock,
    objects::named_locks::LockName,
};

impl Session {
    pub(crate) fn uvm(&self, flight: &mut InFlightCall<'_>, call: UvmCall) -> Result<Answer, CallEnd> {
        if let Action::Refuse(status, _) = flight.row.action() {
            return Err(CallEnd::Status(status));
        }
        match call {
            UvmCall::Initialize { flags } => self.initialize(flight, flags),
            UvmCall::RegisterGpu(object) => self.register_gpu(flight, object),
            UvmCall::RegisterGpuVaSpace(object) => self.with_object(flight, object.client),
            UvmCall::RegisterChannel { object, .. } => self.register_channel(flight, object),
            UvmCall::UnregisterChannel { client, channel } => {
                self.unregister_channel(flight, ObjectName::new(client, channel))
            }
            UvmCall::CreateExternalRange(range) => self.create_range(flight, range),
            UvmCall::MapExternal(memory) => self.map_external(flight, memory),
            UvmCall::MapSparse { range, uuid } => self.map_nothing(flight, range, uuid, false),
            UvmCall::DynamicParallelism { range, uuid } => self.map_nothing(flight, range, uuid, true),
            UvmCall::UnmapExternal { range, uuid } => self.unmap_external(flight, range, uuid),
            UvmCall::Free { base } => self.free_range(flight, base),
            UvmCall::UnregisterGpu { uuid } | UvmCall::UnregisterGpuVaSpace { uuid } => {
                self.unregister_gpu(flight, uuid)
            }
            UvmCall::CreateRangeGroup => self.create_range_group(flight),
            UvmCall::DestroyRangeGroup => self.destroy_range_group(flight),
            UvmCall::MmInitialize { uvm_fd } => self.mm_initialize(flight, uvm_fd),
            UvmCall::SemaphorePool(range) => self.semaphore_pool(flight, range),
            UvmCall::Advise(range) => self.advise(flight, range),
            UvmCall::DisableReadDuplication(range) => self.about_to_use(flight, range),
            UvmCall::Migrate { range, destination } => self.migrate(flight, range, destination),
            UvmCall::MigrateGroup { destination } => self.migrate_group(flight, destination),
            UvmCall::Deinitialize
            | UvmCall::ValidateVaRange(_)
            | UvmCall::Ranged(_)
            | UvmCall::DeviceP2p(_)
            | UvmCall::Other => self.pass_or_continue(flight),
        }
    }

    fn pass_or_continue(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        match flight.row.action() {
            Action::Execute => self.pass(flight),
            Action::Continue(_) => self.continue_call(flight),
            Action::Refuse(status, _) => Err(CallEnd::Status(status)),
        }
    }

    fn initialize(&self, flight: &mut InFlightCall<'_>, flags: u64) -> Result<Answer, CallEnd> {
        let file = self.uvm_file(flight)?;
        let mm =
            self.managed.address_space(self.processes.as_ref(), flight.pid, flight.caller.thread()).map_err(errno)?;
        flight.confirm()?;
        lock(&self.objects.files).initialize_uvm(file, mm, flags);
        // The flag that tells whether managed memory outlives its process may be another one by the
        // time that the kernel looks, so the worse is taken.
        lock(&self.objects.accounts).uvm_file(file, flight.pid, true);
        self.pass_or_continue(flight)
    }

    /// `UVM_MM_INITIALIZE`: the file that it is made on keeps another one's address space.
    fn mm_initialize(&self, flight: &mut InFlightCall<'_>, uvm_fd: i32) -> Result<Answer, CallEnd> {
        let kept = flight.named_file(self.driver.as_ref(), uvm_fd)?;
        let kept = kept.filter(|file| file.node == Node::Uvm).ok_or(CallEnd::Status(Status::INVALID_ARGUMENT))?;
        let (file, kept) = (self.uvm_file(flight)?, self.known_uvm_file(&kept, flight.pid)?);
        flight.confirm()?;
        // Should the kernel refuse it, or be told another file of the container's by then, one is
        // kept for too long.
        if file != kept {
            lock(&self.objects.accounts).uvm_mm_file(file, kept, flight.pid);
        }
        self.pass_or_continue(flight)
    }

    fn register_gpu(&self, flight: &mut InFlightCall<'_>, object: UvmObject) -> Result<Answer, CallEnd> {
        let card = self.grant.by_uuid_bytes(object.uuid).ok_or(CallEnd::Status(Status::INVALID_DEVICE))?;
        // It makes channels and page tables of its own there, for whoever may have memory to map.
        if self.grant.get(card).is_some_and(|own| own.granted.monitored) {
            return Err(CallEnd::Status(Status::INSUFFICIENT_PERMISSIONS));
        }
        // CUDA names no client (and -1 for its file), except for a part of a card.
        if object.client == Handle::NONE {
            let file = self.uvm_file(flight)?;
            self.duplicate_named(flight)?;
            return self.in_order(flight, file, |flight| flight.execute(self.driver.as_ref()).map(|_| ()));
        }
        self.with_object(flight, object.client)
    }

    /// Ends what the file has mapped on the card, whether the card goes or the address space on it.
    fn unregister_gpu(&self, flight: &mut InFlightCall<'_>, uuid: [u8; 16]) -> Result<Answer, CallEnd> {
        if flight.row.action() != Action::Execute {
            return self.continue_call(flight);
        }
        let file = self.uvm_file(flight)?;
        let card = self.grant.by_uuid_bytes(uuid);
        self.duplicate_named(flight)?;
        self.in_order(flight, file, |flight| {
            let is_ok = flight.execute(self.driver.as_ref())?.is_ok();
            if let Some(card) = card.filter(|_| is_ok) {
                lock(&self.objects.accounts).uvm_card_gone(file, card);
                #[cfg(feature = "parking")]
                self.note_unmapped(file, 0, u64::MAX);
            }
            Ok(())
        })
    }

    /// A call that names an object of a client.
    fn with_object(&self, flight: &mut InFlightCall<'_>, client: Handle) -> Result<Answer, CallEnd> {
        // A card is registered without a client, except for MIG.
        if client != Handle::NONE {
            self.check_client(client)?;
        }
        let file = self.uvm_file(flight)?;
        self.duplicate_named(flight)?;
        self.in_order_with(flight, file, &[LockName::Client(client)], |flight| {
            flight.execute(self.driver.as_ref()).map(|_| ())
        })
    }

    /// The file keeps the channel's number, its group and their buffers, whatever becomes of the
    /// handles.
    fn register_channel(&self, flight: &mut InFlightCall<'_>, object: UvmObject) -> Result<Answer, CallEnd> {
        let UvmObject { uuid, client, object, .. } = object;
        self.check_client(client)?;
        let card = self.grant.by_uuid_bytes(uuid).ok_or(CallEnd::Status(Status::INVALID_DEVICE))?;
        let file = self.uvm_file(flight)?;
        self.duplicate_named(flight)?;
        flight.confirm()?;
        self.reserve(flight.pid, |accounts| accounts.registration_fits())?;
        self.in_order_with(flight, file, &[LockName::Client(client)], |flight| {
            if flight.execute(self.driver.as_ref())?.is_ok() {
                lock(&self.objects.accounts).register_channel(file, card, ObjectName::new(client, object));
            }
            Ok(())
        })
    }

    /// A little of the kernel's memory, that nobody counts.
    fn create_range_group(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        let file = self.uvm_file(flight)?;
        flight.confirm()?;
        self.reserve(flight.pid, |accounts| accounts.range_group_fits())?;
        self.in_order(flight, file, |flight| {
            if flight.execute(self.driver.as_ref())?.is_ok() {
                lock(&self.objects.accounts).range_group(file);
            }
            Ok(())
        })
    }

    fn destroy_range_group(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        let file = self.uvm_file(flight)?;
        self.in_order(flight, file, |flight| {
            if flight.execute(self.driver.as_ref())?.is_ok() {
                lock(&self.objects.accounts).range_group_gone(file);
            }
            Ok(())
        })
    }

    fn unregister_channel(&self, flight: &mut InFlightCall<'_>, channel: ObjectName) -> Result<Answer, CallEnd> {
        let file = self.uvm_file(flight)?;
        self.in_order(flight, file, |flight| {
            if flight.execute(self.driver.as_ref())?.is_ok() {
                lock(&self.objects.accounts).unregister_channel(file, channel);
            }
            Ok(())
        })
    }

    /// Executed, whatever the table says: the length of a range decides what its end releases.
    fn create_range(&self, flight: &mut InFlightCall<'_>, range: Range) -> Result<Answer, CallEnd> {
        let file = self.uvm_file(flight)?;
        flight.confirm()?;
        self.reserve(flight.pid, |accounts| accounts.external_range_fits())?;
        self.in_order(flight, file, |flight| {
            if flight.execute(self.driver.as_ref())?.is_ok() {
                lock(&self.objects.accounts).external_range(file, range.base, range.length);
            }
            Ok(())
        })
    }

    fn free_range(&self, flight: &mut InFlightCall<'_>, base: u64) -> Result<Answer, CallEnd> {
        let file = self.uvm_file(flight)?;
        self.in_order(flight, file, |flight| {
            #[cfg(feature = "parking")]
            let length = {
                let ranges = lock(&self.objects.accounts).external_ranges(file);
                ranges.into_iter().find(|(first, _)| *first == base).map_or(0, |(_, length)| length)
            };
            if flight.execute(self.driver.as_ref())?.is_ok() {
                #[cfg(feature = "parking")]
                self.note_unmapped(file, base, length);
                lock(&self.objects.accounts).free_range(file, base);
            }
            Ok(())
        })
    }

    /// Memory is mapped into a range.
    fn map_external(&self, flight: &mut InFlightCall<'_>, map: UvmMemory) -> Result<Answer, CallEnd> {
        let UvmMemory { range, client, memory, .. } = map;
        let memory = ObjectName::new(client, memory);
        self.check_client(client)?;
        let file = self.uvm_file(flight)?;
        let cards = self.mapped_cards(flight);
        self.duplicate_named(flight)?;
        flight.confirm()?;
        self.reserve(flight.pid, |accounts| accounts.external_range_fits())?;
        let tables = self.reserve(flight.pid, |accounts| accounts.reserve_page_tables(&cards, range.length))?;
        let answer = self.in_order_with(flight, file, &[LockName::Client(memory.client)], |flight| {
            let hold = lock(&self.objects.accounts).hold(memory)?;
            let status = flight.execute(self.driver.as_ref());
            let mut accounts = lock(&self.objects.accounts);
            if status.is_ok_and(Status::is_ok) {
                #[cfg(feature = "parking")]
                self.note_mapped(flight, file, &map);
                accounts.map(hold, file, range.base, range.length, &cards);
            } else {
                accounts.release(hold);
            }
            status.map(|_| ())
        });
        lock(&self.objects.accounts).release_page_tables(tables);
        answer
    }

    /// Addresses behind which there is no memory, of a range or of one that the call begins itself:
    /// they need page tables too.
    fn map_nothing(
        &self,
        flight: &mut InFlightCall<'_>,
        range: Range,
        uuid: [u8; 16],
        begins: bool,
    ) -> Result<Answer, CallEnd> {
        let file = self.uvm_file(flight)?;
        let card = self.grant.by_uuid_bytes(uuid).ok_or(CallEnd::Status(Status::INVALID_DEVICE))?;
        flight.confirm()?;
        let tables = self.reserve(flight.pid, |accounts| {
            accounts.external_range_fits()?;
            accounts.reserve_page_tables(&[card], range.length)
        })?;
        let answer = self.in_order(flight, file, |flight| {
            if flight.execute(self.driver.as_ref())?.is_ok() {
                let mut accounts = lock(&self.objects.accounts);
                if begins {
                    accounts.external_range(file, range.base, range.length);
                }
                #[cfg(feature = "parking")]
                self.note_unmapped(file, range.base, range.length);
                accounts.map_nothing(file, range.base, range.length, card);
            }
            Ok(())
        });
        lock(&self.objects.accounts).release_page_tables(tables);
        answer
    }

    /// The host's memory. libcuda maps it next, which is charged as managed memory, for the file
    /// may be another one by then; a refusal there is an "unknown error" to it, and so there must
    /// be room already.
    fn semaphore_pool(&self, flight: &mut InFlightCall<'_>, range: Range) -> Result<Answer, CallEnd> {
        let file = self.uvm_file(flight)?;
        let length = Bytes(range.length);
        flight.confirm()?;
        self.reserve(flight.pid, |accounts| accounts.managed_fits(length))?;
        let cards: Vec<Card> = lock(&self.objects.accounts).cards().map(|(card, _)| card).collect();
        let tables = self.reserve(flight.pid, |accounts| accounts.reserve_page_tables(&cards, length.0))?;
        let mut pool = match self.reserve(flight.pid, |accounts| accounts.reserve_pool(flight.pid, length)) {
            Ok(pool) => Some(pool),
            Err(end) => {
                lock(&self.objects.accounts).release_page_tables(tables);
                return Err(end);
            }
        };
        let answer = self.in_order(flight, file, |flight| {
            let is_ok = flight.execute(self.driver.as_ref())?.is_ok();
            if let Some(pool) = pool.take_if(|_| is_ok) {
                lock(&self.objects.accounts).pool(pool, file, range.base, range.length);
            }
            Ok(())
        });
        let mut accounts = lock(&self.objects.accounts);
        accounts.release_page_tables(tables);
        if let Some(pool) = pool {
            accounts.release(pool);
        }
        drop(accounts);
        answer
    }

    /// Returns the cards that a call to map memory names.
    fn mapped_cards(&self, flight: &InFlightCall<'_>) -> Vec<Card> {
        use UVM_MAP_EXTERNAL_ALLOCATION_PARAMS as Params;
        use UVM_MAP_EXTERNAL_ALLOCATION_PARAMS_525 as Params525;
        let field = match flight.args.len() {
            Params::SIZE => Params::gpuAttributesCount,
            _ => Params525::gpuAttributesCount,
        };
        let count = field.get(&flight.args).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
        let entries = flight.args.get(Params::perGpuAttributes.at()..field.at()).unwrap_or_default();
        let entries = entries.chunks_exact(UvmGpuMappingAttributes::SIZE).take(count);
        let uuid = |entry: &[u8]| UvmGpuMappingAttributes::gpuUuid.get(entry);
        let mut cards: Vec<Card> = entries.filter_map(uuid).filter_map(|uuid| self.grant.by_uuid_bytes(uuid)).collect();
        cards.sort_unstable();
        cards.dedup();
        cards
    }

    fn unmap_external(&self, flight: &mut InFlightCall<'_>, range: Range, uuid: [u8; 16]) -> Result<Answer, CallEnd> {
        let file = self.uvm_file(flight)?;
        let card = self.grant.by_uuid_bytes(uuid);
        flight.confirm()?;
        if let Some(card) = card {
            self.reserve(flight.pid, |accounts| accounts.unmap_fits(file, card, range.base, range.length))?;
        }
        self.in_order(flight, file, |flight| {
            let is_ok = flight.execute(self.driver.as_ref())?.is_ok();
            if let Some(card) = card.filter(|_| is_ok) {
                #[cfg(feature = "parking")]
                self.note_unmapped(file, range.base, range.length);
                lock(&self.objects.accounts).unmap(file, card, range.base, range.length);
            }
            Ok(())
        })
    }
}
