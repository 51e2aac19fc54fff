"""egpu-scorer and the scheduler that asks it: nodes are packed or spread over, and nobody needs it."""

import json
import os
import signal

from api import until
from case import ClaimCase
from cluster import MANIFESTS, PLUGIN_ACCOUNT, SLICES
from objects import DEFAULT, NODES, PODS, claims_of_container, container, request
from placement import node, node_slice, scheduler_config, scorer_part

MANIFEST = f"{MANIFESTS}/optional/scorer.yaml"
ACCOUNT = ("egpu", "egpu-scorer")
NAMES = ["simulated-a", "simulated-b"]
LABEL = {"egpu.test/simulated": "true"}
ANNOTATION = "egpu.io/node-placement"
OWNERS = f"/apis/apps/v1/{DEFAULT}/replicasets"


class Scorer(ClaimCase):
    def setUp(self):
        super().setUp()
        if not os.path.exists(f"{self.cluster.binaries}/egpu-scorer"):
            self.skipTest("no egpu-scorer is among the binaries")
        self.scorer = self.start_scorer()
        scheduler = self.cluster.part("scheduler")
        self.addCleanup(scheduler.restart)
        self.addCleanup(setattr, scheduler, "command", scheduler.command)
        path = scheduler_config(self.cluster.kubeconfigs["scheduler"])
        scheduler.command = [*scheduler.command, f"--config={path}"]
        scheduler.restart()

    def start_scorer(self):
        """With the rights of the manifest. Its own pod finds no node here."""
        self.cluster.kubectl("apply", "-f", MANIFEST)
        self.addCleanup(self.cluster.kubectl, "delete", "-f", MANIFEST)
        namespace, account = ACCOUNT
        token = self.cluster.kubectl("create", "token", account, "--namespace", namespace)
        kubeconfig = self.cluster.authority.token_kubeconfig("scorer", token.strip())
        scorer = scorer_part(self.cluster, kubeconfig, "binpack")
        scorer.start()
        self.addCleanup(scorer.stop)
        return scorer

    def simulated_nodes(self):
        """Two with two cards each, which pods are bound to and never run on."""
        for name in NAMES:
            made = node(name)
            made["metadata"]["labels"] |= LABEL
            uid = self.cluster.api.create(NODES, made)["metadata"]["uid"]
            self.addCleanup(self.cluster.api.delete, f"{NODES}/{name}")
            self.addCleanup(self.cluster.kubectl, "delete", "pods", "--field-selector", f"spec.nodeName={name}", "--force")
            self.publish(node_slice(name, 2, "32Gi"), uid)

    def publish(self, one, uid):
        """As the node's plugin does, which alone may."""
        namespace, account = PLUGIN_ACCOUNT
        token = self.cluster.kubectl("create", "token", account, "--namespace", namespace, "--bound-object-kind=Node",
                                     f"--bound-object-name={one['spec']['nodeName']}", f"--bound-object-uid={uid}")
        kubeconfig = self.cluster.authority.token_kubeconfig("simulated", token.strip())
        self.cluster.kubectl("--kubeconfig", kubeconfig, "create", "--validate=false", "-f", "-", stdin=json.dumps(one))
        self.addCleanup(self.cluster.api.delete, f"{SLICES}/{one['metadata']['name']}")

    def on_simulated(self, name, placement=None):
        """Makes a pod with a quarter of a card of such a node; returns which it was bound to."""
        annotations = {ANNOTATION: placement} if placement else {}
        self.claiming(name, of="quarter", annotations=annotations, runtimeClassName=None, nodeSelector=LABEL,
                      tolerations=[{"operator": "Exists"}])
        return self.bound(name)

    def bound(self, name):
        return until(f"{name} to be bound", lambda: self.cluster.pod(name)["spec"].get("nodeName"))

    def test_nodes_are_packed_and_spread_over(self):
        self.simulated_nodes()
        self.template("quarter", request(memory="8Gi", compute=25))
        first = self.on_simulated("packed-0")
        other = next(name for name in NAMES if name != first)
        self.assertEqual([self.on_simulated(f"packed-{number}") for number in range(1, 3)], [first] * 2)
        self.assertEqual(self.on_simulated("spread", "spread"), other)
        self.assertEqual(self.on_simulated("packed-too", "binpack"), first)
        self.assertEqual(sorted(self.replicas("apart", None)), NAMES, "replicas of one owner are on two nodes")
        self.assertEqual(len(self.replicas("together", "binpack")), 1, "unless the pods ask for it")

    def replicas(self, name, placement):
        """Makes two pods of one ReplicaSet; returns the nodes that they are bound to."""
        labels = {"app": name}
        pod = {"containers": [container(resources=claims_of_container())], "nodeSelector": LABEL,
               "tolerations": [{"operator": "Exists"}],
               "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "quarter"}]}
        metadata = {"labels": labels, "annotations": {ANNOTATION: placement} if placement else {}}
        spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": {"metadata": metadata, "spec": pod}}
        body = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": spec}
        self.cluster.api.create(OWNERS, body)
        self.addCleanup(self.cluster.api.delete, f"{OWNERS}/{name}")

        def nodes():
            pods = self.cluster.api.items(f"{PODS}?labelSelector=app={name}")
            found = [pod["spec"].get("nodeName") for pod in pods]
            return len(found) == 2 and all(found) and set(found)
        return until("both replicas to be bound", nodes)

    def test_without_it_pods_are_placed(self):
        self.template("quarter", request(memory="8Gi", compute=25))
        self.running("asked", of="quarter")
        self.scorer.process.send_signal(signal.SIGSTOP)
        self.running("it-hangs", of="quarter")
        self.scorer.kill()
        self.running("it-is-gone", of="quarter")
        self.scorer.start()
        self.running("it-is-back", of="quarter")
