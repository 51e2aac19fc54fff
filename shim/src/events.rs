//! Task events on their way to containerd: in order, none lost while containerd restarts.
//!
//! One queue, one sender. The event at the front stays there until containerd has taken it; a lost
//! connection is made anew, for as long as it takes. Only when more events pile up than the queue
//! holds are the oldest given up.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use containerd_shim::{
    event::Event,
    protos::{
        api::ForwardRequest,
        shim::event::Envelope,
        shim_async::{Client, EventsClient},
    },
};
use protobuf::{Message, MessageField, well_known_types::any::Any};
use sys::sync::lock;
use tokio::{sync::Notify, time::timeout};
use ttrpc::context;

/// Length of the queue: some hours of an ordinary node; about a MiB.
const CAPACITY: usize = 4096;
/// Time for one event to be taken.
const FORWARD_LIMIT: Duration = Duration::from_secs(5);
/// An event that containerd answers with an error (and not by going away) this often is given up.
const MAX_REFUSALS: u32 = 5;
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(2);

/// Queue of events, which takes them at once and without waiting for anybody.
#[derive(Debug)]
pub struct TaskEvents {
    namespace: String,
    queue: Mutex<Queue<Envelope>>,
    changed: Notify,
}

impl TaskEvents {
    /// Returns an empty queue for the containers of one namespace.
    pub fn new(namespace: String) -> Self {
        Self { namespace, queue: Mutex::new(Queue::new(CAPACITY)), changed: Notify::new() }
    }

    /// Queues an event behind all that were queued before.
    pub fn publish<E: Event + Message>(&self, event: &E) {
        self.enqueue(event, |_, _| false);
    }

    /// Queues an event like [`Self::publish`], unless the very same one waits already: for events
    /// that a container can cause at any rate, which must not crowd out those of others.
    pub fn publish_once<E: Event + Message>(&self, event: &E) {
        self.enqueue(event, |queue, new| {
            queue.entries.iter().any(|queued| queued.topic == new.topic && queued.event == new.event)
        });
    }

    fn enqueue<E: Event + Message>(&self, event: &E, is_queued: impl FnOnce(&Queue<Envelope>, &Envelope) -> bool) {
        let topic = event.topic();
        let value = match event.write_to_bytes() {
            Ok(value) => value,
            Err(error) => {
                tracing::error!(%error, topic, "cannot encode an event; it is lost");
                return;
            }
        };
        tracing::debug!(topic, "event");
        let envelope = Envelope {
            timestamp: MessageField::some(SystemTime::now().into()),
            namespace: self.namespace.clone(),
            topic,
            event: MessageField::some(Any {
                // Not from the descriptor: to ask for it builds those of all files that it refers
                // to, and keeps them.
                type_url: format!("containerd.events.{}", E::NAME),
                value,
                ..Default::default()
            }),
            ..Default::default()
        };
        {
            let mut queue = lock(&self.queue);
            if is_queued(&queue, &envelope) {
                return;
            }
            if queue.push(envelope) == Pushed::OldestDropped {
                tracing::error!(CAPACITY, "containerd takes no events; the oldest was dropped");
            }
        }
        self.changed.notify_waiters();
    }

    /// Sends what is queued to containerd, for as long as it is polled.
    pub async fn run(self: Arc<Self>, ttrpc_address: String) {
        self.send_through(&mut EventForwarder::new(ttrpc_address)).await;
    }

    /// Waits until the queue is empty, or for `limit`.
    pub async fn flush(&self, limit: Duration) {
        let empty = self.until(|queue| queue.front().is_none().then_some(()));
        if timeout(limit, empty).await.is_err() {
            tracing::warn!(left = lock(&self.queue).len(), "events were not taken by containerd");
        }
    }

