//! Objects by class: `NV_ESC_RM_ALLOC`, `NV_ESC_RM_ALLOC_OBJECT`, `NV_ESC_RM_ALLOC_CONTEXT_DMA2`.

use abi::{
    Status,
    classes::{ClassKind, EngineKind},
    decode::{Alloc, AllocContextDma, AllocObject},
    layout::Direction,
    params::{NVOS39_PARAMETERS, NVOS64_PARAMETERS},
};
use driver::Holder;

use crate::{
    Answer, Session, UnknownKind,
    calls::object_alloc::{AllocSource, ObjectAlloc},
    class::{self, Handler, ObjectClass},
    in_flight::{CallEnd, InFlightCall},
    memory::kernel_mappings::ContextDmaFields,
};

impl Session {
    pub(crate) fn alloc(&self, flight: &mut InFlightCall<'_>, alloc: Alloc) -> Result<Answer, CallEnd> {
        let handler = self.handler(alloc.class)?;
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
        match handler {
            Handler::Client => self.alloc_root(flight),
            Handler::Object(class) => {
                self.check_client(alloc.client)?;
                self.alloc_object(flight, alloc, class)
            }
        }
    }

    /// `NV_ESC_RM_ALLOC_OBJECT`: the same, for classes that need no parameters.
    pub(crate) fn alloc_without_params(
        &self,
        flight: &mut InFlightCall<'_>,
        alloc: AllocObject,
    ) -> Result<Answer, CallEnd> {
        let AllocObject { client, parent, object, class } = alloc;
        let Handler::Object(handler) = self.handler(class)? else {
            return Err(CallEnd::Status(Status::INVALID_CLASS));
        };
        self.check_client(client)?;
        let alloc = Alloc { client, parent, object, class, params: 0, said_params_size: 0, rights: 0 };
        self.alloc_object(flight, alloc, handler)
    }

    fn handler(&self, class: u32) -> Result<Handler, CallEnd> {
        let Some(row) = abi::classes::class(class) else {
            self.count_unknown(UnknownKind::Class(class), false);
            return Err(CallEnd::Status(Status::INVALID_CLASS));
        };
        if row.kind == ClassKind::Engine(EngineKind::Graphics) && !self.may_draw {
            self.report_missing_graphics(&row);
            // As on a card that does not have it.
            return Err(CallEnd::Status(Status::INVALID_CLASS));
        }
        class::handler(row.kind).map_err(CallEnd::Status)
    }

    fn alloc_object(
        &self,
        flight: &mut InFlightCall<'_>,
        alloc: Alloc,
        class: &'static dyn ObjectClass,
    ) -> Result<Answer, CallEnd> {
        class.prepare(self, flight, alloc)?;
        let saved = class.override_params(alloc.client, flight.params_mut())?;
        flight.confirm()?;
        let made = self.make_object(
            flight,
            &ObjectAlloc {
                client: alloc.client,
                parent: alloc.parent,
                handle: (Holder::Args, NVOS64_PARAMETERS::hObjectNew.at()),
                source: AllocSource::Class(alloc, class),
            },
        );
        saved.restore(flight.params_mut());
        let Some((made, card)) = made? else {
            return flight.finish();
        };
        flight.driver_time = card.zip(class.driver_time(flight.params()));
        self.channels.report_first_channels(self.observer.as_ref());
        self.finish_object(flight, Some(made))
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
                source: AllocSource::ContextDma(alloc.memory),
            },
        )?;
        self.finish_object(flight, made.map(|(made, _)| made))
    }
}

/// More bytes of parameters than any class has.
const PARAMS_MOST: u32 = 4096;
