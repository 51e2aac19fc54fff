"""Cases with egpu's programs where they are on a node, and pods that speak to the API server."""

import os
import shutil
import socket
import subprocess
import threading

from case import ClaimCase
from cluster import EGPU_CONFIG

SERVICE, API = ("10.96.0.1", 443), ("10.88.0.1", 6443)
PODS = "/api/v1/namespaces/egpu/pods"


class NodeCase(ClaimCase):
    def install(self):
        """Puts egpu where it is on a node, in this mount namespace alone."""
        subprocess.run(["mount", "--make-rshared", "/"], check=True)
        for folder in ("/etc", "/usr/local/bin"):
            over = f"/run/node/over/{self.id()}{folder}"
            for part in ("upper", "work"):
                os.makedirs(f"{over}/{part}")
            layers = f"lowerdir={folder},upperdir={over}/upper,workdir={over}/work"
            subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, folder], check=True)
            self.addCleanup(subprocess.run, ["umount", "--lazy", folder], check=True)
        os.mkdir("/etc/egpu")
        shutil.copy(EGPU_CONFIG, "/etc/egpu/config.toml")
        shutil.copy(self.cluster.plugin, "/usr/local/bin/egpu-kubelet-plugin")

    def service(self, service=SERVICE, endpoint=API):
        """Stands for kube-proxy: a Service's address, by default that at which pods find the API server."""
        address = f"{service[0]}/32"
        subprocess.run(["busybox", "ip", "addr", "add", address, "dev", "lo"], check=True)
        self.addCleanup(subprocess.run, ["busybox", "ip", "addr", "del", address, "dev", "lo"], check=True)
        listener = socket.create_server(service)
        self.addCleanup(listener.close)
        # A thread that waits in it would keep it open.
        self.addCleanup(listener.shutdown, socket.SHUT_RDWR)

        def accept():
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                server = socket.create_connection(endpoint)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=copy, args=ends, daemon=True).start()
        threading.Thread(target=accept, daemon=True).start()

    def plugin_pod(self):
        """The name of the one pod of the plugin that has registered with kubelet."""
        pods = self.pods_of("egpu-kubelet-plugin")
        return len(pods) == 1 and "registered with the kubelet" in self.log(pods[0]) and pods[0]

    def pods_of(self, name):
        """The names of the pods in egpu's namespace that are of this name and not about to go."""
        pods = [pod["metadata"] for pod in self.cluster.api.items(PODS)]
        return [pod["name"] for pod in pods
                if pod["labels"].get("app.kubernetes.io/name") == name and "deletionTimestamp" not in pod]

    def log(self, pod):
        return self.cluster.kubectl("logs", pod, "--namespace", "egpu", check=False)


def copy(source, target):
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        end.close()
