"""kill -9 of each party at each step of a claimed pod: what runs goes on, what was begun is ended, nothing is left."""

import os
import shutil
import signal

from api import until
from case import ClaimCase
from cluster import CDI_FOLDER
from objects import claims_of_container, container, request, shell

PATIENCE_S = 120  # kubelet's pauses between attempts grow
SHIM = b"containerd-shim-egpu-v1"
STUBBORN = shell("trap 'sleep 3; exit' TERM; while :; do sleep 0.1; done")
QUARTER = request(memory="8Gi", compute=25)


def shims():
    """egpu's shims: those of its processes whose parent is none of them."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if file.read().partition(b"\0")[0].endswith(SHIM):
                    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
                        found[int(pid)] = int(stat.read().rpartition(")")[2].split()[1])
        except OSError:
            pass
    return [pid for pid, parent in found.items() if parent not in found]


class OfThePods(ClaimCase):
    """Parts of Kubernetes and of the node."""

    def prepared(self, name, template):
        """Makes a pod whose claim is prepared, and which does not use it yet: its first container waits for a file."""
        wait = container("wait", command=shell("until [ -e /go ]; do sleep 0.1; done"))
        main = container(resources=claims_of_container(), command=STUBBORN)
        self.claiming(name, of=template, initContainers=[wait], containers=[main])
        until("the claim to be prepared", lambda: self.is_waiting(name))

    def is_waiting(self, name):
        statuses = self.cluster.pod(name)["status"].get("initContainerStatuses", [])
        return statuses and "running" in statuses[0]["state"]

    def survive(self, name):
        part = self.cluster.part(name)
        self.template("quarter", QUARTER)
        with self.subTest("running, prepared and deleting"):
            for pod in ("runs", "leaves"):
                self.claiming(pod, of="quarter", command=STUBBORN)
            for pod in ("runs", "leaves"):
                self.cluster.wait_running(pod)
            self.prepared("waits", "quarter")
            before = self.cluster.pod("runs")["status"]["containerStatuses"][0]["containerID"]
            self.cluster.delete_pod("leaves", grace_s=10, wait=False)
            part.kill()
            part.start()
            self.cluster.wait_gone("leaves", seconds=PATIENCE_S)
            until("the file to be made", lambda: self.inside("waits", "touch", "/go", of="wait", check=False) == "")
            self.cluster.wait_running("waits", seconds=PATIENCE_S)
            until("two grants", lambda: len(self.cluster.grants()) == 2)
            status = self.cluster.pod("runs")["status"]["containerStatuses"][0]
            self.assertEqual((status["containerID"], status["restartCount"]), (before, 0))
            for pod in ("runs", "waits"):
                self.assertIn("/ 8192MiB", self.inside(pod, "rm-client", "smi"))
        with self.subTest("before it is prepared"):
            part.kill()
            if name in ("apiserver", "etcd"):
                part.start()
            self.claiming("comes", of="quarter")
            if not part.is_running():
                part.start()
            self.cluster.wait_running("comes", seconds=PATIENCE_S)
            self.assertEqual(len(self.cluster.grants()), 3)


for name in ("plugin", "kubelet", "containerd", "scheduler", "apiserver", "controller-manager", "etcd"):
    setattr(OfThePods, f"test_{name.replace('-', '_')}", lambda self, name=name: self.survive(name))


class OfTheContainers(ClaimCase):
    """egpu's processes beside a container, and what a container does itself."""

    def again(self, pod, times=1):
        until(f"{pod} to run again", lambda: self.restarts(pod) >= times and self.is_up(pod), PATIENCE_S)
        self.assertIn("/ 8192MiB", self.inside(pod, "rm-client", "smi"))
        self.assertEqual(len(self.cluster.grants()), 1)

    def is_up(self, pod):
        status = self.cluster.pod(pod)["status"]["containerStatuses"][0]
        return "running" in status["state"]

    def kill_shim(self):
        [pid] = shims()
        os.kill(pid, signal.SIGKILL)

    def test_mediator(self):
        self.running("mediated", QUARTER, restartPolicy="Always")
        os.kill(self.grants("mediated")["gpu"]["mediator"], signal.SIGKILL)
        self.again("mediated")

    def test_shim_while_it_runs(self):
        self.running("mediated", QUARTER, restartPolicy="Always")
        self.kill_shim()
        self.again("mediated")

    def test_shim_while_the_pod_leaves(self):
        self.running("leaves", QUARTER, command=STUBBORN)
        self.cluster.delete_pod("leaves", grace_s=10, wait=False)
        self.kill_shim()
        self.cluster.wait_gone("leaves")

    def test_all_at_once(self):
        """As if the node's programs were gone at a moment, and came back."""
        self.running("lonely", QUARTER, restartPolicy="Always")
        for name in ("plugin", "kubelet", "containerd"):
            self.cluster.part(name).kill()
        self.kill_shim()
        for name in ("containerd", "kubelet", "plugin"):
            self.cluster.part(name).start()
        until("it to be up", lambda: self.is_up("lonely"), PATIENCE_S)
        until("the grant to be used", lambda: self.grants("lonely")["gpu"]["claim"]["containers"], PATIENCE_S)

    def test_files_lost_while_a_pod_runs(self):
        """Without its file, a container that restarts would never again be created."""
        self.running("restarts", QUARTER, restartPolicy="Always", command=shell("touch /up; sleep infinity"))
        for name in os.listdir(CDI_FOLDER):
            os.remove(f"{CDI_FOLDER}/{name}")
        until("the file to be back", lambda: os.listdir(CDI_FOLDER), 5)
        os.kill(self.init("restarts"), signal.SIGKILL)
        self.again("restarts")
        shutil.rmtree(CDI_FOLDER)
        until("the directory to be back", lambda: os.path.isdir(CDI_FOLDER) and os.listdir(CDI_FOLDER), 5)
        os.kill(self.init("restarts"), signal.SIGKILL)
        self.again("restarts", times=2)

    def test_files_lost_while_the_plugin_is_dead(self):
        self.running("restarts", QUARTER, restartPolicy="Always")
        self.cluster.part("plugin").kill()
        shutil.rmtree(CDI_FOLDER)
        os.makedirs(CDI_FOLDER)
        self.cluster.part("plugin").start()
        self.assertEqual(len(os.listdir(CDI_FOLDER)), 1)
        os.kill(self.init("restarts"), signal.SIGKILL)
        self.again("restarts")

    def init(self, pod):
        return self.grants(pod)["gpu"]["claim"]["containers"][0]["pid"]

    def test_crash_loop(self):
        self.claiming("crashes", QUARTER, restartPolicy="Always", command=shell("rm-client alloc 7G && exit 1"))
        until("three restarts", lambda: self.restarts("crashes") >= 3, PATIENCE_S)
        until("the pause to be told", lambda: "CrashLoopBackOff" in self.cluster.kubectl("get", "pod", "crashes"))
        self.assertEqual(self.grants("crashes")["gpu"]["claim"]["containers"], [], "it is prepared, and waits")
        self.cluster.delete_pod("crashes")
