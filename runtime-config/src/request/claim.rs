//! Claims: containers that Kubernetes has given requests of ResourceClaims.
//!
//! Their cards and limits are in records that only root writes. What such a container says itself
//! about cards and limits does not count, be it more or less.

use kubernetes_api::ClaimVariable;

use super::{
    DriverCapabilities, RequestError, Source,
    dialect::{is_annotation_of_a_request, is_of_a_request, nvidia, nvidia::Namer},
    error::Shown,
    statements::Statements,
};
use crate::config::Config;

/// Names a pod in the specs of its containers; containerd writes it.
const POD: &str = "io.kubernetes.cri.sandbox-name";

/// Reason for which a container without a claim gets nothing.
pub(super) const REQUIRED: &str = "it starts without a GPU: it has no ResourceClaim, and kubernetes.require_claim is on in \
                                   the node's configuration";

/// The requests of claims that a container was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The requests; at least one, each once.
    pub requests: Vec<ClaimVariable>,
    /// The parts of the driver's user space that are wanted.
    pub driver_capabilities: DriverCapabilities,
    /// Statements beside the claim, which do not count, for the log.
    pub warnings: Vec<String>,
}

/// Parses the variables of claims; `None`: there are none.
///
/// # Errors
/// When one is not as the node's plugin writes it: the pod has made it up.
pub(super) fn parse(
    source: &Source,
    (env, annotations): (&Statements<'_>, &Statements<'_>),
    config: &Config,
) -> Result<Option<ClaimRequest>, RequestError> {
    let mut requests = Vec::new();
    // A link to a Service is among the raw variables alone.
    let is_link = |text: &str| text.split_once('=').is_some_and(|(name, _)| env.all(name).next().is_none());
    for text in &source.env {
        let variable = match ClaimVariable::parse(text) {
            None => continue,
            Some(Ok(variable)) => variable,
            Some(Err(_)) if is_link(text) => continue,
            Some(Err(source)) => return Err(RequestError::Claim { source }),
        };
        if !requests.contains(&variable) {
            requests.push(variable);
        }
    }
    if requests.is_empty() {
        return Ok(None);
    }
    let driver_capabilities = nvidia::capabilities(source, env, Namer::Environment, config)?;
    let is_annotation = |name: &&str| is_annotation_of_a_request(name, annotations);
    let mut ignored: Vec<String> = annotations.names().filter(is_annotation).map(shown).collect();
    // Images set NVIDIA's own.
    let is_ignored =
        |name: &&str| is_of_a_request(name) && !name.starts_with("NVIDIA_") && !name.starts_with("EGPU_CLAIM_");
    ignored.extend(env.names().filter(is_ignored).map(shown));
    let warnings =
        ignored.into_iter().map(|name| format!("{name} does not count: the container has a claim")).collect();
    Ok(Some(ClaimRequest { requests, driver_capabilities, warnings }))
}

fn shown(name: &str) -> String {
    Shown::new(name).to_string()
}

/// Returns whether a container without a claim gets nothing whatever it says.
pub(super) fn is_required(source: &Source, config: &Config) -> bool {
    config.kubernetes.require_claim && source.annotations.contains_key(POD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{ContainerRequest, parse};

    const UID: &str = "6918e837-0b5e-4a55-9d5e-2d3c0d4f0a11";

    fn container(env: &[&str], annotations: &[(&str, &str)]) -> Source {
        let mut annotations: Vec<_> = annotations.to_vec();
        annotations.push((POD, "train"));
        Source {
            env: env.iter().map(|variable| (*variable).to_owned()).collect(),
            annotations: annotations.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            ..Source::default()
        }
    }

    fn variable(request: &str) -> String {
        ClaimVariable::new("team", UID, request).unwrap().to_string()
    }

    #[test]
    fn beside_a_claim_nothing_else_counts() {
        let (one, two) = (variable("one"), variable("two"));
        let env = ["NVIDIA_VISIBLE_DEVICES=all", "EGPU_MEMORY=79GiB", &one, &two, &one, "NVIDIA_VISIBLE_DEVICES=void"];
        let annotations = [("egpu.io/compute", "100%"), ("egpu.io/node-placement", "spread")];
        let source = container(&env, &annotations);
        let config = Config { accept_env: false, ..Config::default() };
        let ContainerRequest::Claims(claims) = parse(&source, &config).unwrap() else { panic!("no claim") };
        assert_eq!(claims.requests.iter().map(|claim| claim.request.as_str()).collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(claims.driver_capabilities, DriverCapabilities::DEFAULT);
        assert_eq!(claims.warnings.len(), 2, "{:?}", claims.warnings);
        let sandbox = Source { is_sandbox: true, ..source };
        assert!(matches!(parse(&sandbox, &config).unwrap(), ContainerRequest::None { .. }));
    }

    #[test]
    fn a_variable_that_the_plugin_would_not_write_is_refused() {
        let other = variable("one").replace("/one", "/two");
        for forged in ["EGPU_CLAIM_X=1", other.as_str()] {
            let error = parse(&container(&[forged], &[]), &Config::default()).unwrap_err();
            assert!(matches!(error, RequestError::Claim { .. }), "{error}");
        }
    }

    #[test]
    fn where_claims_are_required_a_pod_without_one_gets_nothing() {
        let mut config = Config::default();
        config.kubernetes.require_claim = true;
        let asks = ["NVIDIA_VISIBLE_DEVICES=all", "EGPU_MEMORY=1GiB"];
        let asked = |source: &Source| match parse(source, &config).unwrap() {
            ContainerRequest::WithoutClaim { asked, .. } => asked.len(),
            ContainerRequest::None { .. } => 0,
            request => panic!("{request:?}"),
        };
        assert_eq!(asked(&container(&asks, &[])), 2);
        assert_eq!(asked(&container(&["PATH=/bin"], &[])), 0);
        assert_eq!(asked(&container(&[], &[("egpu.io/memory", "1GiB")])), 1);
        let outside = Source { annotations: std::collections::BTreeMap::new(), ..container(&asks, &[]) };
        assert!(matches!(parse(&outside, &config).unwrap(), ContainerRequest::Gpu(_)), "no pod's");
    }
}
