"""What test cases have in common, and the printing of how they end."""

import json
import time
import unittest

from api import ApiError, until
from cluster import EGPU_CONFIG, NODE, write
from objects import CLAIMS, PODS, TEMPLATES, amount, claims_of_container, container, template


class KubeCase(unittest.TestCase):
    """A case on the run's cluster."""

    cluster = None

    def needs_plugin(self):
        if not self.cluster.plugin:
            self.skipTest("no egpu-kubelet-plugin was given")

    def pod(self, name, *, keep=False, **spec):
        """Makes a pod with one container `main`; it is deleted after the test.

        What a container has (image, command, env, resources, ...) is given to it, the rest to the pod.
        """
        of_container = {"image", "command", "env", "resources", "securityContext"}
        fields = {key: spec.pop(key) for key in list(spec) if key in of_container}
        metadata = {"name": name, "annotations": spec.pop("annotations", {}), "labels": spec.pop("labels", {})}
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container(**fields)], **spec}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        made = self.cluster.api.create(PODS, body)
        if not keep:
            self.addCleanup(self.cluster.kubectl, "delete", "pod", name, "--ignore-not-found", "--grace-period=1")
        return made

    def logs(self, name, container="main"):
        return self.cluster.kubectl("logs", name, "-c", container)


class ClaimCase(KubeCase):
    """A case on an empty node whose plugin publishes four cards; at its end nothing of it may be left there."""

    def setUp(self):
        self.needs_plugin()
        self.addCleanup(self.nothing_is_left)
        until("the cards to be published", lambda: len(self.cards()) == 4)

    def nothing_is_left(self):
        self.assertEqual(self.cluster.empty(), [])

    # --- Making ---

    def template(self, name, *requests, **devices):
        return self.cluster.api.create(TEMPLATES, template(name, *requests, **devices))

    def claiming(self, name, *requests, of=None, **spec):
        """Makes a pod with a claim of these requests (or of the template `of`), which its container uses."""
        if requests:
            self.template(name, *requests)
        of_pod = {"runtimeClassName": "egpu", "resources": claims_of_container(), **spec}
        claims = [{"name": "gpu", "resourceClaimTemplateName": of or name}]
        return self.pod(name, keep=True, **{"resourceClaims": claims, **of_pod})

    def running(self, name, *requests, **spec):
        """Makes such a pod, and returns it once it runs."""
        self.claiming(name, *requests, **spec)
        return self.cluster.wait_running(name)

    def egpu_settings(self, *lines):
        """Adds lines to egpu's configuration until the end of the test."""
        with open(EGPU_CONFIG, encoding="utf-8") as file:
            before = file.read()
        self.addCleanup(write, EGPU_CONFIG, before)
        write(EGPU_CONFIG, "\n".join([before, *lines, ""]))

    # --- Asking ---

    def cards(self):
        """The published devices, by name, in their order."""
        devices = [device for one in self.cluster.slices() for device in one["spec"].get("devices", [])]
        return {device["name"]: device for device in devices}

    def capacity(self, card, name="memory"):
        return amount(self.cards()[card]["capacity"][name]["value"])

    def pods(self, *phases):
        pods = self.cluster.api.items(PODS)
        return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] in phases]

    def claim_of(self, pod):
        """The pod's claim object, which a template made for it."""
        statuses = self.cluster.pod(pod)["status"].get("resourceClaimStatuses", [])
        return self.cluster.api.get(f"{CLAIMS}/{statuses[0]['resourceClaimName']}")

    def results_of(self, pod):
        """What was allocated for the pod's claim, by request."""
        results = self.claim_of(pod)["status"]["allocation"]["devices"]["results"]
        return {result["request"]: result for result in results}

    def is_held_back(self, *pods, seconds=3):
        """Checks that the scheduler has refused the pods, and goes on refusing them."""
        for name in pods:
            until(f"{name} to be found unschedulable", lambda name=name: self.reason(name) == "Unschedulable")
        time.sleep(seconds)
        for name in pods:
            self.assertEqual(self.cluster.pod(name)["status"]["phase"], "Pending", name)
            self.assertIsNone(self.cluster.pod(name)["spec"].get("nodeName"), f"{name} was bound")

    def reason(self, pod):
        """Why the pod is not scheduled; None: it is, or nobody has looked."""
        conditions = self.cluster.pod(pod)["status"].get("conditions", [])
        return next((one.get("reason") for one in conditions if one["type"] == "PodScheduled"), None)

    def grants(self, pod=None):
        """The node's grants (of this pod's claim), by request."""
        uid = pod and self.claim_of(pod)["metadata"]["uid"]
        grants = [one for one in self.cluster.grants() if one.get("claim")]
        return {one["claim"]["request"]: one for one in grants if uid in (None, one["claim"]["uid"])}

    def inside(self, pod, *command, of="main", check=True):
        """Returns what a command prints in the pod's container."""
        return self.cluster.kubectl("exec", pod, "-c", of, "--", *command, check=check)

    def restarts(self, pod, of="main"):
        statuses = self.cluster.pod(pod)["status"].get("containerStatuses", [])
        return next((one["restartCount"] for one in statuses if one["name"] == of), 0)

    def is_gone(self, path):
        try:
            self.cluster.api.get(path)
        except ApiError as error:
            return error.code == 404
        return False

    def node_object(self):
        return self.cluster.api.get(f"/api/v1/nodes/{NODE}")


class TimedResult(unittest.TestResult):
    """A line for each case: how it ended, and its time."""

    def startTest(self, test):
        super().startTest(test)
        self.began, self.outcome = time.monotonic(), "ok"

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome = f"skipped: {reason}"

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.outcome = f"FAILED\n{self.failures[-1][1]}"

    def addError(self, test, err):
        super().addError(test, err)
        self.outcome = f"FAILED\n{self.errors[-1][1]}"

    def stopTest(self, test):
        super().stopTest(test)
        print(f"{name(test):60} {time.monotonic() - self.began:6.1f} s  {self.outcome}", flush=True)


def name(test):
    """Returns `control_plane.ControlPlane.test_ready` without what every name has."""
    return test.id().removeprefix("cases.").replace(".test_", ".")
