//! Requests of claims, with what their classes add.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::resource::v1::{
        CapacityRequirements, DeviceClaim, DeviceClass, DeviceConstraint, DeviceRequest, DeviceSelector,
        DeviceSubRequest, DeviceToleration, ExactDeviceRequest,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{allocation::Amounts, quantity::amount};

/// Device classes by name.
pub(crate) type Classes = BTreeMap<String, DeviceClass>;

/// A claim's requests, and what they demand of their cards together.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    /// Name of the claim; of one that is still to be made: of its template.
    pub(crate) claim: String,
    pub(crate) requests: Vec<Request>,
    pub(crate) constraints: Vec<DeviceConstraint>,
}

/// One request of a claim.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// In the order of preference; one, where there is no choice.
    pub(crate) alternatives: Vec<Alternative>,
}

/// One way to satisfy a request.
#[derive(Debug, Clone)]
pub(crate) struct Alternative {
    /// `gpu`, or `gpu/small` of several.
    pub(crate) name: String,
    pub(crate) class: String,
    /// The class is there; without it nothing is scheduled.
    pub(crate) has_class: bool,
    pub(crate) count: Count,
    /// Expressions, the class's first.
    pub(crate) selectors: Vec<String>,
    /// Number of the class's.
    pub(crate) of_class: usize,
    pub(crate) asked: Amounts,
    pub(crate) tolerations: Vec<DeviceToleration>,
    pub(crate) is_admin: bool,
}

/// A number of cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    Exactly(usize),
    All,
}

impl Wish {
    pub(crate) fn new(claim: &str, devices: &DeviceClaim, classes: &Classes) -> Self {
        let requests = devices.requests.iter().flatten().map(|request| Request::new(request, classes)).collect();
        Self { claim: claim.to_owned(), requests, constraints: devices.constraints.clone().unwrap_or_default() }
    }

    /// The claim that Kubernetes makes for whole cards which a container asks for by the name of
    /// an extended resource.
    pub(crate) fn extended(asked: &[(String, String, usize)], classes: &Classes) -> Self {
        let request = |(name, class, count): &(String, String, usize)| {
            let exactly = ExactDeviceRequest {
                device_class_name: class.clone(),
                count: i64::try_from(*count).ok(),
                ..ExactDeviceRequest::default()
            };
            let request = DeviceRequest { name: name.clone(), exactly: Some(exactly), ..DeviceRequest::default() };
            Request::new(&request, classes)
        };
        let requests = asked.iter().map(request).collect();
        Self { claim: "(extended resource)".to_owned(), requests, constraints: Vec::new() }
    }
}

impl Request {
    fn new(request: &DeviceRequest, classes: &Classes) -> Self {
        let name = &request.name;
        let exactly = request.exactly.iter().map(|exactly| Alternative::exactly(name, exactly, classes));
        let first = request.first_available.iter().flatten();
        let first = first.map(|sub| Alternative::sub(name, sub, classes));
        Self { alternatives: exactly.chain(first).collect() }
    }
}

impl Alternative {
    fn exactly(request: &str, exactly: &ExactDeviceRequest, classes: &Classes) -> Self {
        let ExactDeviceRequest {
            admin_access,
            allocation_mode,
            capacity,
            count,
            device_class_name,
            selectors,
            tolerations,
        } = exactly;
        Self {
            name: request.to_owned(),
            class: device_class_name.clone(),
            has_class: classes.contains_key(device_class_name),
            count: Count::new(allocation_mode.as_deref(), *count),
            selectors: selectors_of(device_class_name, selectors.as_deref(), classes),
            of_class: class_selectors(device_class_name, classes).len(),
            asked: asked(capacity.as_ref()),
            tolerations: tolerations.clone().unwrap_or_default(),
            is_admin: admin_access.unwrap_or(false),
        }
    }

    fn sub(request: &str, sub: &DeviceSubRequest, classes: &Classes) -> Self {
        let DeviceSubRequest { allocation_mode, capacity, count, device_class_name, name, selectors, tolerations } =
            sub.clone();
        let exactly = ExactDeviceRequest {
            admin_access: None,
            allocation_mode,
            capacity,
            count,
            device_class_name,
            selectors,
            tolerations,
        };
        Self::exactly(&format!("{request}/{name}"), &exactly, classes)
    }

