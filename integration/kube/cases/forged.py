"""What a pod says beside a claim, or about one that is not its own."""

from api import ApiError, until
from case import ClaimCase
from cluster import DRIVER
from objects import CLAIMS, TEMPLATES, claim, claims_of_container, gpu_config, request, shell, template

LISTED = ["/bin/sh", "-c", "ls /dev | grep -c nvidia; echo $NVIDIA_VISIBLE_DEVICES; sleep infinity"]


class Forged(ClaimCase):
    def refused(self, pod, reason):
        """Waits until a container of the pod is refused for the reason; it must not run."""
        until(f"{pod} to be refused", lambda: any(reason in text for text in self.cluster.events(pod)))
        self.assertIn(self.cluster.pod(pod)["status"]["phase"], ("Pending", "Failed"))

    def variable(self, pod):
        """Variable of the claim, as the pod's container has it."""
        lines = self.inside(pod, "env").splitlines()
        [line] = [line for line in lines if line.startswith("EGPU_CLAIM_")]
        name, _, value = line.partition("=")
        return {"name": name, "value": value}

    def test_another_pods_claim(self):
        self.running("owner", request(memory="4Gi", compute=25))
        variable = self.variable("owner")
        self.pod("thief", keep=True, runtimeClassName="egpu", env=[variable])
        self.refused("thief", "is another pod's")
        self.claiming("rich-thief", request(memory="1Gi"), env=[variable])
        self.refused("rich-thief", "is another pod's")
        users = self.grants("owner")["gpu"]["claim"]["containers"]
        self.assertEqual(len(users), 1)
        made_up = {"name": variable["name"], "value": "default/0d1c7f0e-0000-4000-8000-000000000000/gpu"}
        self.pod("guesser", keep=True, runtimeClassName="egpu", env=[made_up])
        self.refused("guesser", "claim")

    def test_quotas_beside_a_claim(self):
        env = {"NVIDIA_VISIBLE_DEVICES": "all", "EGPU_MEMORY": "30GiB", "EGPU_DEVICES": "0,1,2,3",
               "EGPU_ISOLATION": "none", "CUDA_DEVICE_MEMORY_LIMIT_0": "30g", "CUDA_DEVICE_SM_LIMIT": "100"}
        self.running("greedy", request(memory="4Gi", compute=10), env=[{"name": name, "value": env[name]} for name in env],
                     annotations={"egpu.io/memory": "30GiB", "egpu.io/compute": "100%", "egpu.io/devices": "all"})
        table = self.inside("greedy", "rm-client", "smi")
        self.assertTrue("/ 4096MiB" in table and table.count("Tesla V100") == 1, table)
        self.assertEqual(self.grants("greedy")["gpu"]["cards"][0]["compute_percent"], 10)

    def test_without_the_runtime_no_gpu(self):
        """CDI gives a container nothing that is of use without egpu, whatever it says itself."""
        env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        self.claiming("bare", request(memory="4Gi"), runtimeClassName=None, command=LISTED, env=env)
        self.cluster.wait_running("bare")
        until("its words", lambda: self.logs("bare").split() == ["0", "void"])

    def test_a_claim_that_two_pods_name(self):
        self.cluster.api.create(CLAIMS, claim("shared", request(memory="4Gi")))
        use = {"runtimeClassName": "egpu", "resources": claims_of_container(),
               "resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}
        self.pod("first", keep=True, **use)
        self.cluster.wait_running("first")
        self.pod("second", keep=True, **use)
        self.refused("second", "a claim is for one pod")
        self.assertEqual(self.cluster.pod("first")["status"]["phase"], "Running")
        # One after the other they may.
        for name in ("first", "second"):
            self.cluster.delete_pod(name)
        self.pod("third", keep=True, **use)
        self.cluster.wait_running("third")
        self.assertIn("/ 4096MiB", self.inside("third", "rm-client", "smi"))

    def test_a_claim_that_two_pods_name_at_once(self):
        self.cluster.part("kubelet").kill()
        self.cluster.api.create(CLAIMS, claim("shared", request(memory="4Gi")))
        for name in ("first", "second"):
            self.pod(name, keep=True, runtimeClassName="egpu", resources=claims_of_container(),
                     resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}])
        until("both to be bound", lambda: all(self.cluster.pod(name)["spec"].get("nodeName") for name in ("first", "second")))
        self.cluster.part("kubelet").start()
        self.refused("first", "the claim is reserved for 2 pods")
        self.refused("second", "the claim is reserved for 2 pods")
        self.assertEqual(self.cluster.grants(), [])
        self.cluster.delete_pod("second")
        self.cluster.wait_running("first", seconds=120)

    def test_where_claims_are_required(self):
        self.egpu_settings("[kubernetes]", "require_claim = true")
        env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "EGPU_DEVICES", "value": "0"}]
        self.pod("without", keep=True, runtimeClassName="egpu", command=shell("ls /dev | grep -c nvidia"), env=env,
                 annotations={"egpu.io/memory": "1GiB"})
        self.cluster.wait_ended("without")
        self.assertEqual(self.logs("without"), "0\n")
        self.running("with", request(memory="4Gi"))
        self.assertIn("/ 4096MiB", self.inside("with", "rm-client", "smi"))


class Policies(ClaimCase):
    """What the API server refuses before it comes to a node."""

    def refused(self, reason, *requests, config):
        with self.assertRaisesRegex(ApiError, reason):
            self.cluster.api.create(TEMPLATES, template("refused", *requests, config=[config]))

    def test_configurations_that_no_card_could_serve(self):
        plain = request(memory="4Gi")
        self.refused("has the fields policy, weight", plain, config=gpu_config("gpu", memory="4Gi"))
        self.refused("by a selector such as", plain, config=gpu_config("gpu", policy="weighted"))
        self.refused("names the policy that counts it", plain, config=gpu_config("gpu", weight=2))
        self.refused("oom is deny or kill", plain, config=gpu_config("gpu", oom="panic"))
        weighted = [f'device.attributes["{DRIVER}"].policy == "weighted"']
        capped = request(memory="4Gi", compute=20, where=weighted)
        self.refused("is a hard cap", capped, config=gpu_config("gpu", policy="weighted"))

    def test_slices_are_the_plugins(self):
        [one] = self.cluster.slices()
        one["metadata"] = {"name": "forged"}
        with self.assertRaisesRegex(ApiError, "are written by the service account egpu-kubelet-plugin"):
            self.cluster.api.create("/apis/resource.k8s.io/v1/resourceslices", one)
