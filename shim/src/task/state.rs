//! The life of a container's process, as a table.
//!
//! ```text
//!            Start            Pause
//!  Created ─────────> Running ─────> Paused
//!     │                  │  <─────      │
//!     │ Exit             │ Exit  Resume │ Exit
//!     v                  v              │
//!  Stopped <────────────────────────────┘
//!     │ Delete
//!     v
//!  Deleted
//! ```

use containerd_shim::protos::api::Status;

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// An init that waits for Start, or an exec without a process.
    Created,
    /// The process executes its program.
    Running,
    /// Its container is frozen.
    Paused,
    /// The process has ended.
    Stopped,
    /// The process and its records are gone.
    Deleted,
}

/// A change of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Start,
    /// The process ended.
    Exit,
    Pause,
    Resume,
    Delete,
}

/// A use that needs a state but does not change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Adding or starting an exec in the container of this init.
    Exec,
    Kill,
    Update,
}

impl State {
    /// The state after `change`; `None` when it is not possible.
    pub fn after(self, change: Change) -> Option<Self> {
        match (self, change) {
            (Self::Created, Change::Start) => Some(Self::Running),
            (Self::Created | Self::Running | Self::Paused, Change::Exit) => Some(Self::Stopped),
            (Self::Running, Change::Pause) => Some(Self::Paused),
            (Self::Paused, Change::Resume) => Some(Self::Running),
            (Self::Stopped, Change::Delete) => Some(Self::Deleted),
            (Self::Created | Self::Running | Self::Paused | Self::Stopped | Self::Deleted, _) => None,
        }
    }

    /// Returns whether the state allows it.
    pub fn allows(self, wanted: Use) -> bool {
        match wanted {
            Use::Exec => matches!(self, Self::Created | Self::Running),
            Use::Kill | Use::Update => matches!(self, Self::Created | Self::Running | Self::Paused),
        }
    }

    /// Returns the name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Deleted => "deleted",
        }
    }
}

impl Change {
    /// Returns the name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Exit => "end",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Delete => "delete",
        }
    }
}

impl Use {
    /// Returns the name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Kill => "kill",
            Self::Update => "update",
        }
    }
}

impl From<State> for Status {
    fn from(state: State) -> Self {
        match state {
            State::Created => Self::CREATED,
            State::Running => Self::RUNNING,
            State::Paused => Self::PAUSED,
            State::Stopped | State::Deleted => Self::STOPPED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Change::*, State::*, *};

    const STATES: [State; 5] = [Created, Running, Paused, Stopped, Deleted];
    const CHANGES: [Change; 5] = [Start, Exit, Pause, Resume, Delete];

    #[test]
    fn the_whole_table() {
        // Rows: states; columns: Start, Exit, Pause, Resume, Delete.
        let expected = [
            [Some(Running), Some(Stopped), None, None, None],
            [None, Some(Stopped), Some(Paused), None, None],
            [None, Some(Stopped), None, Some(Running), None],
            [None, None, None, None, Some(Deleted)],
            [None, None, None, None, None],
        ];
        for (state, row) in STATES.into_iter().zip(expected) {
            assert_eq!(CHANGES.map(|change| state.after(change)), row, "{state:?}");
        }
    }

    #[test]
    fn what_a_state_is_good_for() {
        assert_eq!(STATES.map(|state| state.allows(Use::Exec)), [true, true, false, false, false]);
        assert_eq!(STATES.map(|state| state.allows(Use::Kill)), [true, true, true, false, false]);
        assert_eq!(STATES.map(|state| state.allows(Use::Update)), [true, true, true, false, false]);
    }

    proptest::proptest! {
        /// Requests come in any order: once ended, never running again, and deleted only after the
        /// end.
        #[test]
        fn nothing_comes_back_from_the_dead(changes in proptest::collection::vec(0usize..5, 0..40)) {
            let (mut state, mut ended) = (Created, false);
            for change in changes {
                let change = CHANGES[change];
                if let Some(next) = state.after(change) {
                    ended |= change == Exit;
                    proptest::prop_assert_eq!(ended, matches!(next, Stopped | Deleted));
                    state = next;
                }
            }
        }
    }
}
