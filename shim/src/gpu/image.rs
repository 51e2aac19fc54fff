//! Requests of a pod's image, as distinct from those of the pod.
//!
//! CUDA's images set `NVIDIA_VISIBLE_DEVICES=all`: taken as the request of every sidecar, that
//! would use up all cards of a node. The configuration of an image, which containerd has, shows its
//! values.

use ledger::{ContainerKey, ContainerName, decision_log::DecisionLog};
use runtime::{RuntimeClient, protocol::ImageVariable};
use runtime_config::request::{GpuRequest, PodContainer};

use super::{GpuError, PreparedGrant, WithoutGpu, new_container::NewContainer};

const REMEDY: &str = "to give it one, set EGPU_DEVICES=all (or the annotation egpu.io/devices) in its pod, or \
                      accept_nvidia_visible_devices_of_images_in_pods = true in the node's configuration";

/// Returns the reason to ignore a request that only the image makes; `None`: the pod makes it.
///
/// containerd is asked only if nothing but the variable asks for cards.
///
/// # Errors
/// Fails if containerd does not answer: neither may a card from a device plugin be left out for
/// that, nor a request of an image be granted.
pub(super) async fn image_only_reason(
    runtime: &RuntimeClient,
    key: &ContainerKey,
    request: &GpuRequest,
) -> Result<Option<String>, GpuError> {
    if request.visible_devices_alone.is_empty() {
        return Ok(None);
    }
    let question = ImageVariable {
        containerd: key.containerd.clone(),
        namespace: key.namespace.clone(),
        container: key.id.clone(),
        name: "NVIDIA_VISIBLE_DEVICES".to_owned(),
    };
    let by_image = runtime.image_variable(question).await.map_err(|source| GpuError::Image(Box::new(source)))?;
    Ok(reason(&request.visible_devices_alone, &by_image))
}

fn reason(said: &[String], by_image: &[String]) -> Option<String> {
    said.iter().all(|value| by_image.contains(value)).then(|| {
        format!(
            "it starts without a GPU: NVIDIA_VISIBLE_DEVICES is set by its image only, and nothing else asks for cards; {REMEDY}"
        )
    })
}

/// Plans a container whose request is ignored, after the log and the events of the node have that.
/// `pod` and what it `asked` are for listings.
pub(super) fn without_gpu(
    container: &NewContainer,
    pod: Option<PodContainer>,
    asked: Vec<String>,
    why: String,
) -> PreparedGrant {
    let NewContainer { key, config, .. } = container;
    let name = ContainerName { key, pod: pod.as_ref() };
    DecisionLog::new(&config.log_file, &config.state_dir).ignored(name, &asked.join(" "), &why);
    tracing::warn!(container = %key, "{why}");
    let without_gpu = Some(WithoutGpu { pod, asked, why });
    PreparedGrant { fence: container.is_fenced(), without_gpu, ..PreparedGrant::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_image_sets_is_not_believed_and_what_differs_is() {
        let strings = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        for (said, by_image, is_believed) in [
            (&["all"][..], &["all"][..], false),
            (&["0"], &["0"], false),
            (&["all"], &[], true),
            (&["0"], &["all"], true),
            (&["GPU-ab"], &["all"], true),
            // The pod asks for more than the image.
            (&["0", "all"], &["all"], true),
            (&["0", "all"], &["all", "0"], false),
        ] {
            assert_eq!(reason(&strings(said), &strings(by_image)).is_none(), is_believed, "{said:?} {by_image:?}");
        }
        let text = reason(&strings(&["all"]), &strings(&["all"])).unwrap();
        for part in ["without a GPU", "EGPU_DEVICES=all", "of_images_in_pods = true"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
