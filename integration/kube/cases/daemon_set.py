"""The plugin as packaging/kubernetes runs it: a pod that changes to the node's root."""

from api import until
from cluster import NODE
from node_case import PODS, NodeCase
from objects import request


class DaemonSet(NodeCase):
    def setUp(self):
        super().setUp()
        self.cluster.part("plugin").stop()
        self.addCleanup(self.cluster.part("plugin").start)
        self.install()
        self.service()
        self.cluster.kubectl("label", "node", NODE, "egpu.io/ready=true")
        self.addCleanup(until, "the plugin's pod to be gone", lambda: not self.cluster.api.items(PODS))
        self.addCleanup(self.cluster.kubectl, "label", "node", NODE, "egpu.io/ready-")

    def test_claims_and_a_rolling_update(self):
        first = until("the plugin's pod to be registered", self.plugin_pod)
        until("the cards to be published", lambda: len(self.cards()) == 4)
        self.running("before", request(memory="4Gi", compute=25))
        self.cluster.kubectl("rollout", "restart", "daemonset/egpu-kubelet-plugin", "--namespace", "egpu")
        until("another to have taken its place", lambda: self.plugin_pod() not in (False, first), 90)
        self.running("after", request(memory="4Gi", compute=25))
        for pod in ("before", "after"):
            self.assertIn("/ 4096MiB", self.inside(pod, "rm-client", "smi"))
        self.cluster.delete_pod("before")
        until("its grant to be gone", lambda: len(self.cluster.grants()) == 1)
        self.cluster.delete_pod("after")
