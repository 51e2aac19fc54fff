#!/usr/bin/env python3
"""Runs nerdctl --gpus with egpu, on a private containerd and simulated cards.

With the CDI specification of examples/nerdctl, and with one of the kind that nvidia-ctk writes.

usage: nerdctl.py DIRECTORY_OF_EGPU_BINARIES CRI_TOOLS DIRECTORY_OF_CONTAINERD     (as root)
"""

import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tempfile

from node import HERE, Node, require, write

GIB_ENV = ["--env", "EGPU_MEMORY=1GiB"]
# (name, "CARDS MEMORY_OF_THE_FIRST" or a pattern of the refusal, arguments)
WITH_EXAMPLE = [
    ("all", "0,1,2,3 whole", ["--gpus", "all"]),
    ("two", "0,1 whole", ["--gpus", "2"]),
    ("named", "0,2 whole", ["--gpus", '"device=0,2"']),
    ("a share of one", "3 1024MiB", ["--gpus", "device=3", *GIB_ENV]),
    ("a share without capabilities", "3 1024MiB", ["--gpus", "device=3", "--cap-drop", "ALL", *GIB_ENV]),
    ("a share of all", "0,1,2,3 1024MiB", ["--gpus", "all", *GIB_ENV, "--env", "EGPU_COMPUTE=25%"]),
    ("a device", "1 whole", ["--device", "nvidia.com/gpu=1"]),
    ("a card that is not there", "refused:*", ["--gpus", "device=9"]),
    ("egpu chooses", "0,1 2048MiB", ["--env", "EGPU_CARDS=2", "--env", "EGPU_MEMORY=2GiB"]),
]
WITH_NVIDIA_CTK = [
    ("all", "0,1,2,3 whole", ["--gpus", "all"]),
    ("named", "0,2 whole", ["--gpus", '"device=0,2"']),
    ("a share", "0,2 1024MiB", ["--gpus", '"device=0,2"', *GIB_ENV]),
]


def device_node(name, minor):
    return {"path": f"/dev/{name}", "type": "c", "major": 195, "minor": minor, "permissions": "rwm"}


def nvidia_ctk_specification():
    """Returns a specification as `nvidia-ctk cdi generate` writes it."""
    nodes = [device_node(f"nvidia{minor}", minor) for minor in range(4)]
    devices = [*((str(minor), [one]) for minor, one in enumerate(nodes)), ("all", nodes)]
    hook = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook",
            "args": ["nvidia-cdi-hook", "update-ldcache"]}
    edits = {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "hooks": [hook],
             "deviceNodes": [device_node("nvidiactl", 255)]}
    return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "containerEdits": edits, "devices": [
        {"name": name, "containerEdits": {"deviceNodes": of}} for name, of in devices]}


class Nerdctl:
    def __init__(self, node, binaries, tools):
        self.node, self.egpu = node, f"{binaries}/egpu"
        self.command = [f"{tools}/nerdctl", "--address", node.containerd.socket, "--data-root",
                        f"{node.work}/nerdctl", "--cgroup-manager", "cgroupfs", "--cdi-spec-dirs",
                        f"{node.work}/cdi"]
        self.environment = dict(node.environment, PATH=f"{tools}:{node.environment['PATH']}")

    def run(self, *command):
        return subprocess.run([*self.command, *command], env=self.environment, check=False,
                              capture_output=True, text=True)

    def outcome(self, arguments):
        """Runs a container; returns which cards it has, and its limit of memory on the first."""
        runtime = ["--net", "none", "--runtime", "io.containerd.egpu.v1"]
        done = self.run("run", "--detach", *runtime, *arguments, "egpu.test/pause:latest")
        if done.returncode:
            return f"refused: {(done.stderr.splitlines() or [''])[-1]}"
        container = done.stdout.strip()
        inspect = [self.egpu, "inspect", "--output", "json", container]
        said = subprocess.run(inspect, env=self.environment, check=True, stdout=subprocess.PIPE)
        self.run("rm", "--force", container)
        cards = json.loads(said.stdout)["cards"]
        memory = "whole" if cards[0]["exclusive"] else f"{cards[0]['memory'] >> 20}MiB"
        return f"{','.join(str(card['index']) for card in cards)} {memory}"

    def check(self, name, expected, arguments):
        found = self.outcome(arguments)
        if fnmatch.fnmatchcase(found, expected):
            print(f"ok: {name}: {found}", flush=True)
            return 0
        print(f"FAILED: {name}: {found}, not {expected}", flush=True)
        return 1

    def check_all(self):
        specifications = f"{self.node.work}/cdi"
        os.mkdir(specifications)
        failed = self.check("no specification", "refused:*no known GPU vendor*", ["--gpus", "all"])
        print("= examples/nerdctl/nvidia-cdi.json")
        shutil.copy(f"{HERE}/../../examples/nerdctl/nvidia-cdi.json", specifications)
        failed += sum(self.check(*case) for case in WITH_EXAMPLE)
        os.remove(f"{specifications}/nvidia-cdi.json")
        print("= as of nvidia-ctk cdi generate")
        write(f"{specifications}/nvidia.json", json.dumps(nvidia_ctk_specification()))
        return failed + sum(self.check(*case) for case in WITH_NVIDIA_CTK)

    def close(self):
        for container in self.run("ps", "--all", "--quiet").stdout.split():
            self.run("rm", "--force", container)
        self.node.close()


def main(binaries, tools, containerd):
    require(f"{binaries}/containerd-shim-egpu-v1", f"{tools}/nerdctl", f"{containerd}/containerd")
    settings = ["accept_nvidia_visible_devices_as_volume_mounts = true"]
    node = Node(tempfile.mkdtemp(prefix="egpu-nerdctl-"), binaries, containerd, settings=settings)
    nerdctl = Nerdctl(node, binaries, tools)
    try:
        node.start("default")
        failed = nerdctl.check_all()
        if failed:
            with open(f"{node.work}/egpu.log", encoding="utf-8") as log:
                print(*log.readlines()[-20:], sep="", file=sys.stderr)
    finally:
        nerdctl.close()
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*map(os.path.realpath, sys.argv[1:])))