    /// Returns the request's name and the alternative's, as constraints may name it.
    pub(crate) fn is_named(&self, names: &[String]) -> bool {
        let request = kubernetes_api::base_request(&self.name);
        names.is_empty() || names.iter().any(|name| *name == self.name || name == request)
    }
}

impl Count {
    fn new(mode: Option<&str>, count: Option<i64>) -> Self {
        match mode {
            Some("All") => Self::All,
            _ => Self::Exactly(usize::try_from(count.unwrap_or(1)).unwrap_or(0).max(1)),
        }
    }
}

fn selectors_of(class: &str, own: Option<&[DeviceSelector]>, classes: &Classes) -> Vec<String> {
    let all = class_selectors(class, classes).iter().chain(own.unwrap_or_default());
    // One without an expression is of a kind that is not known here: it is told as not evaluated.
    all.map(|selector| selector.cel.as_ref().map_or(String::new(), |cel| cel.expression.clone())).collect()
}

fn class_selectors<'classes>(class: &str, classes: &'classes Classes) -> &'classes [DeviceSelector] {
    classes.get(class).and_then(|class| class.spec.selectors.as_deref()).unwrap_or_default()
}

fn asked(capacity: Option<&CapacityRequirements>) -> Amounts {
    let requests = capacity.and_then(|capacity| capacity.requests.as_ref());
    let named = |(name, quantity): (&String, &Quantity)| (name.clone(), amount(quantity));
    requests.into_iter().flatten().map(named).collect()
}

/// Returns the amounts that a claim names in the request of that name, `gpu` or `gpu/small`.
pub(crate) fn asked_by(devices: &DeviceClaim, name: &str) -> Amounts {
    let wish = Wish::new("", devices, &Classes::new());
    let mut alternatives = wish.requests.into_iter().flat_map(|request| request.alternatives);
    alternatives.find(|alternative| alternative.name == name).map(|found| found.asked).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::object;

    fn classes() -> Classes {
        let class =
            json!({"metadata": {"name": "gpu.egpu.io"}, "spec": {"selectors": [{"cel": {"expression": "class"}}]}});
        Classes::from([("gpu.egpu.io".to_owned(), object(class))])
    }

    #[test]
    fn requests_have_their_classes_selectors_first() {
        let devices = object(json!({"requests": [
            {"name": "gpu", "exactly": {
                "deviceClassName": "gpu.egpu.io", "count": 2, "selectors": [{"cel": {"expression": "own"}}],
                "capacity": {"requests": {"memory": "20Gi", "compute": "12500m"}}}},
            {"name": "other", "firstAvailable": [
                {"name": "a", "deviceClassName": "gone", "allocationMode": "All"},
                {"name": "b", "deviceClassName": "gpu.egpu.io"}]}
        ]}));
        let wish = Wish::new("claim", &devices, &classes());
        let [gpu, other] = &wish.requests[..] else { panic!("{wish:?}") };
        assert_eq!(gpu.alternatives[0].selectors, ["class", "own"]);
        assert_eq!(gpu.alternatives[0].count, Count::Exactly(2));
        assert_eq!(gpu.alternatives[0].asked["compute"], 13, "rounded up, as the scheduler does");
        let names: Vec<_> =
            other.alternatives.iter().map(|one| (one.name.as_str(), one.has_class, one.count)).collect();
        assert_eq!(names, [("other/a", false, Count::All), ("other/b", true, Count::Exactly(1))]);
        assert_eq!(asked_by(&devices, "gpu")["memory"], 20 << 30);
        assert_eq!(asked_by(&devices, "other/b"), Amounts::new());
    }

    #[test]
    fn constraints_name_requests_or_alternatives() {
        let devices = object(json!({"requests": [
            {"name": "gpu", "firstAvailable": [{"name": "a", "deviceClassName": "c"}]}]}));
        let wish = Wish::new("claim", &devices, &classes());
        let alternative = &wish.requests[0].alternatives[0];
        for (names, named) in [(vec![], true), (vec!["gpu"], true), (vec!["gpu/a"], true), (vec!["a"], false)] {
            let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
            assert_eq!(alternative.is_named(&names), named, "{names:?}");
        }
    }
}
