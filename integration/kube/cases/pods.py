"""Pods without claims."""

from api import ApiError, until
from case import ClaimCase, KubeCase
from objects import request

LEVEL = "pod-security.kubernetes.io/enforce"
# All that the level `restricted` wants of a container.
RESTRICTED = {"runAsNonRoot": True, "runAsUser": 1000, "allowPrivilegeEscalation": False,
              "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}


def enforce(case, level):
    """Makes the namespace of one of PodSecurity's levels until the end of the test."""
    case.cluster.kubectl("label", "--overwrite", "namespace", "default", f"{LEVEL}={level}")
    case.addCleanup(case.cluster.kubectl, "label", "namespace", "default", f"{LEVEL}-")


class Pods(KubeCase):
    def test_runtime_class(self):
        self.pod("plain", runtimeClassName="egpu", command=["/bin/sh", "-c", "echo hello; ls /dev | grep -c nvidia"])
        self.cluster.wait_ended("plain")
        self.assertEqual(self.logs("plain"), "hello\n0\n")

    def test_share_by_annotation(self):
        self.pod("share", runtimeClassName="egpu", annotations={"egpu.io/memory": "1GiB", "egpu.io/compute": "20%"},
                 command=["/bin/sh", "-c", "rm-client memory; sleep infinity"])
        self.cluster.wait_running("share")
        self.assertEqual(len(self.cluster.grants()), 1)
        self.cluster.delete_pod("share")
        self.assertEqual(self.cluster.leftovers(), [])

    def test_without_runtime_class_no_gpu(self):
        self.pod("none", image="egpu.test/cuda:1", command=["/bin/sh", "-c", "ls /dev | grep -c nvidia"])
        self.cluster.wait_ended("none")
        self.assertEqual(self.logs("none"), "0\n")

    def test_share_in_a_restricted_namespace(self):
        enforce(self, "restricted")
        share = {"runtimeClassName": "egpu", "annotations": {"egpu.io/memory": "1GiB"}}
        with self.assertRaisesRegex(ApiError, "restricted"):
            self.pod("baseline", **share)
        self.pod("restricted", securityContext=RESTRICTED, **share)
        self.cluster.wait_running("restricted")
        said = self.cluster.kubectl("exec", "restricted", "--", "grep", "-h", "CapBnd", "/proc/1/status", "/proc/self/status")
        self.assertEqual(said, 2 * f"CapBnd:\t{0:016x}\n")
        self.assertEqual(len(self.cluster.grants()), 1)
        self.cluster.delete_pod("restricted")

    def test_share_of_a_privileged_container(self):
        self.pod("privileged", runtimeClassName="egpu", annotations={"egpu.io/memory": "1GiB"},
                 securityContext={"privileged": True})
        until("the refusal", lambda: any("CAP_SYS_ADMIN" in said for said in self.cluster.events("privileged")))


class Levels(ClaimCase):
    def test_claim_in_a_restricted_namespace(self):
        enforce(self, "restricted")
        self.running("restricted", request(memory="1Gi"), securityContext=RESTRICTED)
        self.assertIn(f"total {1 << 30}", self.inside("restricted", "rm-client", "memory"))
        self.cluster.delete_pod("restricted")

    def test_claim_in_a_baseline_namespace(self):
        enforce(self, "baseline")
        self.running("baseline", request(memory="1Gi"))
        self.assertIn(f"total {1 << 30}", self.inside("baseline", "rm-client", "memory"))
        self.cluster.delete_pod("baseline")
