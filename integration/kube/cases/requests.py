"""What a claim may ask beyond one share: several cards, alternatives, tolerations, whole cards, containers that share."""

from api import until
from case import ClaimCase
from cluster import DRIVER, NODE
from objects import SLEEP, claims_of_container, container, exactly, gpu_config, request, shell

RULES = "/apis/resource.k8s.io/v1/devicetaintrules"


class Requests(ClaimCase):
    def test_two_requests_on_two_cards(self):
        two = [request("one", memory="4Gi", compute=20), request("two", memory="6Gi", compute=30)]
        apart = [{"requests": ["one", "two"], "distinctAttribute": f"{DRIVER}/uuid"}]
        self.template("apart", *two, constraints=apart)
        self.claiming("apart", of="apart")
        self.running("together", *two)
        self.cluster.wait_running("apart")
        cards = {result["device"] for result in self.results_of("apart").values()}
        self.assertEqual(len(cards), 2, "the constraint keeps them on different cards")
        table = self.inside("apart", "rm-client", "smi")
        self.assertTrue("/ 4096MiB" in table and "/ 6144MiB" in table, table)
        # Without it they are on the first card that has room, and the container has their sum.
        self.assertEqual(len({result["device"] for result in self.results_of("together").values()}), 1)
        self.assertEqual(len(self.grants("together")), 2)

    def test_two_cards_of_one_request(self):
        self.running("pair", request(memory="4Gi", compute=20, count=2))
        table = self.inside("pair", "rm-client", "smi")
        self.assertEqual(table.count("/ 4096MiB"), 2, table)
        self.assertEqual(len(self.grants("pair")["gpu"]["cards"]), 2)

    def test_the_first_available(self):
        large = {"name": "large", **exactly(memory="64Gi")}
        small = {"name": "small", **exactly(memory="4Gi", compute=10)}
        self.running("either", {"name": "gpu", "firstAvailable": [large, small]})
        self.assertEqual(list(self.results_of("either")), ["gpu/small"])
        self.assertIn("/ 4096MiB", self.inside("either", "rm-client", "smi"))
        self.assertEqual(list(self.grants("either")), ["gpu"])

    def test_taints_and_tolerations(self):
        """An administrator's taint ends pods that do not tolerate it, and only those."""
        patience = {"key": "test", "operator": "Exists", "effect": "NoExecute"}
        self.running("tolerant", request(memory="1Gi", on=0, tolerations=[patience]))
        self.running("intolerant", request(memory="1Gi", on=0))
        rule = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": "broken"},
                "spec": {"deviceSelector": {"driver": DRIVER, "pool": NODE, "device": "gpu-0"},
                         "taint": {"key": "test", "value": "broken", "effect": "NoExecute"}}}
        self.cluster.api.create(RULES, rule)
        self.addCleanup(self.cluster.api.delete, f"{RULES}/broken")
        self.cluster.wait_gone("intolerant")
        self.claiming("late", request(memory="1Gi", on=0))
        self.running("elsewhere", request(memory="1Gi"))
        self.is_held_back("late")
        self.assertNotEqual(self.results_of("elsewhere")["gpu"]["device"], "gpu-0")
        self.assertEqual(self.cluster.pod("tolerant")["status"]["phase"], "Running")

    def test_whole_cards_by_an_extended_resource(self):
        for number in range(5):
            self.pod(f"card-{number}", keep=True, runtimeClassName="egpu", command=SLEEP,
                     resources={"limits": {"egpu.io/gpu": "1"}})
        until("four pods to run", lambda: len(self.pods("Running")) == 4)
        [waiting] = self.pods("Pending")
        self.claiming("share", request(memory="1Gi"))
        self.is_held_back(waiting, "share")
        first = self.pods("Running")[0]
        self.assertIn("/ 32768MiB", self.inside(first, "rm-client", "smi"))
        self.assertTrue(all(grant["exclusive"] for grant in self.cluster.grants()))
        self.cluster.delete_pod(waiting)
        self.cluster.delete_pod(first)
        self.cluster.wait_running("share")

    def test_two_containers_share_a_claim(self):
        self.template("both", request(memory="8Gi", compute=30))
        both = [container(name, resources=claims_of_container()) for name in ("one", "two")]
        self.claiming("both", of="both", containers=both)
        self.cluster.wait_running("both")
        users = self.grants("both")["gpu"]["claim"]["containers"]
        self.assertEqual(sorted(user["name"] for user in users), ["one", "two"])
        hold = "rm-client alloc 5G --hold 1000 > /tmp/log 2>&1 < /dev/null & until grep -q holding /tmp/log; do sleep 0.1; done"
        self.inside("both", *shell(hold), of="one")
        more = shell("rm-client alloc 5G; echo code $?")
        self.assertIn("out of memory\ncode 2", self.inside("both", *more, of="two"))
        self.inside("both", *shell("kill %1 || kill $(pidof rm-client)"), of="one")
        until("its memory to be free", lambda: "code 0" in self.inside("both", *more, of="two"))

    def test_init_containers_join_and_leave(self):
        self.template("stages", request(memory="8Gi"))
        claims = claims_of_container()
        first = container("first", command=shell("rm-client alloc 6G"), resources=claims)
        main = container(command=shell("rm-client alloc 6G && sleep infinity"), resources=claims)
        self.claiming("stages", of="stages", initContainers=[first], containers=[main])
        self.cluster.wait_running("stages")
        self.assertEqual(len(self.cluster.grants()), 1)

    def test_requests_of_a_claim_are_for_different_containers(self):
        self.template("split", request("one", memory="1Gi", on=0), request("two", memory="2Gi", on=1))
        split = [container(name, resources=claims_of_container(name)) for name in ("one", "two")]
        self.claiming("split", of="split", containers=split)
        self.cluster.wait_running("split")
        for name, limit in (("one", "/ 1024MiB"), ("two", "/ 2048MiB")):
            table = self.inside("split", "rm-client", "smi", of=name)
            self.assertTrue(limit in table and table.count("Tesla V100") == 1, table)

    def test_weights_on_a_card_that_is_shared_by_weights(self):
        self.cluster.egpu("policy", "1", "weighted")
        self.addCleanup(self.cluster.egpu, "policy", "1", "fixed")
        until("the policy to be published", lambda: self.policy("gpu-1") == "weighted")
        weighted = [f'device.attributes["{DRIVER}"].policy == "weighted"']
        for name, weight in (("light", 1), ("heavy", 3)):
            self.template(name, request(memory="4Gi", where=weighted),
                          config=[gpu_config("gpu", policy="weighted", weight=weight)])
            self.claiming(name, of=name)
            self.cluster.wait_running(name)
            self.assertEqual(self.results_of(name)["gpu"]["device"], "gpu-1")
        self.assertEqual(self.grants("heavy")["gpu"]["cards"][0]["weight"], 3)
        # A cap is for other cards.
        self.running("capped", request(memory="4Gi", compute=20))
        self.assertNotEqual(self.results_of("capped")["gpu"]["device"], "gpu-1")

    def policy(self, card):
        return self.cards()[card]["attributes"]["policy"]["string"]
