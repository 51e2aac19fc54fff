"""Every manifest of examples/kubernetes, byte for byte."""

import os
import re

from api import until
from case import ClaimCase, KubeCase
from cluster import EXAMPLES


class Plain(KubeCase):
    """Those whose request is the pod's own words."""


class OfClaims(ClaimCase):
    """Those whose request is a claim."""

    def apply(self, file):
        with open(f"{EXAMPLES}/{file}", encoding="utf-8") as manifest:
            text = manifest.read()
        self.cluster.kubectl("apply", "-f", f"{EXAMPLES}/{file}")
        self.addCleanup(self.cluster.kubectl, "delete", "--ignore-not-found", "--now", "-f", f"{EXAMPLES}/{file}")
        return text

    def test_claims_deployment(self):
        self.apply("claims-deployment.yaml")
        until("four replicas", lambda: len(self.pods("Running")) == 4)
        for pod in self.pods("Running"):
            self.assertIn("/ 8192MiB", self.logs(pod))

    def test_claims_weighted(self):
        self.cluster.egpu("policy", "2", "weighted")
        self.addCleanup(self.cluster.egpu, "policy", "2", "fixed")
        check(self, self.apply("claims-weighted.yaml"))


def check(case, text):
    """Waits for the manifest's pods; each has ended well, and seen cards of the sizes that were asked for."""
    for name in re.findall(r"^kind: Pod\nmetadata:\n  name: (\S+)$", text, re.MULTILINE):
        pod = case.cluster.wait_ended(name)
        case.assertEqual(pod["status"]["phase"], "Succeeded", case.cluster.kubectl("describe", "pod", name))
        for container in pod["spec"]["containers"]:
            logs = case.logs(name, container["name"])
            case.assertIn("Tesla V100", logs)
            for size in re.findall(r"memory (\d+)Gi", re.search("^# asks for: .*$", text, re.MULTILINE)[0]):
                case.assertIn(f"/ {int(size) << 10}MiB", logs)


def plain(file):
    def test(self):
        name = file.removesuffix(".yaml")
        self.cluster.kubectl("apply", "-f", f"{EXAMPLES}/{file}")
        self.addCleanup(self.cluster.delete_pod, name)
        pod = self.cluster.wait_ended(name)
        self.assertEqual(pod["status"]["phase"], "Succeeded", self.cluster.kubectl("describe", "pod", name))
        self.assertIn("Tesla V100", self.logs(name))
    return test


def of_claims(file):
    return lambda self: check(self, self.apply(file))


for manifest in sorted(os.listdir(EXAMPLES)):
    test = f"test_{manifest.removesuffix('.yaml').replace('-', '_')}"
    if manifest.startswith("claims-"):
        if not hasattr(OfClaims, test):
            setattr(OfClaims, test, of_claims(manifest))
    elif manifest != "00-runtime-class.yaml" and not manifest.startswith("webhook-"):
        setattr(Plain, test, plain(manifest))
