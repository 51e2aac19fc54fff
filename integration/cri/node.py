"""A private containerd with egpu, on simulated cards unless it is said, and with images that no registry is asked for.

For critest, a kubelet and nerdctl alike.
"""

import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, f"{HERE}/../gpu")
from measure.containerd import SIMULATED, Containerd, egpu_config, write  # noqa: E402

CRI = """[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "egpu.test/pause:latest"
disable_apparmor = true
restrict_oom_score_adj = true
disable_hugetlb_controller = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{tools}"
conf_dir = "{work}/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "{handler}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{runc}"
"""
EGPU = """[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.egpu]
runtime_type = "io.containerd.egpu.v1"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.drop-in]
runtime_type = "io.containerd.runc.v2"
runtime_path = "{binaries}/containerd-shim-egpu-v1"
"""

KUBELET_CONFIG = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
cgroupRoot: {cgroup}
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix://{work}/containerd.sock
volumePluginDir: {work}/plugins
enforceNodeAllocatable: [pods]
syncFrequency: 1s
evictionHard: {{memory.available: 1Mi, nodefs.available: 1Mi, imagefs.available: 1Mi}}
localStorageCapacityIsolation: false
allowedUnsafeSysctls: []
"""
HANDLERS = ("runc", "egpu", "drop-in")
SIMULATED_CARDS = SIMULATED.format(model="Tesla V100-PCIE-32GB", memory="32768MiB", count=4)


def require(*programs):
    for program in programs:
        if not os.access(program, os.X_OK):
            sys.exit(f"{program} is not there: see README.md")


def cri_config(work, handler, tools, runc, binaries=None):
    """Writes the pods' network; returns the part of containerd's configuration that is for CRI.

    Without egpu's binaries it has no handlers of egpu.
    """
    ipam = {"type": "host-local", "subnet": "10.213.0.0/16", "dataDir": f"{work}/ipam",
            "routes": [{"dst": "0.0.0.0/0"}]}
    plugins = [{"type": "ptp", "ipam": ipam}]
    network = {"cniVersion": "0.4.0", "name": "egpu-cri", "plugins": plugins}
    os.makedirs(f"{work}/net.d")
    write(f"{work}/net.d/10-ptp.conflist", json.dumps(network))
    common = CRI.format(work=work, handler=handler, tools=tools, runc=runc)
    return common + EGPU.format(binaries=binaries) if binaries else common


class Node:
    """A containerd whose images hold busybox, tools.c, facts.sh and the programs that are given, or that has an archive's."""

    def __init__(self, work, binaries, containerd, cri="", settings=(), programs=(), driver=SIMULATED_CARDS, images=None):
        self.work = work
        write(f"{work}/egpu.toml", egpu_config(work, driver, *settings))
        disabled = () if cri else ("io.containerd.grpc.v1.cri",)
        self.containerd = Containerd(work, containerd, disabled, cri)
        self.images = images or self._make_images(programs)
        path = f"{binaries}:{containerd}:{os.environ['PATH']}"
        self.environment = dict(os.environ, EGPU_CONFIG=f"{work}/egpu.toml", PATH=path)

    def _make_images(self, programs):
        tools, archive = f"{self.work}/tools", f"{self.work}/images.tar"
        subprocess.run(["gcc", "-O1", "-static", "-o", tools, f"{HERE}/tools.c"], check=True)
        images = [sys.executable, f"{HERE}/images.py", f"{self.work}/images", shutil.which("busybox"), tools]
        subprocess.run([*images, archive, *programs], check=True)
        return archive

    def start(self, namespace="k8s.io"):
        self.containerd.start(self.environment)
        load = self.containerd.ctr(namespace, "images", "import", self.images)
        subprocess.run(load, stdout=subprocess.DEVNULL, check=True)

    def close(self):
        """Ends containerd. What a broken run has left mounted is named, not guessed at."""
        self.containerd.stop()
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            if f" {self.work}/" in file.read():
                print(f"mounts are left below {self.work}: look there", file=sys.stderr)
            else:
                shutil.rmtree(self.work)
