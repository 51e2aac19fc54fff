"""How claimed pods end: jobs, force deletion, the plugin's death."""

import os
import time

from api import ApiError, until
from case import ClaimCase
from cluster import CDI_FOLDER
from objects import GIB, JOBS, SLEEP, claims_of_container, container, request, shell


class Ends(ClaimCase):
    def job(self, name, template, command, backoff):
        pod = {"restartPolicy": "Never", "runtimeClassName": "egpu", "terminationGracePeriodSeconds": 1,
               "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
               "containers": [container(command=command, resources=claims_of_container())]}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
                "spec": {"backoffLimit": backoff, "template": {"spec": pod}}}
        self.cluster.api.create(JOBS, body)

    def job_ended(self, name, kind):
        def ended():
            conditions = self.cluster.api.get(f"{JOBS}/{name}")["status"].get("conditions", [])
            return any(one["type"] == kind and one["status"] == "True" for one in conditions)
        until(f"job {name} to be {kind}", ended, 180)

    def test_jobs_give_back_at_their_end(self):
        """Pods that have ended hold nothing, although they are there still."""
        self.template("most", request(memory=self.capacity("gpu-0"), compute=100, on=0))
        self.job("fails", "most", shell("rm-client alloc 1G; exit 3"), 2)
        self.job_ended("fails", "Failed")
        self.assertEqual(len(self.pods("Failed")), 3)
        until("nothing to be granted", lambda: not self.cluster.grants())
        self.job("succeeds", "most", shell("rm-client alloc 1G"), 0)
        self.job_ended("succeeds", "Complete")
        until("nothing to be granted", lambda: not self.cluster.grants() and not os.listdir(CDI_FOLDER))

    def test_force_deletion_while_the_container_runs(self):
        """The API server frees the claim at once; the next pod has the room once the node has it."""
        whole = request(memory=self.capacity("gpu-0"), compute=100, on=0)
        self.template("whole", whole)
        stubborn = shell("trap '' TERM; while :; do sleep 0.1; done")
        self.claiming("first", of="whole", command=stubborn, terminationGracePeriodSeconds=5)
        self.cluster.wait_running("first")
        self.claiming("second", of="whole")
        self.is_held_back("second", seconds=1)
        self.cluster.kubectl("delete", "pod", "first", "--grace-period=0", "--force", "--wait=false")
        most, end = 0, time.monotonic() + 120
        while self.cluster.pod("second")["status"]["phase"] != "Running":
            granted = sum(card["memory_limit_bytes"] for grant in self.cluster.grants() for card in grant["cards"])
            most = max(most, granted)
            self.assertLess(time.monotonic(), end, self.cluster.kubectl("describe", "pod", "second"))
            time.sleep(0.2)
        self.assertLessEqual(most, self.capacity("gpu-0"))
        self.assertEqual(len(self.cluster.grants()), 1)
        self.assertEqual(list(self.grants("second")), ["gpu"])

    def test_the_plugin_is_dead(self):
        self.running("claimed", request(memory="4Gi", compute=20), restartPolicy="Always", command=SLEEP)
        self.cluster.part("plugin").kill()
        self.assertIn("out of memory", self.inside("claimed", *shell("rm-client alloc 5G; true")))
        self.assertIn("/ 4096MiB", self.inside("claimed", "rm-client", "smi"))
        self.pod("unclaimed", keep=True, runtimeClassName="egpu", annotations={"egpu.io/memory": "2GiB"})
        self.cluster.wait_running("unclaimed")
        self.assertIn("/ 2048MiB", self.inside("unclaimed", "rm-client", "smi"))
        # A claimed container restarts on its own, too.
        pid = self.grants("claimed")["gpu"]["claim"]["containers"][0]["pid"]
        os.kill(pid, 9)
        until("it to run again", lambda: self.restarts("claimed") == 1)
        self.cluster.wait_running("claimed")
        self.assertIn("/ 4096MiB", self.inside("claimed", "rm-client", "smi"))
        # kubelet takes the cards out of the offer; a claimed pod's end waits for the plugin.
        until("the slices to be gone", lambda: not self.cluster.slices(), 60)
        self.cluster.delete_pod("claimed", wait=False)
        time.sleep(5)
        self.assertEqual(self.cluster.pod("claimed")["metadata"]["name"], "claimed")
        self.claiming("late", request(memory="1Gi"))
        self.is_held_back("late", seconds=1)
        self.cluster.part("plugin").start()
        self.cluster.wait_gone("claimed", seconds=60)
        self.cluster.wait_running("late")
