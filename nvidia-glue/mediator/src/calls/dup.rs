//! Duplicates of objects: `NV_ESC_RM_DUP_OBJECT`.

use abi::{decode::Dup, params::NVOS55_PARAMETERS};
use account::ObjectName;
use driver::Holder;

use crate::{
    Answer, Session,
    calls::object_alloc::{AllocSource, ObjectAlloc},
    channels::SchedulingRole,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    objects::topology::ObjectRole,
    requirements::{AllocRequirements, Charge},
};

impl Session {
    pub(crate) fn dup(&self, flight: &mut InFlightCall<'_>, dup: Dup) -> Result<Answer, CallEnd> {
        let made = self.make_object(
            flight,
            &ObjectAlloc {
                client: dup.client,
                parent: dup.parent,
                handle: (Holder::Args, NVOS55_PARAMETERS::hObject.at()),
                source: AllocSource::Duplicate(ObjectName::new(dup.source_client, dup.source_object)),
            },
        )?;
        self.finish_object(flight, made.map(|(made, _)| made))
    }

    /// Requirements of a duplicate.
    ///
    /// What the account does not know is an object that the driver has made for another one's sake:
    /// the group of a channel without one, the graphics context of a group. Those are no handles
    /// that anybody was given, but can be guessed, and a duplicate would keep the buffers when all
    /// that is charged for them is gone.
    pub(crate) fn duplicate_requirements(
        &self,
        alloc: &ObjectAlloc,
        source: ObjectName,
    ) -> Result<AllocRequirements, CallEnd> {
        self.objects.is_parent(alloc.client, alloc.parent)?;
        // A page that is not to be seen is not to be seen through a duplicate either.
        let topology = lock(&self.objects.topology);
        let page = topology
            .shared_data(source.client, source.object)
            .map(|card| (card, ObjectRole::SharedData { is_watched: false }));
        // A channel may be made below any handle of its; they share one charge.
        let group = topology.group_card(source.client, source.object);
        let group = group.map(|card| (card, ObjectRole::NEW_GROUP));
        let role = group.map(|_| SchedulingRole::Duplicate(source));
        Ok(AllocRequirements { place: page.or(group), role, ..Charge::Duplicate(source).into() })
    }
}
