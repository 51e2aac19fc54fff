"""Containers outside claims: what they have of a card, claims are not offered."""

import signal

from api import until
from case import ClaimCase
from objects import GIB, request


class Outside(ClaimCase):
    def outside(self, name, **asked):
        """Starts a pod that asks by annotations."""
        self.pod(name, keep=True, runtimeClassName="egpu", annotations={f"egpu.io/{key}": asked[key] for key in asked})
        self.cluster.wait_running(name)

    def test_memory_is_subtracted(self):
        whole = self.capacity("gpu-0")
        self.outside("outside", devices="0", memory="20GiB")
        until("its memory to be gone from the offer", lambda: self.capacity("gpu-0") == whole - 20 * GIB)
        for number in range(4):
            self.claiming(f"half-{number}", request(memory="16Gi"))
        for number in range(4):
            self.cluster.wait_running(f"half-{number}")
            self.assertNotEqual(self.results_of(f"half-{number}")["gpu"]["device"], "gpu-0")
        self.running("fits", request(memory=whole - 20 * GIB, on=0))
        self.claiming("one-too-many", request(memory="1Ki", on=0))
        self.is_held_back("one-too-many")
        self.cluster.delete_pod("outside")
        self.cluster.wait_running("one-too-many")

    def test_time_and_whole_cards_are_subtracted(self):
        self.outside("third", devices="0", memory="1GiB", compute="30%")
        until("its time to be gone from the offer", lambda: self.capacity("gpu-0", "compute") == 70)
        self.claiming("too-much", request(memory="1Gi", compute=71, on=0))
        self.running("all-the-rest", request(memory="1Gi", compute=70, on=0))
        self.is_held_back("too-much")
        self.outside("whole", devices="1")
        until("the card to be gone", lambda: "gpu-1" not in self.cards())
        for number in range(2):
            self.running(f"elsewhere-{number}", request(memory="32Gi"))
        self.cluster.delete_pod("whole")
        until("the card to be back", lambda: "gpu-1" in self.cards())

    def test_a_claim_that_was_bound_before_waits(self):
        """The slice that the scheduler went by was older than the container: the ledger has the last word."""
        plugin = self.cluster.part("plugin").process
        plugin.send_signal(signal.SIGSTOP)
        self.addCleanup(plugin.send_signal, signal.SIGCONT)
        self.outside("outside", devices="2", memory="30GiB")
        self.claiming("late", request(memory="16Gi", on=2))
        until("it to be bound", lambda: self.cluster.pod("late")["spec"].get("nodeName"))
        plugin.send_signal(signal.SIGCONT)
        until("the reason to be told", lambda: "memory" in " ".join(self.cluster.events("late")), 60)
        self.assertEqual(len(self.cluster.grants()), 1)
        self.cluster.delete_pod("outside")
        self.cluster.wait_running("late", seconds=120)

    def test_layouts_of_windows_bound_what_is_offered(self):
        """No claimed pod is bound to a card on which its window cannot be laid out, while another has room."""
        for number in range(3):
            self.outside(f"piece-{number}", devices="0", memory="1GiB", compute="23%")
        until("their time to be gone", lambda: self.capacity("gpu-0", "compute") <= 31)
        left = self.capacity("gpu-0", "compute")
        self.running("fits", request(memory="1Gi", compute=left, on=0))
        self.running("elsewhere", request(memory="1Gi", compute=31))
        self.assertNotEqual(self.results_of("elsewhere")["gpu"]["device"], "gpu-0")
