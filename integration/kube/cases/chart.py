"""The chart, from its image to its end: packaging/kubernetes/chart by helm."""

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

from api import until
from cluster import MANIFESTS, NODE, REPOSITORY
from node_case import PODS, NodeCase
from objects import request

sys.path.insert(0, f"{REPOSITORY}/packaging")
import image  # noqa: E402

CHART = f"{MANIFESTS}/chart"
# The node's containerd has its tables by hand, and there is no systemd that could restart it.
VALUES = ["--set", "install.enabled=false", "--set", "image.repository=localhost/egpu", "--set", "image.tag=chart"]
PLUGIN = "daemonset/egpu-kubelet-plugin"


class Chart(NodeCase):
    def setUp(self):
        found = glob.glob(f"{os.path.dirname(os.path.dirname(self.cluster.programs))}/go-tools/helm-*")
        if not found:
            self.skipTest("no helm: scripts/go-tool.sh helm builds it")
        super().setUp()
        self.program = found[0]
        self.addCleanup(self.back_to_manifests)
        self.cluster.part("plugin").stop()
        self.install()
        shutil.copy(f"{self.cluster.binaries}/egpu", "/usr/local/bin/egpu")
        self.service()
        self.import_image()
        for manifests in (MANIFESTS, f"{REPOSITORY}/examples/kubernetes/00-runtime-class.yaml"):
            self.cluster.kubectl("delete", "--ignore-not-found", "--wait", "-f", manifests)
        self.cluster.kubectl("create", "-f", f"{MANIFESTS}/00-namespace.yaml")

    def back_to_manifests(self):
        """The cluster as other cases have it."""
        self.helm("uninstall", "egpu", "--ignore-not-found")
        self.cluster.kubectl("label", "node", NODE, "egpu.io/ready-")
        until("the chart's pods to be gone", lambda: not self.cluster.api.items(PODS), 90)
        self.cluster.kubectl("apply", "-f", f"{REPOSITORY}/examples/kubernetes/00-runtime-class.yaml")
        self.cluster.start_plugin()

    def import_image(self):
        """Makes the image of the programs under test, and has the node's containerd take it."""
        archive, machine = f"{self.cluster.folder}/egpu.oci.tar", os.uname().machine
        files = image.root(Path(self.cluster.binaries), Path(f"{REPOSITORY}/docs/design"), Path("/"), machine)
        layer = image.archive(files, ["host"], 0)
        # Debug builds are large.
        layout = image.layout(layer, image.ARCHITECTURES[machine], "chart", "", 0, compression=1)
        self.addCleanup(os.remove, archive)
        Path(archive).write_bytes(image.archive(layout, [], 0))
        load = self.cluster.node.containerd.ctr("k8s.io", "images", "import", archive)
        subprocess.run(load, stdout=subprocess.DEVNULL, check=True)

    def helm(self, *arguments):
        home = f"{self.cluster.folder}/helm"
        environment = {**os.environ, "HELM_CACHE_HOME": home, "HELM_CONFIG_HOME": home, "HELM_DATA_HOME": home,
                       "KUBECONFIG": self.cluster.kubeconfigs["admin"]}
        done = subprocess.run([self.program, *arguments, "--namespace", "egpu"], env=environment, capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def is_ready(self):
        return self.node_object()["metadata"]["labels"].get("egpu.io/ready")

    def test_install_upgrade_and_uninstall_under_a_running_pod(self):
        rendered = self.helm("template", "egpu", CHART, *VALUES, "--set", "metrics.dashboard=true,webhook.enabled=true")
        self.cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=rendered)
        self.is_labelled_after_its_container_ran()
        plugin = until("the plugin's pod to be registered", self.plugin_pod, 90)
        until("the cards to be published", lambda: len(self.cards()) == 4)
        self.running("before", request(memory="4Gi", compute=25))
        self.helm("upgrade", "egpu", CHART, *VALUES, "--set", "plugin.resources.requests.cpu=11m")
        until("another to have taken its place", lambda: self.plugin_pod() not in (False, plugin), 90)
        self.running("after", request(memory="4Gi", compute=25))
        self.helm("uninstall", "egpu")
        until("the chart's pods to be gone", lambda: not self.cluster.api.items(PODS), 90)
        for pod in ("before", "after"):
            self.assertIn("/ 4096MiB", self.inside(pod, "rm-client", "smi"), "it keeps its quota")
            self.assertIn(f'pod_namespace="default",pod="{pod}"', self.cluster.egpu("metrics"))
            self.assertEqual(self.restarts(pod), 0)

    def is_labelled_after_its_container_ran(self):
        """First with an image that no node has, so that no container can run."""
        self.helm("install", "egpu", CHART, *VALUES, "--set", "image.tag=absent")
        until("the check's pod to lack its image", lambda: "ErrImage" in self.waits_for("egpu-node-check")
              or "ImagePull" in self.waits_for("egpu-node-check"), 90)
        self.assertIsNone(self.is_ready())
        self.assertEqual(self.pods_of("egpu-kubelet-plugin"), [])
        self.helm("upgrade", "egpu", CHART, *VALUES)
        until("the node to be labelled", self.is_ready, 90)
        [pod] = self.pods_of("egpu-node-check")
        [look] = self.cluster.pod(pod, "egpu")["status"]["initContainerStatuses"]
        self.assertEqual(look["state"]["terminated"]["exitCode"], 0)

    def waits_for(self, name):
        """What the first container of the pod of this name waits for."""
        statuses = [self.cluster.pod(pod, "egpu")["status"].get("initContainerStatuses", []) for pod in self.pods_of(name)]
        return next((one["state"].get("waiting", {}).get("reason", "") for many in statuses for one in many), "")
