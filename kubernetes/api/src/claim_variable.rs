//! The variable by which a container finds its claim.

use std::fmt;

/// A request of a claim, as a CDI edit tells it to a container: `EGPU_CLAIM_6918E837_GPU` =
/// `team/6918e837-.../gpu`. It is a hint to a record that only root writes, and never trusted by
/// itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimVariable {
    /// Namespace of the claim.
    pub namespace: String,
    /// UID of the claim.
    pub uid: String,
    /// The request's name, without the alternative that was taken.
    pub request: String,
}

/// A variable that is named like one of a claim and is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value} names no request of a claim: {reason}")]
pub struct ClaimVariableError {
    name: String,
    value: String,
    reason: &'static str,
}

/// Beginning of the names of these variables.
const PREFIX: &str = "EGPU_CLAIM_";
/// Characters of the claim's UID in the name.
const UID_CHARACTERS: usize = 8;
/// Longest name of a request and of a namespace, a DNS label.
const LONGEST_LABEL: usize = 63;
/// Longest UID; Kubernetes' are UUIDs.
const LONGEST_UID: usize = 36;

/// Returns the request of a result: `gpu` for `gpu/small`, the second of several alternatives.
pub fn base_request(request: &str) -> &str {
    request.split('/').next().unwrap_or(request)
}

impl ClaimVariable {
    /// The variable of one request, whose alternative is left out; `None` where Kubernetes would
    /// not have let a name pass.
    pub fn new(namespace: &str, uid: &str, request: &str) -> Option<Self> {
        let request = base_request(request);
        let is_uid = (UID_CHARACTERS..=LONGEST_UID).contains(&uid.len())
            && uid.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte) || byte == b'-')
            && !uid[..UID_CHARACTERS].contains('-');
        (is_label(namespace) && is_uid && is_label(request)).then(|| Self {
            namespace: namespace.to_owned(),
            uid: uid.to_owned(),
            request: request.to_owned(),
        })
    }

    pub fn name(&self) -> String {
        let uid = self.uid.get(..UID_CHARACTERS).unwrap_or(&self.uid);
        format!("{PREFIX}{uid}_{}", self.request.replace('-', "_").to_ascii_uppercase())
    }

    pub fn value(&self) -> String {
        format!("{}/{}/{}", self.namespace, self.uid, self.request)
    }

    /// Reads `NAME=value`. `None`: a variable of something else.
    ///
    /// # Errors
    /// When the name begins as those of claims do, and the rest is not as egpu writes it.
    pub fn parse(variable: &str) -> Option<Result<Self, ClaimVariableError>> {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        name.starts_with(PREFIX).then(|| Self::read(name, value))
    }

    fn read(name: &str, value: &str) -> Result<Self, ClaimVariableError> {
        let wrong = |reason| ClaimVariableError { name: shown(name), value: shown(value), reason };
        let parts: Vec<&str> = value.split('/').collect();
        let [namespace, uid, request] = parts[..] else {
            return Err(wrong("its value is not NAMESPACE/UID/REQUEST"));
        };
        let variable = Self::new(namespace, uid, request).ok_or_else(|| wrong("these are no names of Kubernetes"))?;
        if variable.name() != name {
            return Err(wrong("name and value are of different requests"));
        }
        Ok(variable)
    }
}

impl fmt::Display for ClaimVariable {
    /// `NAME=value`, as it stands in an environment.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", self.name(), self.value())
    }
}

fn is_label(name: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = name.as_bytes();
    bytes.len() <= LONGEST_LABEL
        && is_end(bytes.first())
        && is_end(bytes.last())
        && bytes.iter().all(|byte| is_end(Some(byte)) || *byte == b'-')
}

/// Hostile text, short and printable.
fn shown(text: &str) -> String {
    const LONGEST: usize = 160;
    text.chars().take(LONGEST).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "6918e837-0b5e-4a55-9d5e-2d3c0d4f0a11";

    #[test]
    fn a_variable_is_read_as_it_was_written() {
        let variable = ClaimVariable::new("team-a", UID, "big-gpu/small").unwrap();
        assert_eq!(variable.name(), "EGPU_CLAIM_6918e837_BIG_GPU");
        assert_eq!(variable.to_string(), format!("EGPU_CLAIM_6918e837_BIG_GPU=team-a/{UID}/big-gpu"));
        assert_eq!(ClaimVariable::parse(&variable.to_string()), Some(Ok(variable)));
    }

    #[test]
    fn other_variables_are_no_claims() {
        for other in ["PATH=/bin", "EGPU_MEMORY=1GiB", "egpu_claim_1=x", "EGPU_CLAIM", ""] {
            assert_eq!(ClaimVariable::parse(other), None, "{other}");
        }
    }

    #[test]
    fn forged_variables_are_refused() {
        for value in [
            "",
            UID,
            &format!("team/{UID}"),
            &format!("team/{UID}/gpu/small"),
            &format!("team/{UID}/other"),
            &format!("../{UID}/gpu"),
            &format!("team/../../etc/{UID}/gpu"),
            "team/6918e837/GPU",
            "team/6918e837-ZZ/gpu",
            "team/691/gpu",
            &format!("team/{UID}{UID}/gpu"),
            &format!("{}/{UID}/gpu", "t".repeat(64)),
            &format!("team/{UID}/gpu\n"),
        ] {
            let read = ClaimVariable::parse(&format!("EGPU_CLAIM_6918e837_GPU={value}"));
            assert!(matches!(read, Some(Err(_))), "{value}: {read:?}");
        }
        assert!(matches!(ClaimVariable::parse("EGPU_CLAIM_6918e837_GPU"), Some(Err(_))));
    }

    #[test]
    fn no_two_requests_of_a_claim_have_one_variable() {
        let name = |request| ClaimVariable::new("team", UID, request).unwrap().name();
        assert_ne!(name("a-b"), name("ab"));
        assert_eq!(ClaimVariable::new("team", UID, "a_b"), None);
        assert_eq!(ClaimVariable::new("team", UID, "A"), None);
    }
}
