"""The plugin as packaging/kubernetes runs it: a pod that changes to the node's root."""

import os
import shutil
import socket
import subprocess
import threading

from api import until
from case import ClaimCase
from cluster import EGPU_CONFIG, NODE
from objects import request

SERVICE, API = ("10.96.0.1", 443), ("10.88.0.1", 6443)
PODS = "/api/v1/namespaces/egpu/pods"


class DaemonSet(ClaimCase):
    def setUp(self):
        super().setUp()
        self.cluster.part("plugin").stop()
        self.addCleanup(self.cluster.part("plugin").start)
        self.install()
        self.service()
        self.cluster.kubectl("label", "node", NODE, "egpu.io/ready=true")
        self.addCleanup(until, "the plugin's pod to be gone", lambda: not self.cluster.api.items(PODS))
        self.addCleanup(self.cluster.kubectl, "label", "node", NODE, "egpu.io/ready-")

    def install(self):
        """Puts egpu where it is on a node, in this mount namespace alone."""
        subprocess.run(["mount", "--make-rshared", "/"], check=True)
        for folder in ("/etc", "/usr/local/bin"):
            over = f"/run/node/over{folder}"
            for part in ("upper", "work"):
                os.makedirs(f"{over}/{part}")
            layers = f"lowerdir={folder},upperdir={over}/upper,workdir={over}/work"
            subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, folder], check=True)
            self.addCleanup(subprocess.run, ["umount", "--lazy", folder], check=True)
        os.mkdir("/etc/egpu")
        shutil.copy(EGPU_CONFIG, "/etc/egpu/config.toml")
        shutil.copy(self.cluster.plugin, "/usr/local/bin/egpu-kubelet-plugin")

    def service(self):
        """Stands for kube-proxy: the address at which pods find the API server."""
        subprocess.run(["busybox", "ip", "addr", "add", f"{SERVICE[0]}/32", "dev", "lo"], check=True)
        listener = socket.create_server(SERVICE)
        self.addCleanup(listener.close)

        def accept():
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                server = socket.create_connection(API)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=copy, args=ends, daemon=True).start()
        threading.Thread(target=accept, daemon=True).start()

    def plugin_pod(self):
        """The name of the one pod of the plugin that has registered with kubelet."""
        pods = [pod["metadata"]["name"] for pod in self.cluster.api.items(PODS) if "deletionTimestamp" not in pod["metadata"]]
        return len(pods) == 1 and "registered with the kubelet" in self.log(pods[0]) and pods[0]

    def log(self, pod):
        return self.cluster.kubectl("logs", pod, "--namespace", "egpu", check=False)

    def test_claims_and_a_rolling_update(self):
        first = until("the plugin's pod to be registered", self.plugin_pod)
        until("the cards to be published", lambda: len(self.cards()) == 4)
        self.running("before", request(memory="4Gi", compute=25))
        self.cluster.kubectl("rollout", "restart", "daemonset/egpu-kubelet-plugin", "--namespace", "egpu")
        until("another to have taken its place", lambda: self.plugin_pod() not in (False, first), 90)
        self.running("after", request(memory="4Gi", compute=25))
        for pod in ("before", "after"):
            self.assertIn("/ 4096MiB", self.inside(pod, "rm-client", "smi"))
        self.cluster.delete_pod("before")
        until("its grant to be gone", lambda: len(self.cluster.grants()) == 1)
        self.cluster.delete_pod("after")


def copy(source, target):
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        end.close()
