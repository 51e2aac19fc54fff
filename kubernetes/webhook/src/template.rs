//! Claim templates, named after what they ask for: equal pods of a namespace share one.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::resource::v1::{
        CELDeviceSelector, CapacityRequirements, DeviceClaim, DeviceClaimConfiguration, DeviceRequest, DeviceSelector,
        ExactDeviceRequest, OpaqueDeviceConfiguration, ResourceClaimSpec, ResourceClaimTemplate,
        ResourceClaimTemplateSpec,
    },
    apimachinery::pkg::{api::resource::Quantity as Written, runtime::RawExtension},
};
use kube::core::ObjectMeta;
use kubernetes_api::{
    GpuConfig, Quantity,
    names::{DRIVER, capacity},
};
use sha2::{Digest as _, Sha256};

use crate::demand::{Demand, Memory};

/// Label of the templates that this program makes, and the name under which it does.
pub(crate) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "egpu-webhook");
/// Annotation of such a template: when a pod was last seen that names it, RFC 3339.
pub(crate) const LAST_USED: &str = "egpu.io/last-used";
/// Bytes of the content's hash in a name.
const HASH_BYTES: usize = 8;

/// Returns the name of a demand's request in the template, by its position.
pub(crate) fn request_name(demand: usize) -> String {
    format!("gpu-{demand}")
}

/// Makes the template of a pod's demands, in which no memory is a percentage any more.
///
/// # Errors
/// When JSON cannot hold them.
pub(crate) fn of_demands(demands: &[Demand], now: Timestamp) -> Result<ResourceClaimTemplate, serde_json::Error> {
    let requests = demands.iter().enumerate().map(|(position, demand)| request(request_name(position), demand));
    let config = demands.iter().enumerate().filter(|(_, demand)| demand.config != GpuConfig::default());
    let config: Vec<_> = config
        .map(|(position, demand)| configuration(request_name(position), &demand.config))
        .collect::<Result<_, _>>()?;
    let devices = DeviceClaim {
        requests: Some(requests.collect()),
        config: (!config.is_empty()).then_some(config),
        constraints: None,
    };
    let name = name(&devices)?;
    let (label, value) = MANAGED_BY;
    Ok(ResourceClaimTemplate {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some(BTreeMap::from([(label.to_owned(), value.to_owned())])),
            annotations: Some(BTreeMap::from([(LAST_USED.to_owned(), now.to_string())])),
            ..ObjectMeta::default()
        },
        spec: ResourceClaimTemplateSpec { metadata: None, spec: ResourceClaimSpec { devices: Some(devices) } },
    })
}

fn name(devices: &DeviceClaim) -> Result<String, serde_json::Error> {
    let digest = Sha256::digest(serde_json::to_vec(devices)?);
    Ok(digest.iter().take(HASH_BYTES).fold("egpu-".to_owned(), |name, byte| format!("{name}{byte:02x}")))
}

/// The request of one demand. Defaults are named, so that it can be compared with what the API
/// server keeps.
fn request(name: String, demand: &Demand) -> DeviceRequest {
    let memory = match demand.memory {
        Memory::Bytes(bytes) => Some((capacity::MEMORY, bytes)),
        Memory::Whole | Memory::Percent(_) => None,
    };
    let compute = demand.compute.map(|percent| (capacity::COMPUTE, u64::from(percent)));
    let amounts: BTreeMap<String, Written> = [memory, compute]
        .into_iter()
        .flatten()
        .map(|(name, amount)| (name.to_owned(), Written(Quantity(amount).to_string())))
        .collect();
    let selectors: Vec<DeviceSelector> = demand
        .selectors
        .iter()
        .map(|expression| DeviceSelector { cel: Some(CELDeviceSelector { expression: expression.clone() }) })
        .collect();
    let exactly = ExactDeviceRequest {
        device_class_name: DRIVER.to_owned(),
        allocation_mode: Some("ExactCount".to_owned()),
        count: Some(demand.cards.into()),
        capacity: (!amounts.is_empty()).then_some(CapacityRequirements { requests: Some(amounts) }),
        selectors: (!selectors.is_empty()).then_some(selectors),
        ..ExactDeviceRequest::default()
    };
    DeviceRequest { name, exactly: Some(exactly), first_available: None }
}

fn configuration(request: String, config: &GpuConfig) -> Result<DeviceClaimConfiguration, serde_json::Error> {
    let parameters = RawExtension(serde_json::to_value(config)?);
    Ok(DeviceClaimConfiguration {
        requests: Some(vec![request]),
        opaque: Some(OpaqueDeviceConfiguration { driver: DRIVER.to_owned(), parameters }),
    })
}

#[cfg(test)]
mod tests {
    use kubernetes_api::Priority;
    use serde_json::json;

    use super::*;

    fn demand() -> Demand {
        Demand {
            cards: 1,
            memory: Memory::Bytes(3000 << 20),
            compute: Some(30),
            config: GpuConfig { priority: Some(Priority::Low), ..GpuConfig::default() },
            selectors: vec!["true".to_owned()],
        }
    }

    fn template(demands: &[Demand]) -> ResourceClaimTemplate {
        of_demands(demands, Timestamp::UNIX_EPOCH).unwrap()
    }

    #[test]
    fn a_template_says_what_is_asked_for() {
        let whole = Demand {
            memory: Memory::Whole,
            compute: None,
            config: GpuConfig::default(),
            selectors: Vec::new(),
            ..demand()
        };
        let spec = serde_json::to_value(template(&[demand(), whole]).spec.spec.devices).unwrap();
        let exactly = |more: serde_json::Value| {
            let mut all = json!({"deviceClassName": "gpu.egpu.io", "allocationMode": "ExactCount", "count": 1});
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            all
        };
        let asked = json!({"capacity": {"requests": {"memory": "3000Mi", "compute": "30"}}, "selectors": [{"cel": {"expression": "true"}}]});
        assert_eq!(
            spec,
            json!({
                "requests": [{"name": "gpu-0", "exactly": exactly(asked)}, {"name": "gpu-1", "exactly": exactly(json!({}))}],
                "config": [{"requests": ["gpu-0"], "opaque": {"driver": "gpu.egpu.io", "parameters": {
                    "apiVersion": "egpu.io/v1", "kind": "GpuConfig", "priority": "low"}}}],
            })
        );
    }

    #[test]
    fn equal_demands_have_one_name_and_others_have_others() {
        let name = |demand: Demand| template(&[demand]).metadata.name.unwrap();
        let later = of_demands(&[demand()], Timestamp::now()).unwrap().metadata.name.unwrap();
        assert_eq!(name(demand()), later);
        let others = [
            Demand { cards: 2, ..demand() },
            Demand { memory: Memory::Whole, ..demand() },
            Demand { compute: None, ..demand() },
            Demand { config: GpuConfig::default(), ..demand() },
            Demand { selectors: Vec::new(), ..demand() },
        ];
        for other in others {
            assert_ne!(name(other.clone()), later, "{other:?}");
        }
        assert!(
            later.len() == 21
                && later.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'),
            "{later}"
        );
    }
}
