//! The old way to memory: `NV_ESC_RM_VID_HEAP_CONTROL`.

use abi::{
    Status,
    decode::{VidHeap, VidHeapAlloc, VidHeapFunction},
    layout::{read_u64, write_u32},
    memory::{HeapMemory, Layout},
    params::{Field, NVOS32_PARAMETERS},
};
use account::{AllocRequest, Card, Kind};
use base::{Bytes, Pid};
use driver::Holder;

use crate::{
    Answer, Session,
    calls::object_alloc::{AllocSource, ObjectAlloc},
    channels::driver_time::scrubbing,
    class::may_be_placed,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    requirements::{AllocRequirements, Charge},
    view,
    view::memory::ShownMemory,
};

/// Size of the largest free region, in the answer of `NVOS32_FUNCTION_INFO`.
const INFO_LARGEST: Field<u64> = NVOS32_PARAMETERS::infoSize;

impl Session {
    pub(crate) fn vid_heap(&self, flight: &mut InFlightCall<'_>, heap: VidHeap) -> Result<Answer, CallEnd> {
        self.check_client(heap.client)?;
        let answer = match heap.function {
            VidHeapFunction::Alloc(alloc) => return self.vid_heap_alloc(flight, heap, alloc),
            VidHeapFunction::Free { memory } => return self.free(flight, heap.client, memory),
            VidHeapFunction::Refused(_) => return Err(CallEnd::Status(Status::NOT_SUPPORTED)),
            VidHeapFunction::Info => {
                self.managed.look_again(&self.scan_env(), flight.pid);
                self.execute_row(flight).map(|_| Some(INFO_LARGEST))
            }
            VidHeapFunction::Other(_) => self.execute_row(flight).map(|_| None),
        };
        let largest = answer?;
        self.show_heap(flight, heap, largest);
        flight.finish()
    }

    fn vid_heap_alloc(
        &self,
        flight: &mut InFlightCall<'_>,
        heap: VidHeap,
        alloc: VidHeapAlloc,
    ) -> Result<Answer, CallEnd> {
        let memory = alloc.request.heap_memory();
        match memory {
            // As in an allocation by class.
            HeapMemory::Video => {
                may_be_placed(alloc.request)?;
                if let Some(attr) = alloc.request.contiguous_attr() {
                    let _ = write_u32(&mut flight.args, alloc.attr_at, attr);
                }
            }
            HeapMemory::Extended => return Err(CallEnd::Status(Status::INVALID_CLASS)),
            HeapMemory::Virtual | HeapMemory::System => {}
        }
        let made = self.make_object(
            flight,
            &ObjectAlloc {
                client: heap.client,
                parent: heap.parent,
                handle: (Holder::Args, alloc.memory_at),
                source: AllocSource::Heap(alloc, memory),
            },
        )?;
        self.show_heap(flight, heap, None);
        if let Some((_, card)) = made
            && memory == HeapMemory::Video
        {
            let bytes = Bytes(read_u64(&flight.args, alloc.size_at).unwrap_or(0));
            flight.driver_time = card.map(|card| (card, scrubbing(bytes)));
        }
        self.finish_object(flight, made.map(|(made, _)| made))
    }

    /// Requirements of the memory of a heap call.
    ///
    /// Precondition: the client is locked.
    pub(crate) fn heap_requirements(
        &self,
        alloc: &ObjectAlloc,
        VidHeapAlloc { request, size_at, .. }: VidHeapAlloc,
        memory: HeapMemory,
        process: Pid,
    ) -> Result<AllocRequirements, CallEnd> {
        let card = || self.objects.card_of(alloc.client, alloc.parent).ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND));
        let (memory, layout) = match memory {
            HeapMemory::Video => (Some((card()?, Bytes(request.rounded_size()))), request.layout()),
            HeapMemory::System | HeapMemory::Extended => {
                (Some((Card::HOST, Bytes(request.host_size()))), Layout::OwnFrames)
            }
            HeapMemory::Virtual => match request.page_tables_at_once() {
                0 => (None, Layout::Scattered),
                tables => (Some((card()?, Bytes(tables))), Layout::Scattered),
            },
        };
        let size = (!request.is_virtual()).then_some((Holder::Args, size_at));
        let ask = AllocRequest { client: alloc.client, kind: Kind::Memory, memory, layout, process };
        Ok(AllocRequirements { size, ..Charge::Object(ask).into() })
    }

    /// Any function may be answered with the card's total and free memory.
    fn show_heap(&self, flight: &mut InFlightCall<'_>, heap: VidHeap, largest: Option<Field<u64>>) {
        let Some(card) = self.objects.card_of(heap.client, heap.parent) else { return };
        let shown = ShownMemory::of(&self.grant, card, &lock(&self.objects.accounts));
        if let Some(shown) = shown {
            view::memory::vid_heap(&mut flight.args, largest, shown);
        }
    }
}
