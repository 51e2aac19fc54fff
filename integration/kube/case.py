"""What test cases have in common, and the printing of how they end."""

import time
import unittest


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
        container = {key: spec.pop(key) for key in list(spec) if key in of_container}
        container = {"name": "main", "image": "egpu.test/pod:1", **container}
        metadata = {"name": name, "annotations": spec.pop("annotations", {}), "labels": spec.pop("labels", {})}
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        made = self.cluster.api.create("/api/v1/namespaces/default/pods", body)
        if not keep:
            self.addCleanup(self.cluster.kubectl, "delete", "pod", name, "--ignore-not-found", "--grace-period=1")
        return made

    def logs(self, name, container="main"):
        return self.cluster.kubectl("logs", name, "-c", container)


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
