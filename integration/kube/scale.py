#!/usr/bin/env python3
"""Placement over many nodes, simulated: the stock scheduler, and the scheduler with egpu-scorer, in turn. As root.

A real control plane without a kubelet; nodes with eight cards of 80 GiB each that are objects alone; pods that claim a
quarter of a card. All pods and claims are there when the scheduler starts, so that nothing else bounds its rate.

usage: scale.py [--nodes N] [--pods N] [--replicas N] [--rounds N] [--placement binpack|spread] BINARIES TARGET RM_CLIENT
"""

import collections
import http.client
import itertools
import json
import os
import shutil
import statistics
import sys
import threading
import time
import types
import urllib.parse
import urllib.request

from api import until
from cluster import CLIENT_LIMITS, MANIFESTS, SLICES, Cluster
from host import in_namespaces
from objects import CLAIMS, DEFAULT, NODES, PODS, TEMPLATES, request, template
from part import cpu_s, resident_mb
from placement import node, node_slice, scheduler_config, scorer_part
from pki import SERVER
from run import parser

CARDS = 8
OWNERS = f"/apis/apps/v1/{DEFAULT}/replicasets"
PATIENCE_S = 600
# Controllers that would find nodes without a kubelet dead.
CONTROLLERS = "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller"


def arguments():
    options = parser(__doc__)
    options.add_argument("--nodes", type=int, default=100)
    options.add_argument("--pods", type=int, default=800)
    options.add_argument("--replicas", type=int, default=2, help="of each ReplicaSet; 0: pods without an owner")
    options.add_argument("--rounds", type=int, default=3, help="of each of both schedulers")
    options.add_argument("--placement", choices=("binpack", "spread"), default="binpack")
    options.add_argument("--annotated", action="store_true", help="each pod asks for the placement itself")
    return options.parse_args()


class ControlPlane(Cluster):
    """A cluster without its node; with each start it is empty."""

    def _node(self, *_):
        return types.SimpleNamespace(environment=dict(os.environ))

    def _parts(self):
        for part in itertools.islice(super()._parts(), 4):
            if part.name == "apiserver":
                part.command.append("--disable-admission-plugins=TaintNodesByCondition")
            if part.name == "controller-manager":
                part.command.append(CONTROLLERS)
            yield part

    def start(self):
        shutil.rmtree("/var/lib/etcd")
        for name in ("etcd", "apiserver", "controller-manager"):
            self.part(name).start()
        until("the service account of pods", lambda: self.api.get(f"/api/v1/{DEFAULT}/serviceaccounts/default"))
        self.kubectl("apply", "-f", f"{MANIFESTS}/device-classes.yaml")

    def __exit__(self, *_):
        self.stop()

    def scorer(self, placement):
        self.parts["scorer"] = scorer_part(self, self.kubeconfigs["admin"], placement)
        self.parts["scorer"].start()
        return self.parts["scorer"]

    def cpu_s(self):
        """Processor time of everything that runs."""
        return sum(cpu_s(part.process.pid) for part in self.parts.values() if part.is_running())

    def configure_scheduler(self, has_scorer):
        """Gives it the example's configuration, with or without the extender; the limits of its client are the same."""
        command = self.part("scheduler").command
        command[1:] = [argument for argument in command[1:] if not argument.startswith("--config=")]
        command.append(f"--config={scheduler_config(self.kubeconfigs['scheduler'], has_scorer)}")


# --- Objects ---

def post_all(cluster, path, objects):
    """Creates objects over one connection."""
    server = http.client.HTTPSConnection(urllib.parse.urlparse(SERVER).netloc, context=cluster.api.context)
    for one in objects:
        server.request("POST", path, json.dumps(one), {"Content-Type": "application/json"})
        answer = server.getresponse()
        text = answer.read()
        if answer.status != 201:
            raise RuntimeError(f"POST {path}: {answer.status} {text[:300]}")
    server.close()


def pod_template(labels, annotations):
    container = {"name": "main", "image": "simulated", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": "quarter"}]
    return {"metadata": {"labels": labels, "annotations": annotations},
            "spec": {"containers": [container], "resourceClaims": claims}}


def pod(name, annotations):
    made = pod_template({"app": name}, annotations)
    return {"apiVersion": "v1", "kind": "Pod", **made, "metadata": {**made["metadata"], "name": name}}


def owner(name, replicas, annotations):
    labels = {"app": name}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod_template(labels, annotations)}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": spec}


