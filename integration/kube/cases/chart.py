"""The chart, from its image to its end: packaging/kubernetes/chart by helm."""

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

from api import until
from cluster import MANIFESTS, NODE, REPOSITORY, write
from node_case import PODS, NodeCase
from objects import PODS as OTHER_PODS, container, request

sys.path.insert(0, f"{REPOSITORY}/packaging")
import image  # noqa: E402

CHART = f"{MANIFESTS}/chart"
IMAGE = ["--set", "image.repository=localhost/egpu", "--set", "image.tag=chart"]
# The node's containerd has its tables by hand.
VALUES = [*IMAGE, "--set", "install.enabled=false"]
CERTIFICATE = "/api/v1/namespaces/egpu/secrets/egpu-webhook-certificate"
CONFIG, HANDLER = "/run/node/containerd.toml", '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.egpu]'
SOCKET = "/run/containerd/containerd.sock"
# There is no systemd: it waits for the case to restart containerd.
ASKED = "/run/node/restart"
SYSTEMCTL = f"""#!/bin/sh
[ "$1" = restart ] || exit 0
touch {ASKED}
while [ -e {ASKED} ]; do sleep 0.1; done
"""


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
        both = ["--set", "plugin.resources.requests.cpu=11m,webhook.enabled=true,scorer.enabled=true"]
        self.helm("upgrade", "egpu", CHART, *VALUES, *both)
        until("another to have taken its place", lambda: self.plugin_pod() not in (False, plugin), 90)
        self.running("after", request(memory="4Gi", compute=25))
        self.old_manifests_run()
        certificate = self.cluster.api.get(CERTIFICATE)["data"]
        self.helm("upgrade", "egpu", CHART, *VALUES, *both, "--set", "scorer.placement=spread")
        self.assertEqual(self.cluster.api.get(CERTIFICATE)["data"], certificate)
        self.helm("uninstall", "egpu")
        until("the chart's pods to be gone", lambda: not self.cluster.api.items(PODS), 90)
        for pod in ("before", "after"):
            self.assertIn("/ 4096MiB", self.inside(pod, "rm-client", "smi"), "it keeps its quota")
            self.assertIn(f'pod_namespace="default",pod="{pod}"', self.cluster.egpu("metrics"))
            self.assertEqual(self.restarts(pod), 0)

    def old_manifests_run(self):
        """By the webhook of the image. The scorer is ready once it has read the cluster."""
        until("the scorer to be ready", lambda: self.address_of("egpu-scorer"), 90)
        address = until("the webhook to be ready", lambda: self.address_of("egpu-webhook"), 90)
        service = self.cluster.api.get("/api/v1/namespaces/egpu/services/egpu-webhook")["spec"]["clusterIP"]
        self.service((service, 443), (address, 8443))
        self.cluster.kubectl("label", "namespace", "default", "egpu.io/webhook=enabled")
        self.addCleanup(self.cluster.kubectl, "label", "namespace", "default", "egpu.io/webhook-")
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hami"},
               "spec": {"terminationGracePeriodSeconds": 1, "containers": [container(resources={"limits": limits})]}}
        until("the API server to ask the webhook",
              lambda: self.cluster.api.create(f"{OTHER_PODS}?dryRun=All", pod)["spec"].get("resourceClaims"))
        self.cluster.api.create(OTHER_PODS, pod)
        self.cluster.wait_running("hami")
        self.assertIn("/ 3000MiB", self.inside("hami", "rm-client", "smi"))

    def address_of(self, name):
        """The address of a pod of this name that is ready."""
        statuses = [self.cluster.pod(pod, "egpu")["status"] for pod in self.pods_of(name)]
        ready = {"type": "Ready", "status": "True"}
        return next((status["podIP"] for status in statuses
                     if any(ready.items() <= one.items() for one in status.get("conditions", []))), None)

    def test_its_container_installs_egpu_on_the_node(self):
        """On a containerd that knows nothing of egpu."""
        containerd = self.cluster.part("containerd")
        with open(CONFIG, encoding="utf-8") as file:
            by_hand = file.read()
        before = by_hand.partition(HANDLER)[0]
        self.assertNotEqual(before, by_hand)
        self.addCleanup(containerd.restart)
        self.addCleanup(write, CONFIG, by_hand)
        write(CONFIG, before)
        containerd.restart()
        for program in ("egpu", "egpu-kubelet-plugin"):
            os.remove(f"/usr/local/bin/{program}")
        write("/usr/local/bin/systemctl", SYSTEMCTL)
        os.chmod("/usr/local/bin/systemctl", 0o755)
        # Where a node's containerd listens.
        os.symlink("/run/node/containerd.sock", SOCKET)
        self.addCleanup(os.remove, SOCKET)
        self.helm("install", "egpu", CHART, *IMAGE)
        until("the installer to ask for a restart", lambda: os.path.exists(ASKED), 90)
        containerd.restart()
        os.remove(ASKED)
        until("the node to be labelled", self.is_ready, 120)
        until("the cards to be published", lambda: len(self.cards()) == 4, 90)
        self.running("quarter", request(memory="4Gi", compute=25))
        self.assertIn("/ 4096MiB", self.inside("quarter", "rm-client", "smi"))
        uninstall = ["/usr/local/bin/egpu", "uninstall"]
        refused = subprocess.run(uninstall, capture_output=True, text=True, check=False)
        self.assertNotEqual(refused.returncode, 0, "a container uses it")
        self.cluster.delete_pod("quarter")
        self.helm("uninstall", "egpu")
        until("the chart's pods to be gone", lambda: not self.cluster.api.items(PODS), 90)
        done = subprocess.run(uninstall, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(CONFIG, encoding="utf-8") as file:
            self.assertEqual(file.read(), before)
        self.assertFalse(os.path.exists("/usr/local/bin/containerd-shim-egpu-v1"))

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
