"""The cluster itself: it is real, it takes the API that egpu needs, its parts survive kill -9."""

from api import until
from case import KubeCase
from cluster import NODE

SLICE = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "probe"},
         "spec": {"driver": "probe", "nodeName": NODE, "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
                  "devices": [{"name": "gpu-0", "allowMultipleAllocations": True,
                               "capacity": {"memory": {"value": "8Gi", "requestPolicy": {"default": "8Gi", "validRange": {"min": "1"}}}}}]}}


class ControlPlane(KubeCase):
    def test_ready(self):
        versions = self.cluster.api.get("/version")
        self.assertEqual(versions["gitVersion"], "v1.37.2")
        node = self.cluster.api.get(f"/api/v1/nodes/{NODE}")
        self.assertEqual(node["status"]["nodeInfo"]["kubeletVersion"], "v1.37.2")
        self.assertTrue(node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2."))

    def test_consumable_capacity_is_kept(self):
        """No field is dropped, as a server without the gate drops it."""
        path = "/apis/resource.k8s.io/v1/resourceslices"
        made = self.cluster.api.create(path, SLICE)
        self.addCleanup(self.cluster.api.delete, f"{path}/probe")
        self.assertEqual(made["spec"]["devices"], SLICE["spec"]["devices"])

    def test_parts_survive_kill(self):
        for name in ("etcd", "apiserver", "controller-manager", "scheduler", "containerd", "kubelet"):
            with self.subTest(name):
                self.cluster.part(name).restart()
        until("the node to be ready again", self.cluster.node_is_ready)
        self.pod("after-kills", command=["/bin/true"])
        self.assertEqual(self.cluster.wait_ended("after-kills")["status"]["phase"], "Succeeded")