    async fn send_through(&self, receiver: &mut impl Receiver) {
        let mut backoff = FIRST_BACKOFF;
        let mut refusals = 0;
        loop {
            let (number, envelope) = self.until(|queue| queue.front().map(|(n, event)| (n, event.clone()))).await;
            match receiver.forward(envelope).await {
                Ok(()) => {}
                Err(ForwardError::Refused(error)) if refusals + 1 >= MAX_REFUSALS => {
                    tracing::error!(%error, "containerd refuses an event; it is dropped");
                }
                Err(undelivered) => {
                    if matches!(undelivered, ForwardError::Refused(_)) {
                        refusals += 1;
                    }
                    tracing::debug!(reason = %undelivered, "an event is sent again");
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(LONGEST_BACKOFF);
                    continue;
                }
            }
            (backoff, refusals) = (FIRST_BACKOFF, 0);
            lock(&self.queue).remove(number);
            self.changed.notify_waiters();
        }
    }

    /// Waits until `find` finds something in the queue, and returns that.
    async fn until<T>(&self, find: impl Fn(&Queue<Envelope>) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the check, so that no change between the two is missed.
            changed.as_mut().enable();
            if let Some(found) = find(&lock(&self.queue)) {
                return found;
            }
            changed.await;
        }
    }
}

/// First in, first out, bounded; each entry has a number, so that one which was given up meanwhile
/// is not confused with its successor.
#[derive(Debug)]
struct Queue<T> {
    entries: VecDeque<T>,
    capacity: usize,
    /// Number of the front.
    first: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Pushed {
    Kept,
    OldestDropped,
}

impl<T> Queue<T> {
    fn new(capacity: usize) -> Self {
        Self { entries: VecDeque::new(), capacity, first: 0 }
    }

    fn push(&mut self, entry: T) -> Pushed {
        self.entries.push_back(entry);
        if self.entries.len() <= self.capacity {
            return Pushed::Kept;
        }
        self.entries.pop_front();
        self.first += 1;
        Pushed::OldestDropped
    }

    fn front(&self) -> Option<(u64, &T)> {
        self.entries.front().map(|entry| (self.first, entry))
    }

    fn remove(&mut self, number: u64) {
        if number == self.first && self.entries.pop_front().is_some() {
            self.first += 1;
        }
    }

    fn len(&self) -> usize {
        self.entries.len()
    }
}

/// The receiver of events.
trait Receiver {
    async fn forward(&mut self, envelope: Envelope) -> Result<(), ForwardError>;
}

#[derive(Debug, thiserror::Error)]
enum ForwardError {
    /// A connection that cannot be made, or was lost.
    #[error("containerd cannot be reached: {0}")]
    Unreachable(ttrpc::Error),
    /// An answer that did not come.
    #[error("containerd does not answer within {FORWARD_LIMIT:?}")]
    NoAnswer,
    /// containerd is there and says no.
    #[error("containerd refuses it: {0}")]
    Refused(ttrpc::Error),
}

/// containerd's event service. The connection is made when there is something to send.
struct EventForwarder {
    address: String,
    client: Option<EventsClient>,
}

impl EventForwarder {
    fn new(address: String) -> Self {
        let address = if address.contains("://") { address } else { format!("unix://{address}") };
        Self { address, client: None }
    }
}

impl Receiver for EventForwarder {
    async fn forward(&mut self, envelope: Envelope) -> Result<(), ForwardError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => EventsClient::new(Client::connect(&self.address).await.map_err(ForwardError::Unreachable)?),
        };
        let request = ForwardRequest { envelope: MessageField::some(envelope), ..Default::default() };
        match timeout(FORWARD_LIMIT, client.forward(context::with_timeout(0), &request)).await {
            Ok(Ok(_)) => {
                self.client = Some(client);
                Ok(())
            }
            Ok(Err(error @ ttrpc::Error::RpcStatus(_))) => {
                self.client = Some(client);
                Err(ForwardError::Refused(error))
            }
            Ok(Err(error)) => Err(ForwardError::Unreachable(error)),
            Err(_) => Err(ForwardError::NoAnswer),
        }
    }
}

#[cfg(test)]
mod tests {
    use containerd_shim::protos::events::task::{TaskExit, TaskOOM, TaskStart};

    use super::*;

    /// Gives the prepared answers, then takes everything.
    struct Script {
        answers: VecDeque<Result<(), ForwardError>>,
        taken: Vec<String>,
    }

