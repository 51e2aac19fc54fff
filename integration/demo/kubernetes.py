#!/usr/bin/env python3
"""Shares of cards in Kubernetes, from nothing to pods that have them, told step by step.

A control plane and a node with four simulated cards are started in namespaces of their own, and
taken away again. Every statement that is printed is checked: the exit status is 0 only if what was
to happen did happen, and nothing was left behind. As root.

usage: kubernetes.py BINARIES TARGET RM_CLIENT
"""

import json
import os
import shlex
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, f"{HERE}/../kube")
from api import until  # noqa: E402
from cluster import EXAMPLES, Cluster  # noqa: E402
from host import in_namespaces  # noqa: E402
from objects import PODS  # noqa: E402
from run import parser  # noqa: E402

DEPLOYMENT = f"{EXAMPLES}/claims-deployment.yaml"


class Demo:
    def __init__(self, cluster):
        self.cluster = cluster

    def run(self):
        self.offer()
        pod = self.shares()
        self.quota(pod)
        self.full()
        self.plugin_dies(pod)
        self.end()

    # --- Steps ---

    def offer(self):
        say("The node's plugin publishes its cards; the scheduler knows what of each is free.")
        self.kubectl("get", "resourceslices")
        table = self.kubectl_egpu("cards")
        check(table.count("Tesla V100") == 4, "four cards are there")

    def shares(self):
        say("Four replicas ask for a quarter of a card each: a claim of 8 GiB and 25 % of the time.")
        self.kubectl("apply", "-f", DEPLOYMENT, shown=f"examples/kubernetes/{os.path.basename(DEPLOYMENT)}")
        until("four pods to run", lambda: len(self.pods("Running")) == 4)
        self.kubectl("get", "pods,resourceclaims")
        pods = self.pods("Running")
        grants = json.loads(self.cluster.egpu("ps", "--output", "json"))
        check(len({grant["cards"][0]["uuid"] for grant in grants}) == 1, "all four are on one card")
        say("In each of them the card has 8 GiB:")
        check("/ 8192MiB" in self.kubectl("exec", pods[0], "--", "nvidia-smi"), "nvidia-smi shows the share")
        say("And so does the cluster see it, and the node:")
        self.kubectl_egpu("cards")
        show("egpu ps")
        printed(self.cluster.egpu("ps"))
        return pods[0]

    def quota(self, pod):
        say("A program that wants more than its share is told that the card is full:")
        told = self.kubectl("exec", pod, "--", "sh", "-c", "rm-client alloc 9G; true")
        check("out of memory" in told, "9 GiB are refused")

    def full(self):
        say("Seventeen quarters do not fit on four cards. Sixteen run; the last is not placed, and one can ask why:")
        self.kubectl("scale", "deployment", "claim-deployment", "--replicas=17")
        until("sixteen pods to run", lambda: len(self.pods("Running")) == 16, 180)
        until("the last to wait", lambda: len(self.pods("Pending")) == 1)
        why = self.kubectl_egpu("why", self.pods("Pending")[0])
        check("lacks" in why, "the cards' lack is named")
        self.kubectl("scale", "deployment", "claim-deployment", "--replicas=4")
        until("four pods to be left", lambda: len(self.pods("Running", "Pending")) == 4, 120)
        until("the node to have what they gave back", lambda: len(self.cluster.grants()) == 4)

    def plugin_dies(self, pod):
        pod = pod if pod in self.pods("Running") else self.pods("Running")[0]
        say("The plugin is killed. Nothing changes for those that run: their mediators hold the quotas.")
        show("kill -9 PID_OF_THE_PLUGIN")
        self.cluster.part("plugin").kill()
        told = self.kubectl("exec", pod, "--", "sh", "-c", "rm-client alloc 9G; true")
        check("out of memory" in told, "the limit holds without the plugin")
        self.cluster.part("plugin").start()

    def end(self):
        say("The deployment goes, and the node has everything back.")
        self.kubectl("delete", "-f", DEPLOYMENT, shown=f"examples/kubernetes/{os.path.basename(DEPLOYMENT)}")
        until("the node to be empty", lambda: not self.cluster.leftovers())
        show("egpu ps")
        printed(self.cluster.egpu("ps"))
        check(not self.cluster.grants(), "nothing is granted")

    # --- Commands ---

    def kubectl(self, *arguments, shown=None):
        """Prints the command as a user would type it, and what it says."""
        show("kubectl " + shlex.join(shown if argument == DEPLOYMENT else argument for argument in arguments))
        return printed(self.cluster.kubectl(*arguments))

    def kubectl_egpu(self, *arguments):
        show("kubectl egpu " + " ".join(arguments))
        return printed(self.cluster.kubectl_egpu(*arguments)[1])

    def pods(self, *phases):
        """Names of the pods in these phases that nobody has deleted."""
        pods = [pod for pod in self.cluster.api.items(PODS) if "deletionTimestamp" not in pod["metadata"]]
        return [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") in phases]


def say(text):
    print(f"\n\033[1m{text}\033[0m", flush=True)


def show(command):
    print(f"$ {command}", flush=True)


def printed(text):
    print(text, end="" if text.endswith("\n") else "\n", flush=True)
    return text


def check(is_so, what):
    if not is_so:
        raise SystemExit(f"demo: it should have been so that {what}")


def main():
    options = parser(__doc__).parse_args()
    folder, began = in_namespaces(), time.monotonic()
    say("A control plane (etcd, API server, scheduler, controllers) and a node start: containerd, kubelet, egpu.")
    with Cluster(options.binaries, options.target, options.rm_client, folder, options.runtime, plugin=options.plugin) as cluster:
        check(cluster.plugin, "egpu-kubelet-plugin is among the binaries: make build-kubernetes")
        Demo(cluster).run()
        say(f"The cluster is taken away. It took {time.monotonic() - began:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
