"""The stock scheduler's arithmetic on what the plugin publishes: to the byte, to the percent, to the place."""

from api import until
from case import ClaimCase
from objects import GIB, request


class Admission(ClaimCase):
    def test_to_the_byte(self):
        """Beside 20 GiB and all the rest but 2 KiB, one byte more than these does not fit; these do."""
        left = self.capacity("gpu-0") - 20 * GIB
        self.running("large", request(memory=20 * GIB, compute=1, on=0))
        self.running("almost-all", request(memory=left - 2048, compute=1, on=0))
        self.claiming("one-more", request(memory=2049, compute=1, on=0))
        self.is_held_back("one-more")
        self.running("the-rest", request(memory=2048, compute=1, on=0))
        granted = [grant["cards"][0]["memory_limit_bytes"] for grant in self.cluster.grants()]
        self.assertEqual(sum(granted), self.capacity("gpu-0"), granted)

    def test_to_the_percent(self):
        self.running("sixty", request(memory="1Gi", compute=60, on=0))
        self.claiming("one-too-many", request(memory="1Gi", compute=41, on=0))
        self.claiming("more-than-all", request(memory="1Gi", compute=110, on=0))
        self.is_held_back("one-too-many", "more-than-all")
        self.running("forty", request(memory="1Gi", compute=40, on=0))
        # Whoever names no percents keeps 5 of them, of which none are left.
        self.claiming("unnamed", request(memory="1Gi", on=0))
        self.is_held_back("unnamed")
        self.cluster.delete_pod("forty")
        self.cluster.wait_running("unnamed")
        self.assertEqual(self.results_of("unnamed")["gpu"]["consumedCapacity"]["compute"], "5")
        self.assertNotIn("compute_percent", self.grants("unnamed")["gpu"]["cards"][0])

    def test_fractions_are_rounded_up(self):
        self.running("eighth", request(memory="1073741824500m", compute="12500m"))
        consumed = self.results_of("eighth")["gpu"]["consumedCapacity"]
        self.assertEqual((consumed["memory"], consumed["compute"]), ("1073741825", "13"))
        card = self.grants("eighth")["gpu"]["cards"][0]
        self.assertEqual((card["memory_limit_bytes"], card["compute_percent"]), (GIB, 13), "limits are whole KiB")

    def test_shares_of_memory_alone_fit_beside_each_other(self):
        for number in range(4):
            self.claiming(f"share-{number}", request(memory="8Gi", on=0))
        for number in range(4):
            self.cluster.wait_running(f"share-{number}")
        self.assertEqual(len(self.cluster.grants()), 4)

    def test_what_names_nothing_has_the_card_alone(self):
        self.running("whole", request(on=1))
        self.claiming("beside", request(memory="1Mi", on=1))
        self.is_held_back("beside")
        self.assertIn("/ 32768MiB", self.inside("whole", "rm-client", "smi"))
        self.cluster.delete_pod("whole")
        self.cluster.wait_running("beside")
        self.claiming("whole-again", request(on=1))
        self.is_held_back("whole-again")

    def test_sixty_pods_race_for_thirty_two_places(self):
        self.template("eighth", request(memory=self.capacity("gpu-0") // 8, compute=10))
        names = [f"racer-{number}" for number in range(60)]
        for name in names:
            self.claiming(name, of="eighth")
        until("32 pods to run", lambda: len(self.pods("Running")) >= 32, 240, every=1)
        waiting = [name for name in names if name in self.pods("Pending")]
        self.assertEqual(len(waiting), 28)
        self.is_held_back(*waiting, seconds=5)
        self.assertEqual(len(self.pods("Running")), 32)
        per_card = {}
        for grant in self.cluster.grants():
            card = grant["cards"][0]["uuid"]
            per_card[card] = per_card.get(card, 0) + 1
        self.assertEqual(sorted(per_card.values()), [8, 8, 8, 8])
        self.cluster.delete_pod(self.pods("Running")[0])
        until("the next to run", lambda: len(self.pods("Running")) == 32)
