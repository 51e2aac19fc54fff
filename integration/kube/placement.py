"""Placement over nodes: egpu-scorer, the scheduler that asks it, and nodes that are objects alone."""

import urllib.request

from cluster import CLIENT_LIMITS, DRIVER, REPOSITORY, write
from part import Part

SCORER = "127.0.0.1:8888"
CONFIG = f"{REPOSITORY}/examples/scheduler/scorer.yaml"


def scorer_part(cluster, kubeconfig, placement):
    command = [f"{cluster.binaries}/egpu-scorer", "--listen", SCORER, "--placement", placement, "--kubeconfig", kubeconfig]
    return Part("scorer", command, f"{cluster.logs}/scorer.log", scorer_is_ready)


def scorer_is_ready():
    with urllib.request.urlopen(f"http://{SCORER}/readyz", timeout=1) as answer:
        return answer.status == 200


def scheduler_config(kubeconfig, has_scorer=True):
    """Writes the example's configuration for a test's scheduler, with or without its extender; returns the path."""
    path = "/run/node/scheduler.yaml"
    with open(CONFIG, encoding="utf-8") as file:
        text = file.read()
    qps, burst = (limit.partition("=")[2] for limit in CLIENT_LIMITS)
    text = replaced(text, "/etc/kubernetes/scheduler.conf", f"{kubeconfig}\n  qps: {qps}\n  burst: {burst}")
    text = replaced(text, "http://10.96.0.88:8888", f"http://{SCORER}")
    write(path, text if has_scorer else text[:text.index("extenders:")])
    return path


def replaced(text, old, new):
    if old not in text:
        raise ValueError(f"{CONFIG} has no {old}")
    return text.replace(old, new)


def scorer_is_ready(address=SCORER):
    with urllib.request.urlopen(f"http://{address}/readyz", timeout=1) as answer:
        return answer.status == 200


def node(name):
    """A node without a kubelet."""
    size = {"cpu": "96", "memory": "1Ti", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "Simulated", "lastHeartbeatTime": None}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"capacity": size, "allocatable": size, "conditions": [ready]}}


def node_slice(name, cards, memory="80Gi"):
    """Cards as the plugin publishes them."""
    capacity = {"memory": {"value": memory, "requestPolicy": {"default": memory, "validRange": {"min": "1"}}},
                "compute": {"value": "100", "requestPolicy": {"default": "5", "validRange": {"min": "0", "step": "1"}}},
                "containers": {"value": "16", "requestPolicy": {"default": "1", "validValues": ["1"]}}}
    devices = [{"name": f"gpu-{number}", "allowMultipleAllocations": True, "capacity": capacity,
                "attributes": {"uuid": {"string": f"GPU-{name}-{number}"}, "productName": {"string": "simulated"}}}
               for number in range(cards)]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"{name}-{DRIVER}-00"},
            "spec": {"driver": DRIVER, "nodeName": name, "devices": devices,
                     "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}}
