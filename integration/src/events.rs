//! The events that containerd publishes about the node's tasks, in order.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use containerd_client::events as proto;
use prost::Message;
use prost_types::Any;

use crate::wait::DEADLINE;

/// One event of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of containerd's messages")]
pub enum Event {
    Create { container: String, pid: u32 },
    Start { container: String, pid: u32 },
    Exit { container: String, exec: Option<String>, pid: u32, status: u32 },
    Delete { container: String, exec: Option<String>, status: u32 },
    Oom { container: String },
    ExecAdded { container: String, exec: String },
    ExecStarted { container: String, exec: String, pid: u32 },
    Paused { container: String },
    Resumed { container: String },
}

impl Event {
    /// Decodes an event of a task; `None` for any other topic.
    pub(crate) fn decode(topic: &str, event: &Any) -> Option<Self> {
        /// Decodes by hand: the type URLs of containerd's events have no slash, which `Any::to_msg`
        /// wants.
        fn message<M: Default + Message>(event: &Any) -> M {
            M::decode(event.value.as_slice()).expect("containerd's event decodes")
        }
        let exec_of = |container: &str, id: String| (!id.is_empty() && id != container).then_some(id);
        Some(match topic {
            "/tasks/create" => {
                let event: proto::TaskCreate = message(event);
                Self::Create { container: event.container_id, pid: event.pid }
            }
            "/tasks/start" => {
                let event: proto::TaskStart = message(event);
                Self::Start { container: event.container_id, pid: event.pid }
            }
            "/tasks/exit" => {
                let event: proto::TaskExit = message(event);
                let exec = exec_of(&event.container_id, event.id);
                Self::Exit { container: event.container_id, exec, pid: event.pid, status: event.exit_status }
            }
            "/tasks/delete" => {
                let event: proto::TaskDelete = message(event);
                let exec = exec_of(&event.container_id, event.id);
                Self::Delete { container: event.container_id, exec, status: event.exit_status }
            }
            "/tasks/oom" => Self::Oom { container: message::<proto::TaskOom>(event).container_id },
            "/tasks/exec-added" => {
                let event: proto::TaskExecAdded = message(event);
                Self::ExecAdded { container: event.container_id, exec: event.exec_id }
            }
            "/tasks/exec-started" => {
                let event: proto::TaskExecStarted = message(event);
                Self::ExecStarted { container: event.container_id, exec: event.exec_id, pid: event.pid }
            }
            "/tasks/paused" => Self::Paused { container: message::<proto::TaskPaused>(event).container_id },
            "/tasks/resumed" => Self::Resumed { container: message::<proto::TaskResumed>(event).container_id },
            _ => return None,
        })
    }

    /// The container that it is about.
    pub fn container(&self) -> &str {
        match self {
            Self::Create { container, .. }
            | Self::Start { container, .. }
            | Self::Exit { container, .. }
            | Self::Delete { container, .. }
            | Self::Oom { container }
            | Self::ExecAdded { container, .. }
            | Self::ExecStarted { container, .. }
            | Self::Paused { container }
            | Self::Resumed { container } => container,
        }
    }

    /// `create`, `start`, `exit x`, ... without pids and states: what an order is asserted on.
    pub fn summary(&self) -> String {
        let with = |word: &str, exec: &Option<String>| match exec {
            Some(exec) => format!("{word} {exec}"),
            None => word.to_owned(),
        };
        match self {
            Self::Create { .. } => "create".to_owned(),
            Self::Start { .. } => "start".to_owned(),
            Self::Exit { exec, .. } => with("exit", exec),
            Self::Delete { exec, .. } => with("delete", exec),
            Self::Oom { .. } => "oom".to_owned(),
            Self::ExecAdded { exec, .. } => format!("exec-added {exec}"),
            Self::ExecStarted { exec, .. } => format!("exec-started {exec}"),
            Self::Paused { .. } => "paused".to_owned(),
            Self::Resumed { .. } => "resumed".to_owned(),
        }
    }
}

/// Everything that has been published since the subscription.
#[derive(Debug, Clone, Default)]
pub struct EventLog(pub(crate) Arc<Mutex<Vec<Event>>>);

impl EventLog {
    /// The events of one container so far.
    pub fn of(&self, container: &str) -> Vec<Event> {
        self.0.lock().unwrap().iter().filter(|event| event.container() == container).cloned().collect()
    }

    /// Summaries of the events of one container so far.
    pub fn summaries(&self, container: &str) -> Vec<String> {
        self.of(container).iter().map(Event::summary).collect()
    }

    /// Waits for the first event of `container` with this summary.
    #[track_caller]
    pub fn wait_for(&self, container: &str, summary: &str) -> Event {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(event) = self.of(container).into_iter().find(|event| event.summary() == summary) {
                return event;
            }
            let came = self.summaries(container);
            assert!(Instant::now() < deadline, "no event {summary:?} of {container}; there were {came:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
