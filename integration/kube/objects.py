"""Objects of Kubernetes that cases make: requests of claims, templates, pods."""

from cluster import DRIVER

RESOURCE = "/apis/resource.k8s.io/v1"
DEFAULT = "namespaces/default"
PODS, CLAIMS = f"/api/v1/{DEFAULT}/pods", f"{RESOURCE}/{DEFAULT}/resourceclaims"
TEMPLATES, JOBS = f"{RESOURCE}/{DEFAULT}/resourceclaimtemplates", f"/apis/batch/v1/{DEFAULT}/jobs"
NODES = "/api/v1/nodes"
GIB = 1 << 30
SLEEP = ["sleep", "infinity"]


UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": GIB, "": 1}


def amount(quantity):
    """The number that a quantity of whole units is."""
    digits = quantity.rstrip("KMGi")
    return int(digits) * UNITS[quantity.removeprefix(digits)]


def exactly(memory=None, compute=None, on=None, **more):
    """What a request asks of one card: quantities, and expressions that choose it; `on`: a minor number."""
    amounts = {"memory": memory, "compute": compute}
    amounts = {name: str(amount) for name, amount in amounts.items() if amount is not None}
    expressions = more.pop("where", [])
    if on is not None:
        expressions = [*expressions, f'device.attributes["{DRIVER}"].minor == {on}']
    asked = {"deviceClassName": DRIVER, **more}
    if expressions:
        asked["selectors"] = [{"cel": {"expression": text}} for text in expressions]
    if amounts:
        asked["capacity"] = {"requests": amounts}
    return asked


def request(name="gpu", **asked):
    return {"name": name, "exactly": exactly(**asked)}


def gpu_config(*requests, **parameters):
    parameters = {"apiVersion": "egpu.io/v1", "kind": "GpuConfig", **parameters}
    return {"requests": list(requests), "opaque": {"driver": DRIVER, "parameters": parameters}}


def template(name, *requests, **devices):
    """A ResourceClaimTemplate; `devices`: constraints, config."""
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
            "spec": {"spec": {"devices": {"requests": list(requests), **devices}}}}


def claim(name, *requests, **devices):
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": list(requests), **devices}}}


def container(name="main", **fields):
    return {"name": name, "image": "egpu.test/pod:1", "command": SLEEP, **fields}


def claims_of_container(*requests):
    """A container's use of the pod's claim `gpu`: all of its requests, or these."""
    return {"claims": [{"name": "gpu", "request": name} for name in requests] or [{"name": "gpu"}]}


def shell(script):
    return ["/bin/sh", "-c", script]