    impl Receiver for Script {
        async fn forward(&mut self, envelope: Envelope) -> Result<(), ForwardError> {
            let answer = self.answers.pop_front().unwrap_or(Ok(()));
            if answer.is_ok() {
                self.taken.push(envelope.topic);
            }
            answer
        }
    }

    async fn taken(answers: Vec<Result<(), ForwardError>>) -> Vec<String> {
        let events = TaskEvents::new("ns".into());
        for _ in 0..2 {
            events.publish(&TaskStart::new());
            events.publish(&TaskExit::new());
        }
        let mut script = Script { answers: answers.into(), taken: vec![] };
        tokio::select! {
            () = events.send_through(&mut script) => {}
            () = events.until(|queue| queue.front().is_none().then_some(())) => {}
        }
        script.taken
    }

    fn unreachable_() -> Result<(), ForwardError> {
        Err(ForwardError::Unreachable(ttrpc::Error::RemoteClosed))
    }

    fn refused() -> Result<(), ForwardError> {
        Err(ForwardError::Refused(ttrpc::Error::Others("no".into())))
    }

    const ALL: [&str; 4] = ["/tasks/start", "/tasks/exit", "/tasks/start", "/tasks/exit"];

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn order_is_kept_whatever_happens_to_containerd() {
        assert_eq!(taken(vec![]).await, ALL);
        assert_eq!(taken(vec![Ok(()), unreachable_(), Err(ForwardError::NoAnswer), unreachable_()]).await, ALL);
        assert_eq!(taken((0..200).map(|_| unreachable_()).collect()).await, ALL, "however long it is away");
        assert_eq!(taken(vec![refused(), refused(), Ok(()), refused()]).await, ALL);
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn an_event_that_is_refused_for_good_does_not_hold_up_the_rest() {
        let answers = (0..MAX_REFUSALS).map(|_| refused()).collect();
        assert_eq!(taken(answers).await, ALL[1..]);
    }

    #[test]
    fn what_a_container_repeats_at_will_is_queued_once() {
        let events = TaskEvents::new("ns".into());
        let oom = |id: &str| TaskOOM { container_id: id.into(), ..Default::default() };
        events.publish(&TaskExit::new());
        for _ in 0..2 * CAPACITY {
            events.publish_once(&oom("a"));
            events.publish_once(&oom("b"));
        }
        let queue = lock(&events.queue);
        let topics: Vec<&str> = queue.entries.iter().map(|envelope| envelope.topic.as_str()).collect();
        assert_eq!(topics, ["/tasks/exit", "/tasks/oom", "/tasks/oom"]);
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn flush_returns_without_containerd() {
        let events = TaskEvents::new("ns".into());
        events.flush(Duration::from_secs(1)).await;
        events.publish(&TaskStart::new());
        events.flush(Duration::from_secs(1)).await;
        assert_eq!(lock(&events.queue).len(), 1);
    }

    #[test]
    fn an_event_that_was_given_up_is_not_removed_twice() {
        let mut queue = Queue::new(2);
        assert_eq!(queue.push('a'), Pushed::Kept);
        assert_eq!(queue.push('b'), Pushed::Kept);
        let (number, _) = queue.front().unwrap();
        assert_eq!(queue.push('c'), Pushed::OldestDropped);
        queue.remove(number);
        assert_eq!(queue.front(), Some((1, &'b')));
        queue.remove(1);
        assert_eq!(queue.front(), Some((2, &'c')));
        queue.remove(2);
        assert_eq!(queue.len(), 0);
    }

    proptest::proptest! {
        #[test]
        fn the_queue_keeps_the_newest_in_order(pushes in 0usize..50, capacity in 1usize..20) {
            let mut queue = Queue::new(capacity);
            for n in 0..pushes {
                queue.push(n);
            }
            let kept: Vec<usize> = queue.entries.iter().copied().collect();
            proptest::prop_assert_eq!(kept, (pushes.saturating_sub(capacity)..pushes).collect::<Vec<_>>());
        }
    }
}
