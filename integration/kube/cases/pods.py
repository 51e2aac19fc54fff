"""Pods without claims."""

from case import KubeCase


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
