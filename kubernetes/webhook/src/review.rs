//! The answer to one pod: what it asks for, the template of it, the patch.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, Operation};
use runtime_config::{Bytes, Percent, request::MemoryLimit};
use tokio::time::{Instant, timeout_at};

use crate::{
    api::{Api, ApiError},
    demand::{self, Asked, DemandError, Memory, PodDemand},
    patch,
    settings::Settings,
    template,
};

/// Longest warning that the API server passes on whole.
const LONGEST_WARNING: usize = 256;

/// A pod that is not admitted. The text is for whoever made it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReviewError {
    /// It asks for what cannot be had.
    #[error("egpu cannot read what the pod asks for")]
    Demand(#[from] DemandError),
    /// A percentage of cards of several sizes, or of none.
    #[error(
        "the pod asks for {percent}% of a card's memory, and a claim counts bytes: {found}; ask for an amount, as by \
         nvidia.com/gpumem or egpu.io/memory: 6GiB"
    )]
    Percentage { percent: u8, found: &'static str },
    /// The template cannot be made, for example for lack of a quota. The pod would wait for ever.
    #[error("the pod's claim template cannot be made")]
    Template(#[from] ApiError),
    /// The API server's answers to this program, all together.
    #[error("the API server answers too slowly for its own timeout of the webhook; make the pod anew")]
    Late,
    /// A pod that is none.
    #[error("the pod cannot be written as JSON")]
    Json(#[from] serde_json::Error),
}

/// Answers the request for a pod by `end`. Nothing is made for a dry run.
pub(crate) async fn answer(
    request: &AdmissionRequest<Pod>,
    settings: &Settings,
    api: &Api,
    end: Instant,
) -> AdmissionResponse {
    let response = AdmissionResponse::from(request);
    let Some(pod) = request.object.as_ref().filter(|_| request.operation == Operation::Create) else { return response };
    let namespace = request.namespace.as_deref().unwrap_or("default");
    let rewritten = timeout_at(end, rewritten(pod, namespace, request.dry_run, settings, api)).await;
    match rewritten.unwrap_or(Err(ReviewError::Late)) {
        Ok(None) => response,
        Ok(Some(rewritten)) => {
            let mut response = response.with_patch(rewritten.patch).unwrap_or_else(AdmissionResponse::invalid);
            let warnings = rewritten.notes.iter().map(|note| note.chars().take(LONGEST_WARNING).collect());
            response.warnings = (!rewritten.notes.is_empty()).then(|| warnings.collect());
            response
        }
        Err(error) => {
            let reason = base::error_chain(&error);
            tracing::info!(namespace, pod = name(pod), reason, "a pod is refused");
            response.deny(reason)
        }
    }
}

struct Rewritten {
    patch: json_patch::Patch,
    notes: Vec<String>,
}

async fn rewritten(
    pod: &Pod,
    namespace: &str,
    dry_run: bool,
    settings: &Settings,
    api: &Api,
) -> Result<Option<Rewritten>, ReviewError> {
    let mut asked = match demand::of_pod(pod, settings)? {
        Asked::Nothing => return Ok(None),
        Asked::OfItsNode(why) => {
            let patch = patch::for_its_node(pod, &why, &settings.runtime_class)?;
            return Ok(Some(Rewritten { patch, notes: vec![why] }));
        }
        Asked::Cards(asked) => *asked,
    };
    if asked.demands.iter().any(|demand| matches!(demand.memory, Memory::Percent(_))) {
        resolve_percentages(&mut asked, &api.card_sizes().await?)?;
    }
    let template = template::of_demands(&asked.demands, Timestamp::now())?;
    let template_name = template.metadata.name.clone().unwrap_or_default();
    if !dry_run {
        api.ensure_template(namespace, &template, settings.template_lifetime).await?;
    }
    tracing::info!(namespace, pod = name(pod), template = template_name, dry_run, "a pod gets a claim");
    let patch = patch::with_claim(pod, &asked, &template_name, &settings.runtime_class)?;
    Ok(Some(Rewritten { patch, notes: asked.notes }))
}

/// Makes bytes of percentages, where all cards have one size.
fn resolve_percentages(asked: &mut PodDemand, sizes: &[u64]) -> Result<(), ReviewError> {
    for demand in &mut asked.demands {
        let Memory::Percent(percent) = demand.memory else { continue };
        let found = |found| ReviewError::Percentage { percent, found };
        let [size] = sizes else {
            let several = "the cluster's cards have several sizes";
            return Err(found(if sizes.is_empty() { "the cluster has no card yet" } else { several }));
        };
        let limit = Percent::new(percent).and_then(|percent| MemoryLimit::percent(percent).resolve(Bytes(*size)));
        demand.memory = Memory::Bytes(limit.ok_or(found("that is less than 1 KiB of the cluster's cards"))?.0);
    }
    Ok(())
}

fn name(pod: &Pod) -> &str {
    let metadata = &pod.metadata;
    metadata.name.as_deref().or(metadata.generate_name.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use kubernetes_api::GpuConfig;

    use super::*;
    use crate::demand::Demand;

    #[test]
    fn a_percentage_is_of_cards_of_one_size() {
        let demand =
            |memory| Demand { cards: 1, memory, compute: None, config: GpuConfig::default(), selectors: Vec::new() };
        let resolved = |percent, sizes: &[u64]| {
            let mut asked = PodDemand {
                demands: vec![demand(Memory::Whole), demand(Memory::Percent(percent))],
                ..PodDemand::default()
            };
            resolve_percentages(&mut asked, sizes).map(|()| asked.demands[1].memory).map_err(|error| error.to_string())
        };
        assert_eq!(resolved(50, &[32 << 30]), Ok(Memory::Bytes(16 << 30)));
        assert_eq!(resolved(33, &[10 << 10]), Ok(Memory::Bytes(3 << 10)));
        assert!(resolved(50, &[16 << 30, 32 << 30]).unwrap_err().contains("several sizes"));
        assert!(resolved(50, &[]).unwrap_err().contains("no card yet"));
    }
}
