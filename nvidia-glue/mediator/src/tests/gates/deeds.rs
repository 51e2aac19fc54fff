//! Whatever programs, the scheduler and the driver do, in any order.

use abi::{
    Status,
    classes::{GT200_DEBUGGER, HOPPER_COMPUTE_A},
    controls::NVA06F_CTRL_CMD_BIND,
};
use proptest::{collection::vec, prelude::*, sample::Index};

use super::{RESET, RESUME, STOP, SUSPEND, put_on};
use crate::tests::{
    spy::{COPY, DISABLE, GR, NVDEC, SCHEDULE_CHANNEL, SCHEDULE_GROUP, Spy},
    world::{Container, Context, Machine, words},
};

/// Deeds of programs and the scheduler, in any order.
#[derive(Debug, Clone)]
enum Deed {
    Group(u32),
    Channel {
        below: Option<Index>,
        engine: u32,
    },
    Duplicate(Index),
    Schedule(Index),
    Disable {
        channel: Index,
        disable: bool,
    },
    Bind {
        channel: Index,
        engine: u32,
    },
    Object(Index),
    AllocAbort(Index),
    Reset(Index),
    Suspend,
    Resume,
    Free(Index),
    /// The driver refuses to take channels off or to put them on for as long as the next deed
    /// takes; or says so, and does it.
    Refuse {
        is_done: bool,
        status: u32,
    },
    Open,
    Close,
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let engine = prop::sample::select(vec![0, GR, COPY, NVDEC]);
    let index = any::<Index>();
    let deed = prop_oneof![
        2 => engine.clone().prop_map(Deed::Group),
        4 => (prop::option::of(index.clone()), engine.clone())
            .prop_map(|(below, engine)| Deed::Channel { below, engine }),
        1 => index.clone().prop_map(Deed::Duplicate),
        4 => index.clone().prop_map(Deed::Schedule),
        3 => (index.clone(), any::<bool>()).prop_map(|(channel, disable)| Deed::Disable { channel, disable }),
        3 => (index.clone(), engine).prop_map(|(channel, engine)| Deed::Bind { channel, engine }),
        1 => index.clone().prop_map(Deed::Object),
        1 => index.clone().prop_map(Deed::AllocAbort),
        1 => index.clone().prop_map(Deed::Reset),
        1 => Just(Deed::Suspend),
        1 => Just(Deed::Resume),
        1 => index.prop_map(Deed::Free),
        // NV_ERR_TIMEOUT, NV_ERR_INVALID_STATE, NV_ERR_INVALID_CHANNEL.
        1 => prop::sample::select(vec![(true, 0x65), (true, 0x40), (false, 0x65), (false, 0x40), (false, 0x21)])
            .prop_map(|(is_done, status)| Deed::Refuse { is_done, status }),
        2 => Just(Deed::Open),
        2 => Just(Deed::Close),
    ];
    vec(deed, 1..40)
}

/// A channel as its program knows it.
#[derive(Debug, Clone, Copy)]
struct Known {
    channel: u32,
    group: Option<u32>,
    /// The most throttled of all that it was said or found to work on.
    throttled: bool,
    wanted: bool,
}

struct Play<'a> {
    spy: &'a Spy,
    container: &'a Container,
    context: Context,
    /// Handles of groups: which group each is, and whether that is throttled.
    groups: Vec<(u32, u32, bool)>,
    channels: Vec<Known>,
    debugger: u32,
    closed: bool,
    /// The driver refused something, and there was no edge since.
    is_troubled: bool,
    refuses: bool,
}

