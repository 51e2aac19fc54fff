//! Controls that report the load of a card ([`crate::view::utilization`]).

use abi::{Status, decode::Control};

use crate::{
    Answer, Session,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    mediator_pid,
    view::{
        card_utilization::{CardUtilization, ahead_us},
        utilization::{Used, asks_for_load, nameless_samples, own_samples, video_engine},
    },
};

impl Session {
    /// `NV00DE_CTRL_CMD_REQUEST_DATA_POLL` on a page that the container does not have: what would
    /// be polled, nobody sees.
    pub(crate) fn poll_page(&self, flight: &mut InFlightCall<'_>, control: Control) -> Option<Result<Answer, CallEnd>> {
        let card = lock(&self.objects.topology).shared_data(control.client, control.object)?;
        let utilization = self.view.utilization(card).filter(|utilization| !utilization.is_monitored())?;
        let wants = asks_for_load(flight.params());
        lock(&self.objects.topology).watches(control.client, control.object, wants);
        if wants {
            utilization.write_page(0);
        }
        let row = flight.row;
        let is_set = row.set_status(&mut flight.args, Status::OK);
        Some(if is_set { flight.finish() } else { Err(CallEnd::Errno(libc::EINVAL)) })
    }

    /// The driver's samples, as the container is to see them.
    pub(crate) fn rewrite_samples(&self, flight: &mut InFlightCall<'_>, control: Control) {
        let card = self.objects.card_of(control.client, control.object);
        let utilization = card.and_then(|card| self.view.utilization(card));
        if utilization.is_some_and(CardUtilization::is_monitored) {
            return nameless_samples(flight.params_mut());
        }
        let own = card.map(|card| self.processes_on(card, flight.pid)).unwrap_or_default();
        // Neither samples nor switches tell the processes of one mediator apart.
        let most = own.iter().max_by_key(|process| process.used).map(|process| process.pid);
        let ahead_us = ahead_us();
        own_samples(flight.params_mut(), mediator_pid(), most, |from_ns, until_ns| {
            utilization.map_or(Used { used_ppm: None, share_ppm: 1_000_000 }, |utilization| {
                utilization.used(from_ns, until_ns, ahead_us)
            })
        });
    }

    /// `NV2080_CTRL_CMD_PERF_GET_VID_ENG_PERFMON_SAMPLE`, as the container is to see it.
    pub(crate) fn rewrite_video_sample(&self, flight: &mut InFlightCall<'_>, control: Control) {
        let card = self.objects.card_of(control.client, control.object);
        let utilization = card.and_then(|card| self.view.utilization(card));
        if !utilization.is_some_and(CardUtilization::is_monitored) {
            video_engine(flight.params_mut(), &utilization.map(CardUtilization::own_load).unwrap_or_default());
        }
    }
}