def populate(cluster, options):
    names = [f"node-{number:04}" for number in range(options.nodes)]
    post_all(cluster, NODES, map(node, names))
    post_all(cluster, SLICES, (node_slice(name, CARDS) for name in names))
    cluster.api.create(TEMPLATES, template("quarter", request(memory="20Gi", compute=25)))
    annotations = {"egpu.io/node-placement": options.placement} if options.annotated else {}
    if options.replicas:
        owners = range(options.pods // options.replicas)
        post_all(cluster, OWNERS, (owner(f"set-{number:03}", options.replicas, annotations) for number in owners))
    else:
        post_all(cluster, PODS, (pod(f"pod-{number:03}", annotations) for number in range(options.pods)))
    until("all claims to be made", lambda: count(cluster, CLAIMS) == options.pods, PATIENCE_S, 0.5)
    time.sleep(3)  # the last pods' statuses name their claims


def count(cluster, path):
    page = cluster.api.get(f"{path}?limit=1")
    return len(page["items"]) + page["metadata"].get("remainingItemCount", 0)


# --- Measuring ---

class Bindings(threading.Thread):
    """The instants at which the API server told of pods' bindings."""

    def __init__(self, cluster, pods):
        super().__init__(daemon=True)
        self.cluster, self.pods, self.times = cluster, pods, {}
        self.all_bound = threading.Event()

    def run(self):
        while not self.all_bound.is_set():
            # The server ends a watch that it finds slow; the next one begins with all that are bound.
            with urllib.request.urlopen(self.request(), context=self.cluster.api.context, timeout=PATIENCE_S) as answer:
                for event in map(json.loads, answer):
                    if event["type"] == "ERROR":
                        break
                    self.times.setdefault(event["object"]["metadata"]["uid"], time.monotonic())
                    if len(self.times) == self.pods:
                        self.all_bound.set()
                        return

    @staticmethod
    def request():
        headers = {"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}
        return urllib.request.Request(f"{SERVER}{PODS}?watch=1&fieldSelector=spec.nodeName!=", headers=headers)

    def rate(self):
        return (self.pods - 1) / (max(self.times.values()) - min(self.times.values()))


def measure(cluster, options, has_scorer):
    """Places all pods on an empty cluster; returns the figures of that."""
    with cluster:
        populate(cluster, options)
        cluster.configure_scheduler(has_scorer)
        scorer = cluster.scorer(options.placement) if has_scorer else None
        bindings = Bindings(cluster, options.pods)
        before = cluster.cpu_s()
        bindings.start()
        cluster.part("scheduler").start(wait=False)
        if not bindings.all_bound.wait(PATIENCE_S):
            waiting = cluster.api.get(f"{PODS}?fieldSelector=spec.nodeName=&limit=1")["items"]
            raise TimeoutError(f"{len(bindings.times)} of {options.pods} pods are bound; {waiting[0]['status'] if waiting else ''}")
        scheduler = cluster.part("scheduler").process.pid
        used = cluster.cpu_s() - before
        figures = {"rate": bindings.rate(), "all": used * 1000 / options.pods,
                   "scheduler": cpu_s(scheduler) * 1000 / options.pods, **placed(cluster)}
        if scorer:
            figures["scorer"] = cpu_s(scorer.process.pid) * 1000 / options.pods
            figures["resident"] = resident_mb(scorer.process.pid)
        return figures


def placed(cluster):
    """Nodes and cards that are used, and owners with two replicas on one node."""
    cards = set()
    for claim in cluster.api.items(CLAIMS):
        results = claim["status"]["allocation"]["devices"]["results"]
        cards |= {(result["pool"], result["device"]) for result in results}
    by_owner = collections.defaultdict(list)
    nodes = set()
    for one in cluster.api.items(PODS):
        nodes.add(one["spec"]["nodeName"])
        for controller in one["metadata"].get("ownerReferences", []):
            by_owner[controller["uid"]].append(one["spec"]["nodeName"])
    together = sum(len(set(places)) < len(places) for places in by_owner.values())
    return {"cards": len(cards), "nodes": len(nodes), "together": together}


def line(name, figures):
    of_scorer = f"{figures['scorer']:6.2f} {figures['resident']:6.1f}" if "scorer" in figures else ""
    print(f"{name:10} {figures['nodes']:6} {figures['cards']:6} {figures['together']:9} {figures['rate']:8.1f} "
          f"{figures['all']:7.2f} {figures['scheduler']:9.2f} {of_scorer}".rstrip(), flush=True)


def main():
    options = arguments()
    folder = in_namespaces()
    cluster = ControlPlane(options.binaries, options.target, options.rm_client, folder)
    of_owner = f"{options.pods // options.replicas} ReplicaSets of {options.replicas}" if options.replicas else "no owners"
    asked = " asked for by each pod" if options.annotated else ""
    print(f"{options.nodes} nodes of {CARDS} cards, {options.pods} quarters, {of_owner}; placement {options.placement}{asked}; "
          f"client limits {' '.join(CLIENT_LIMITS)}")
    print("                           owners              CPU ms a pod         scorer\n"
          "            nodes  cards  together   pods/s     all scheduler scorer    MiB", flush=True)
    rates, cpu = collections.defaultdict(list), collections.defaultdict(list)
    for _ in range(options.rounds):
        for has_scorer in (False, True):
            figures = measure(cluster, options, has_scorer)
            line("scorer" if has_scorer else "stock", figures)
            rates[has_scorer].append(figures["rate"])
            cpu[has_scorer].append(figures["all"])
    for name, values in (("rate", rates), ("CPU", cpu)):
        ratios = [with_it / stock for with_it, stock in zip(values[True], values[False])]
        print(f"{name} with the scorer / stock, median of {len(ratios)}: {statistics.median(ratios):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
