//! Objects by class: `NV_ESC_RM_ALLOC`, `NV_ESC_RM_ALLOC_OBJECT`, `NV_ESC_RM_ALLOC_CONTEXT_DMA2`.

use abi::{
    Status,
    classes::{Class, ClassKind},
    decode::{Alloc, AllocContextDma, AllocObject},
    layout::Direction,
    params::{NV_MEMORY_ALLOCATION_PARAMS, NVOS39_PARAMETERS, NVOS64_PARAMETERS},
};
use account::{Card, ObjectName};
use base::Bytes;
use driver::Holder;

use crate::{
    Answer, Session, UnknownKind,
    calls::{
        alloc_overrides,
        object_alloc::{AllocAbort, AllocSource, ObjectAlloc},
    },
    channels::driver_time,
    in_flight::{CallEnd, InFlightCall},
    memory::{context_buffers, kernel_mappings::ContextDmaFields},
};

impl Session {
    pub(crate) fn alloc(&self, flight: &mut InFlightCall<'_>, alloc: Alloc) -> Result<Answer, CallEnd> {
        let class = self.known_class(alloc.class)?;
        // The driver believes this size.
        if alloc.said_params_size > PARAMS_MOST {
            return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
        }
        if alloc.params != 0 {
            flight.copy_unsized(NVOS64_PARAMETERS::pAllocParms.at(), alloc.params, alloc.buffer_size())?;
        }
        if alloc.rights != 0 {
            let (at, length) = (NVOS64_PARAMETERS::pRightsRequested.at(), Alloc::RIGHTS_SIZE);
            flight.copy(Holder::Args, at, alloc.rights, length, Direction::InOut)?;
        }
        if class.kind == ClassKind::Root {
            return self.alloc_root(flight);
        }
        self.own_client(alloc.client)?;
        if let ClassKind::Event(_) = class.kind {
            self.on_control_file(flight, alloc.client);
        }
        self.alloc_object(flight, alloc, &class)
    }

    /// `NV_ESC_RM_ALLOC_OBJECT`: the same, for classes that need no parameters.
    pub(crate) fn alloc_without_params(
        &self,
        flight: &mut InFlightCall<'_>,
        alloc: AllocObject,
    ) -> Result<Answer, CallEnd> {
        let AllocObject { client, parent, object, class } = alloc;
        let known = self.known_class(class)?;
        if known.kind == ClassKind::Root {
            return Err(CallEnd::Status(Status::INVALID_CLASS));
        }
        self.own_client(client)?;
        let alloc = Alloc { client, parent, object, class, params: 0, said_params_size: 0, rights: 0 };
        self.alloc_object(flight, alloc, &known)
    }

    fn known_class(&self, class: u32) -> Result<Class, CallEnd> {
        let Some(row) = abi::classes::class(class) else {
            self.count_unknown(UnknownKind::Class(class), false);
            return Err(CallEnd::Status(Status::INVALID_CLASS));
        };
        match row.kind {
            ClassKind::Answered(status, _) | ClassKind::Refused(status, _) => Err(CallEnd::Status(status)),
            ClassKind::Engine if row.draws() && !self.may_draw => {
                self.report_missing_graphics(&row);
                // As on a card that does not have it.
                Err(CallEnd::Status(Status::INVALID_CLASS))
            }
            _ => Ok(row),
        }
    }

    fn alloc_object(&self, flight: &mut InFlightCall<'_>, alloc: Alloc, class: &Class) -> Result<Answer, CallEnd> {
        if class.kind == ClassKind::Channel {
            // In a group that does work it could do some, too, before it is taken off.
            self.channels.wait_to_attach(flight.caller, ObjectName::new(alloc.client, alloc.parent))?;
        }
        let saved = alloc_overrides::apply(class.kind, alloc.client, flight.params_mut())?;
        flight.confirm()?;
        let is_sized = matches!(class.kind, ClassKind::VideoMemory | ClassKind::SystemMemory);
        let made = self.make_object(
            flight,
            &ObjectAlloc {
                client: alloc.client,
                parent: alloc.parent,
                handle: (Holder::Args, NVOS64_PARAMETERS::hObjectNew.at()),
                size: is_sized.then_some((Holder::Buffer(0), NV_MEMORY_ALLOCATION_PARAMS::size.at())),
                source: AllocSource::Class(alloc, class),
            },
        );
        saved.restore(flight.params_mut());
        let Some((made, card)) = made? else {
            return flight.finish();
        };
        self.alloc_takes_driver_time(flight, card, class.kind);
        if class.kind == ClassKind::Channel {
            self.channels.report_first_channels(self.observer.as_ref());
        }
        self.finish_object(flight, Some(made))
    }

    /// Notes what the driver has to do for an object, and for its end.
    fn alloc_takes_driver_time(&self, flight: &mut InFlightCall<'_>, card: Option<Card>, kind: ClassKind) {
        let cost = match kind {
            ClassKind::VideoMemory => {
                driver_time::scrubbing(Bytes(NV_MEMORY_ALLOCATION_PARAMS::size.get(flight.params()).unwrap_or(0)))
            }
            ClassKind::ChannelGroup => driver_time::CHANNEL_GROUP,
            ClassKind::Channel => driver_time::CHANNEL,
            _ => return,
        };
        flight.driver_time = card.map(|card| (card, cost));
    }

    /// Does what follows from an object's being made.
    ///
    /// Precondition: the client is locked.
    pub(crate) fn complete_object(
        &self,
        flight: &InFlightCall<'_>,
        alloc: Alloc,
        class: &Class,
        made: ObjectName,
    ) -> Result<(), AllocAbort> {
        match class.kind {
            ClassKind::Engine => {
                self.channels.works_on(ObjectName::new(alloc.client, alloc.parent), alloc.class);
                if context_buffers::brings_context(alloc.class) {
                    self.charge_context(flight, alloc.parent, made)?;
                }
                Ok(())
            }
            ClassKind::Debugger => self.mute_debugger(flight, made),
            _ => Ok(()),
        }
    }

    pub(crate) fn alloc_context_dma(
        &self,
        flight: &mut InFlightCall<'_>,
        alloc: AllocContextDma,
    ) -> Result<Answer, CallEnd> {
        ContextDmaFields::ESCAPE.limit_kernel_mapping(&flight.args)?;
        let made = self.make_object(
            flight,
            &ObjectAlloc {
                client: alloc.client,
                parent: alloc.parent,
                // The caller chooses it.
                handle: (Holder::Args, NVOS39_PARAMETERS::hObjectNew.at()),
                size: None,
                source: AllocSource::ContextDma(alloc.memory),
            },
        )?;
        self.finish_object(flight, made.map(|(made, _)| made))
    }
}

/// More bytes of parameters than any class has.
const PARAMS_MOST: u32 = 4096;