impl Play<'_> {
    fn does(&mut self, deed: &Deed) {
        let is_throttled = |engine: u32| engine != NVDEC;
        let context = &self.context;
        match deed {
            Deed::Group(engine) => {
                let group = context.group(*engine);
                self.groups.push((group, group, is_throttled(*engine)));
            }
            Deed::Channel { below, engine } => {
                let group = below.as_ref().filter(|_| !self.groups.is_empty()).map(|at| *at.get(&self.groups));
                let channel = context.channel(group.map_or(context.device, |group| group.0), *engine).unwrap();
                let throttled = group.map_or(is_throttled(*engine), |group| group.2);
                self.channels.push(Known { channel, group: group.map(|group| group.1), throttled, wanted: true });
            }
            Deed::Duplicate(at) if !self.groups.is_empty() => {
                let (handle, group, throttled) = *at.get(&self.groups);
                let same = context.dup(context, handle).unwrap();
                self.groups.push((same, group, throttled));
            }
            Deed::Schedule(at) if !self.channels.is_empty() => {
                let known = *at.get(&self.channels);
                let group = self.groups.iter().find(|group| Some(group.1) == known.group);
                // By the channel, or by any handle of its group.
                let _ = match group {
                    Some((handle, ..)) if known.channel % 2 == 0 => context.schedule(*handle, SCHEDULE_GROUP),
                    _ => context.schedule(known.channel, SCHEDULE_CHANNEL),
                };
            }
            Deed::Disable { channel, disable } if !self.channels.is_empty() => {
                let at = channel.index(self.channels.len());
                let done = context.disable(*disable, &[(context.client, self.channels[at].channel)]);
                assert!(done.is_ok() || self.refuses);
                // What is refused is not remembered.
                self.channels[at].wanted = !disable || done.is_err();
            }
            Deed::Bind { channel, engine } if !self.channels.is_empty() => {
                let at = channel.index(self.channels.len());
                let _ = context.control(self.channels[at].channel, NVA06F_CTRL_CMD_BIND, &mut engine.to_le_bytes());
                if is_throttled(*engine) {
                    self.is_found_throttled(at);
                }
            }
            Deed::Object(at) if !self.channels.is_empty() => {
                let at = at.index(self.channels.len());
                let place = (context.client, self.channels[at].channel, 0);
                if context.program.alloc(context.control, place, HOPPER_COMPUTE_A, &mut [0; 8]).is_ok() {
                    self.is_found_throttled(at);
                }
            }
            Deed::AllocAbort(at) | Deed::Reset(at) if !self.channels.is_empty() => {
                let id = if matches!(deed, Deed::AllocAbort(_)) { STOP } else { RESET };
                let _ = context.control(at.get(&self.channels).channel, id, &mut [0; 16]);
            }
            Deed::Suspend | Deed::Resume => {
                let id = if matches!(deed, Deed::Suspend) { SUSPEND } else { RESUME };
                let _ = context.control(self.debugger, id, &mut [0; 16]);
            }
            Deed::Refuse { is_done, status } => {
                let refuse = if *is_done { Spy::refuse_what_is_done } else { Spy::refuse };
                refuse(self.spy, DISABLE, Status(*status));
                (self.refuses, self.is_troubled) = (true, true);
            }
            Deed::Free(at) if !self.channels.is_empty() => {
                let known = self.channels.swap_remove(at.index(self.channels.len()));
                context.free(known.channel).unwrap();
            }
            Deed::Open | Deed::Close => {
                let (gate, closes) = (self.container.gate(), matches!(deed, Deed::Close));
                let edge = if closes { gate.close() } else { gate.open() };
                assert!(edge.is_ok() || self.refuses, "{edge:?}");
                self.closed = closes;
                self.is_troubled = edge.is_err();
            }
            _ => {}
        }
        if self.refuses && !matches!(deed, Deed::Refuse { .. }) {
            self.spy.refuse_nothing();
            (self.refuses, self.is_troubled) = (false, true);
        }
    }

    /// A channel is, and with it its group.
    fn is_found_throttled(&mut self, at: usize) {
        self.channels[at].throttled = true;
        if let Some(group) = self.channels[at].group {
            self.channels
                .iter_mut()
                .filter(|known| known.group == Some(group))
                .for_each(|known| known.throttled = true);
            self.groups.iter_mut().filter(|(_, of, _)| *of == group).for_each(|(.., throttled)| *throttled = true);
        }
    }

    /// Channels that are to be off outside the window.
    fn throttled(&self) -> impl Iterator<Item = &Known> {
        self.channels.iter().filter(|known| known.throttled)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_done_no_throttled_channel_works_or_is_put_on_while_the_gate_is_closed(deeds in deeds()) {
        let machine = Machine::new(1);
        let spy = Spy::new(&machine);
        let container = spy.container(&machine);
        container.session.hurry(true);
        let program = container.program();
        let context = program.context(0);
        let mut session = words(&[0, context.client, context.device]);
        let debugger = context.object_below(context.device, GT200_DEBUGGER, &mut session).unwrap();
        let mut play = Play {
            spy: &spy,
            container: &container,
            context,
            groups: Vec::new(),
            channels: Vec::new(),
            debugger,
            closed: false,
            is_troubled: false,
            refuses: false,
        };
        for deed in &deeds {
            spy.seen();
            play.does(deed);
            let put_on = put_on(&spy.seen());
            for known in play.throttled().filter(|_| play.closed) {
                let name = (play.context.client, known.channel);
                prop_assert!(!put_on.contains(&name), "{known:?} is put on by {deed:?}");
            }
            for known in play.channels.iter().filter(|_| !play.is_troubled) {
                if play.closed && known.throttled {
                    prop_assert!(!spy.works(&play.context, known.channel), "{known:?} works after {deed:?}");
                }
                let can_work = spy.is_scheduled(&play.context, known.channel);
                if !play.closed && known.wanted && can_work {
                    prop_assert!(spy.works(&play.context, known.channel), "{known:?} is off after {deed:?}");
                }
            }
            prop_assert_eq!(container.gate().channels(), play.throttled().count());
        }
    }
}
