"""kubectl egpu against the real cluster: which cards there are, why a pod waits, emptying a card."""

import json
import signal

from api import until
from case import ClaimCase
from cluster import NODE
from objects import GIB, request


class Administration(ClaimCase):
    def egpu(self, *arguments):
        return json.loads(self.cluster.kubectl_egpu(*arguments, "--output", "json")[1])

    def test_cards_and_top(self):
        self.running("user", request(memory="8Gi", compute=25, on=0))
        cards = {card["card"]: card for card in self.egpu("cards")}
        self.assertEqual(list(cards), [f"gpu-{number}" for number in range(4)])
        self.assertEqual(cards["gpu-0"]["users"], ["default/user"])
        self.assertEqual(cards["gpu-0"]["memory_bytes"]["free"], 24 * GIB, cards["gpu-0"])
        self.assertEqual(cards["gpu-0"]["compute_percent"]["free"], 75)
        self.assertEqual(cards["gpu-1"]["users"], [])
        [share] = self.egpu("top")
        self.assertEqual((share["pods"], share["memory_bytes"], share["compute_percent"]), (["user"], 8 * GIB, 25))
        for table in (self.cluster.kubectl_egpu("cards")[1], self.cluster.kubectl_egpu("top")[1]):
            self.assertIn("user", table)

    def test_why_a_pod_waits(self):
        for number in range(4):
            self.running(f"most-{number}", request(memory=f"{24 + number}Gi", compute=50, on=number))
        self.claiming("waits", request(memory="10Gi", compute=60))
        self.is_held_back("waits")
        text = self.cluster.kubectl_egpu("why", "waits")[1]
        self.assertIn("Closest: node/gpu-0: lacks 10% of compute (50% free); lacks 2Gi of memory (8Gi free)", text)
        self.assertIn("lacks 5Gi of memory (5Gi free)", text, "each card has its line")
        code, _, message = self.cluster.kubectl_egpu("why", "nobody", check=False)
        self.assertEqual((code, "there is no pod" in message), (4, True))

    def test_why_a_bound_pod_does_not_start(self):
        """A container outside claims came first, which the scheduler could not know."""
        plugin = self.cluster.part("plugin").process
        plugin.send_signal(signal.SIGSTOP)
        self.addCleanup(plugin.send_signal, signal.SIGCONT)
        self.pod("outside", keep=True, runtimeClassName="egpu",
                 annotations={"egpu.io/devices": "2", "egpu.io/memory": "30GiB"})
        self.cluster.wait_running("outside")
        self.claiming("late", request(memory="16Gi", on=2))
        until("it to be bound", lambda: self.cluster.pod("late")["spec"].get("nodeName"))
        plugin.send_signal(signal.SIGCONT)
        until("the node's reason", lambda: "2GiB" in self.cluster.kubectl_egpu("why", "late")[1])

    def test_drain_and_back(self):
        self.running("stays", request(memory="8Gi", on=0))
        outcome = self.egpu("drain", f"{NODE}/gpu-0")
        self.assertEqual((outcome["by"], outcome["pods"]), ("DeviceTaintRule", ["default/stays"]))
        self.addCleanup(self.cluster.kubectl_egpu, "undrain", NODE, check=False)
        self.claiming("late", request(memory="8Gi", on=0))
        self.running("elsewhere", request(memory="8Gi"))
        self.assertNotEqual(self.results_of("elsewhere")["gpu"]["device"], "gpu-0")
        self.is_held_back("late")
        self.assertIn("drain", self.cluster.kubectl_egpu("why", "late")[1])
        self.assertEqual(self.cluster.pod("stays")["status"]["phase"], "Running")
        self.egpu("undrain", f"{NODE}/gpu-0")
        self.cluster.wait_running("late")

    def test_drain_with_eviction(self):
        for number in range(2):
            self.running(f"pod-{number}", request(memory="8Gi", on=number))
        outcome = self.egpu("drain", f"{NODE}/gpu-1", "--evict")
        self.addCleanup(self.cluster.kubectl_egpu, "undrain", NODE, check=False)
        self.assertEqual(outcome["evicted"], ["default/pod-1"])
        self.cluster.wait_gone("pod-1")
        self.assertEqual(self.cluster.pod("pod-0")["status"]["phase"], "Running")
        self.egpu("undrain", f"{NODE}/gpu-1")

    def test_drain_of_a_node(self):
        self.egpu("drain", NODE)
        self.addCleanup(self.cluster.kubectl_egpu, "undrain", NODE, check=False)
        self.claiming("waits", request(memory="1Gi"))
        self.is_held_back("waits")
        self.egpu("undrain", NODE)
        self.cluster.wait_running("waits")

    def test_drain_by_the_nodes_annotation(self):
        """Where the API server has no DeviceTaintRules."""
        self.cluster.kubectl("annotate", "node", NODE, "egpu.io/drain=gpu-0,gpu-1")
        self.addCleanup(self.cluster.kubectl, "annotate", "node", NODE, "egpu.io/drain-")
        until("the taints to be published", lambda: self.tainted() == ["gpu-0", "gpu-1"])
        self.running("elsewhere", request(memory="8Gi"))
        self.assertIn(self.results_of("elsewhere")["gpu"]["device"], ("gpu-2", "gpu-3"))
        drained = [{"key": "gpu.egpu.io/drain", "operator": "Exists", "effect": "NoSchedule"}]
        self.running("tolerant", request(memory="8Gi", on=0, tolerations=drained))
        self.cluster.kubectl("annotate", "node", NODE, "egpu.io/drain-")
        until("the taints to be gone", lambda: self.tainted() == [])

    def tainted(self):
        return sorted(name for name, card in self.cards().items() if card.get("taints"))
