//! Kubernetes' links to Services: variables that the kubelet gives each container of a namespace
//! for each Service in it. They say nothing about GPUs, whatever the Service's name is.

use std::collections::{BTreeMap, HashSet};

const PROTOCOLS: [&str; 3] = ["_TCP", "_UDP", "_SCTP"];
const PARTS: [&str; 3] = ["_PROTO", "_PORT", "_ADDR"];

/// Services (`EGPU_DEMO` for `egpu-demo`) that have both of the variables without which there are
/// no links.
pub(super) fn services<'a, T>(env: &BTreeMap<&'a str, T>) -> HashSet<&'a str> {
    let of = |suffix| env.keys().filter_map(move |name| name.strip_suffix(suffix)).collect::<HashSet<_>>();
    &of("_SERVICE_HOST") & &of("_SERVICE_PORT")
}

/// Returns whether a variable is a link to one of these Services.
pub(super) fn is_link(name: &str, services: &HashSet<&str>) -> bool {
    let without = |suffix| name.strip_suffix(suffix);
    // `X_SERVICE_PORT_HTTP`: the port's name.
    let named = name.rsplit_once("_SERVICE_PORT_").map(|(service, _)| service);
    let possible = [without("_SERVICE_HOST"), without("_SERVICE_PORT"), without("_PORT"), named, of_port(name)];
    possible.into_iter().flatten().any(|service| services.contains(service))
}

/// `X` of `X_PORT_80_TCP` and `X_PORT_80_TCP_ADDR`.
fn of_port(name: &str) -> Option<&str> {
    let whole = PARTS.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
    let (service, port) = PROTOCOLS.iter().find_map(|protocol| whole.strip_suffix(protocol))?.rsplit_once("_PORT_")?;
    port.parse::<u16>().is_ok().then_some(service)
}
