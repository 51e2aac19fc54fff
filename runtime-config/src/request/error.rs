//! Errors of a request.

use std::fmt;

use base::RefusalCode;

use super::Dialect;

/// The longest piece of a value that an error shows.
const SHOWN_CHARS: usize = 120;

/// A request that cannot be understood, contradicts itself, or is not allowed on this node.
/// Messages name variables, values and what is accepted; the container's name is added by whoever
/// knows it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// A value that is malformed or out of range.
    #[error("{said} is not accepted: it must be {accepted}")]
    Invalid {
        /// The variable or annotation with its value.
        said: AsWritten,
        /// The accepted values.
        accepted: String,
    },
    /// Two statements that cannot both hold.
    #[error("{first} and {second} contradict each other: {reason}")]
    Contradiction {
        /// One.
        first: AsWritten,
        /// The other.
        second: AsWritten,
        /// The reason, and what to do.
        reason: String,
    },
    /// One variable, several values, and no way to tell which is meant.
    #[error("{name} is set more than once with different values: {}; set it once", list(.values))]
    Ambiguous {
        /// The variable.
        name: String,
        /// Its values.
        values: Vec<Shown>,
    },
    /// Variables of two foreign systems in one container.
    #[error(
        "{first_said} belongs to {first} and {second_said} to {second}: a container can ask in one of them only; \
         leave out the variables of the other"
    )]
    TwoDialects {
        /// One language.
        first: Dialect,
        /// A variable that belongs to it.
        first_said: AsWritten,
        /// The other.
        second: Dialect,
        /// A variable that belongs to that.
        second_said: AsWritten,
    },
    /// A request that the node's configuration does not allow.
    #[error("{said} is not allowed on this node: it needs {key} in the node's configuration")]
    NotAllowed {
        /// The statement that asked.
        said: AsWritten,
        /// The setting that would allow it.
        key: &'static str,
    },
    /// A variable of a claim that the node's plugin has not written.
    #[error("only egpu-kubelet-plugin sets variables of claims; name a claim in the pod's resources")]
    Claim {
        /// The fault in it.
        source: kubernetes_api::ClaimVariableError,
    },
    /// A quota that the container could get around.
    #[error(
        "{said} asks for a quota, which cannot hold for a container with {}: take that away, or set \
         allow_privileged_quota = true in the node's configuration",
        .privileges.join(" and ")
    )]
    Privileged {
        /// The statement that asked for the quota.
        said: AsWritten,
        /// The privileges that the container has.
        privileges: Vec<&'static str>,
    },
    /// A name of egpu's own that there is not.
    #[error("there is no {name}{}", .suggestion.as_ref().map_or_else(|| "; leave it out".to_owned(), |near| format!(", did you mean {near}?")))]
    UnknownName {
        /// The name as written.
        name: Shown,
        /// The nearest that there is.
        suggestion: Option<String>,
    },
    /// Limits, but no card that they are for.
    #[error("{said} asks for a share of cards, but none are named: set {variable} to the cards")]
    NoCards {
        /// The statement that asked.
        said: AsWritten,
        /// The variable that is to name the cards.
        variable: &'static str,
    },
    /// MIG devices are not divided further.
    #[error(
        "{said} asks for a quota on {device}: MIG devices cannot be shared under a quota; ask for the device alone"
    )]
    MigWithQuota {
        /// The statement that asked for the quota.
        said: AsWritten,
        /// The MIG device.
        device: String,
    },
}

impl RequestError {
    /// Code of the reason.
    pub fn code(&self) -> RefusalCode {
        match self {
            Self::Invalid { .. } | Self::Ambiguous { .. } | Self::UnknownName { .. } | Self::NoCards { .. } => {
                RefusalCode::InvalidValue
            }
            Self::Contradiction { .. } | Self::TwoDialects { .. } => RefusalCode::Contradiction,
            Self::NotAllowed { .. } => RefusalCode::NotAllowed,
            Self::Claim { .. } => RefusalCode::Claim,
            Self::Privileged { .. } => RefusalCode::Privileged,
            Self::MigWithQuota { .. } => RefusalCode::MigQuota,
        }
    }

    pub(crate) fn invalid(said: impl Into<AsWritten>, accepted: impl Into<String>) -> Self {
        Self::Invalid { said: said.into(), accepted: accepted.into() }
    }

    pub(crate) fn contradiction(
        first: impl Into<AsWritten>,
        second: impl Into<AsWritten>,
        reason: impl Into<String>,
    ) -> Self {
        Self::Contradiction { first: first.into(), second: second.into(), reason: reason.into() }
    }
}

/// A variable or annotation and its value: `NAME=value`, fit for one line of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AsWritten {
    /// `EGPU_MEMORY`, `egpu.io/memory`.
    pub name: Shown,
    /// The value as written.
    pub value: Shown,
}

impl AsWritten {
    pub(crate) fn new(name: &str, value: &str) -> Self {
        Self { name: Shown::new(name), value: Shown::new(value) }
    }
}

impl fmt::Display for AsWritten {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", self.name, self.value)
    }
}

/// Control characters, and those that are invisible or change the direction of text: a line must
/// not lie about its order.
pub fn is_control_or_format(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202f}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        )
}

/// Text that came from a container: control characters are escaped and what is too long is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown(String);

impl Shown {
    pub(crate) fn new(text: &str) -> Self {
        let mut shown = String::new();
        for (position, character) in text.chars().enumerate() {
            if position == SHOWN_CHARS {
                shown.push_str("...");
                break;
            }
            if is_control_or_format(character) {
                shown.extend(character.escape_default());
            } else {
                shown.push(character);
            }
        }
        Self(shown)
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

fn list(values: &[Shown]) -> String {
    let values: Vec<String> = values.iter().map(|value| format!("\"{value}\"")).collect();
    values.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_container_wrote_stays_on_one_line_and_short() {
        assert_eq!(Shown::new("a\nb\u{1b}[31m\u{202e}").to_string(), "a\\nb\\u{1b}[31m\\u{202e}");
        let long = Shown::new(&"x".repeat(1000)).to_string();
        assert_eq!(long.len(), SHOWN_CHARS + 3);
    }
}
