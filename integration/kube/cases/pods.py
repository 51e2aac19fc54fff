"""Pods without claims: the runtime class, and the examples as they are."""

import os

from case import KubeCase
from cluster import EXAMPLES


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


class Examples(KubeCase):
    """Every manifest of examples/kubernetes, byte for byte."""


def example(file):
    def test(self):
        name = file.removesuffix(".yaml")
        self.cluster.kubectl("apply", "-f", f"{EXAMPLES}/{file}")
        self.addCleanup(self.cluster.delete_pod, name)
        pod = self.cluster.wait_ended(name)
        self.assertEqual(pod["status"]["phase"], "Succeeded", self.cluster.kubectl("describe", "pod", name))
        self.assertIn("Tesla V100", self.logs(name))
    return test


for manifest in sorted(os.listdir(EXAMPLES)):
    if manifest != "00-runtime-class.yaml":
        setattr(Examples, f"test_{manifest.removesuffix('.yaml').replace('-', '_')}", example(manifest))
