//! Whether a pod asks for cards, or only its image does.
//!
//! CUDA's images set `NVIDIA_VISIBLE_DEVICES=all`: believed of every sidecar, that would take all of a node's cards. An image's
//! configuration, which containerd has, says which values are the image's.

use nvidia_glue::{
    decision_log::DecisionLog,
    ledger::{ContainerKey, ContainerName},
};
use runtime_config::request::GpuRequest;

use super::{GpuAsk, GpuError, PreparedGrant, is_fenced};
use crate::{
    bundle::WithoutGpu,
    helper::{HelperClient, protocol::ImageVariable},
};

const REMEDY: &str = "to give it one, set EGPU_DEVICES=all (or the annotation egpu.io/devices) in its pod, or \
                      accept_nvidia_visible_devices_of_images_in_pods = true in the node's configuration";

/// Why the request is taken for its image's; `None`: it is not. Only where nothing but the variable asks is anybody asked.
///
/// # Errors
/// When containerd does not tell what the image sets: a device plugin's card must not be left out for that, nor an image believed.
pub(super) async fn image_only_reason(
    helper: &HelperClient,
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
    let by_image = helper.image_variable(question).await.map_err(|source| GpuError::Image(Box::new(source)))?;
    Ok(reason(&request.visible_devices_alone, &by_image))
}

fn reason(said: &[String], by_image: &[String]) -> Option<String> {
    said.iter().all(|value| by_image.contains(value)).then(|| {
        format!(
            "it starts without a GPU: NVIDIA_VISIBLE_DEVICES is what its image sets, and nothing else asks for cards; {REMEDY}"
        )
    })
}

/// What is asked of the helper for a container whose request is not believed, once the log and the node's events have it.
pub(super) fn without_gpu(key: &ContainerKey, ask: GpuAsk, why: String) -> PreparedGrant {
    let GpuAsk { config, request, privileges, .. } = ask;
    let name = ContainerName { key, pod: request.pod.as_ref() };
    DecisionLog::new(&config.log_file, &config.state_dir).ignored(name, &request.asked.join(" "), &why);
    tracing::warn!(container = %key, "{why}");
    let fence = is_fenced(key, &config, privileges);
    let without_gpu = Some(WithoutGpu { pod: request.pod, asked: request.asked, why });
    PreparedGrant { fence, without_gpu, ..PreparedGrant::default() }
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
            // Somebody said more than the image.
            (&["0", "all"], &["all"], true),
            (&["0", "all"], &["all", "0"], false),
        ] {
            assert_eq!(reason(&strings(said), &strings(by_image)).is_none(), is_believed, "{said:?} {by_image:?}");
        }
        let told = reason(&strings(&["all"]), &strings(&["all"])).unwrap();
        for part in ["without a GPU", "EGPU_DEVICES=all", "of_images_in_pods = true"] {
            assert!(told.contains(part), "{told}");
        }
    }
}
