#!/usr/bin/env python3
"""Runs the pods of pods/ by a kubelet without an API server.

Under a current runc, under egpu, and under egpu in runc's place (examples/containerd/drop-in-*); it
compares what they printed and how they ended. Then the pods of pods/gpu under egpu alone, on
simulated cards. As root; in mount and network namespaces of its own. What differs is printed, and
makes the exit status 1.

usage: pods.py DIRECTORY_OF_EGPU_BINARIES CRI_TOOLS DIRECTORY_OF_CONTAINERD RUNC RM_CLIENT [POD...]
"""

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from isolation import isolate, kept_sysctls, make_cgroups, remove_cgroups
from node import HANDLERS, HERE, KUBELET_CONFIG, Node, cri_config, write

NODE = "node"
KUBELET = "https://127.0.0.1:10250"
PATIENCE_S = 240
# (pod, line) that differ by design, each with its reason in docs/design/libcontainer.md.
BY_DESIGN = [
    ("*", r"Seccomp:\s+[02]"),  # a container without a grant carries the filter that keeps it from the driver
    ("*", r"mount /proc/driver ro,relatime  tmpfs ro"),  # and does not see the driver's settings
    ("user-namespace", r"drwxrwxrwt 0 (0|65534) 40  mqueue"),  # its root's, where runc has nobody's
]

STATIC_PODS = """
staticPodPath: {work}/manifests
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
podLogsDir: {work}/logs
fileCheckFrequency: 1s
"""

def sh(*command, **options):
    return subprocess.run(command, check=True, **options)


def read(path):
    """The file's text; none where there is no file."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def until(what, condition):
    """The condition's first answer; None where it has none in time."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.3)
    print(f"waited in vain: {what}", file=sys.stderr)
    return None


class KubeletNode(Node):
    """A containerd with one default runtime, and a kubelet."""

    def __init__(self, top, handler, arguments):
        work, self.handler = os.path.join(top, handler), handler
        self.cgroup = f"/{os.path.basename(top)}"
        binaries, self.tools, containerd, runc, rm_client = arguments
        for directory in ("manifests", "shared/plain/tmpfs", "shared/none", "shared/slave", "shared/shared"):
            os.makedirs(os.path.join(work, directory))
        cri = cri_config(work, handler, self.tools, runc, binaries)
        super().__init__(work, binaries, containerd, cri, programs=[rm_client])
        sh("mount", "--bind", f"{work}/shared", f"{work}/shared")
        sh("mount", "--make-shared", f"{work}/shared")
        sh("mount", "-t", "tmpfs", "tmpfs", f"{work}/shared/plain/tmpfs")
        write(f"{work}/kubelet.yaml", (KUBELET_CONFIG + STATIC_PODS).format(work=work, cgroup=self.cgroup))

    def __enter__(self):
        make_cgroups(self.cgroup[1:])
        self.start()
        command = [f"{self.tools}/kubelet", "--config", f"{self.work}/kubelet.yaml", "--root-dir", f"{self.work}/kubelet"]
        command += ["--cert-dir", f"{self.work}/certificates", "--hostname-override", NODE, "--node-ip", "10.88.0.1"]
        with open(f"{self.work}/kubelet.log", "w") as log:
            self.kubelet = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        until("kubelet", lambda: self.get("/pods") is not None)
        return self

    def __exit__(self, *_):
        for manifest in os.listdir(f"{self.work}/manifests"):
            os.remove(f"{self.work}/manifests/{manifest}")
        until("the pods' end", lambda: not self.crictl("pods", "--quiet", "--state", "ready"))
        for sandbox in self.crictl("pods", "--quiet"):
            self.crictl("rmp", "--force", sandbox)
        self.kubelet.terminate()
        self.kubelet.wait()
        self.containerd.stop()
        # kubelet has its folder mounted on itself.
        for directory in ("shared", "kubelet"):
            subprocess.run(["umount", "--recursive", f"{self.work}/{directory}"], check=False)
        remove_cgroups(self.cgroup[1:])

    def crictl(self, *arguments):
        command = [f"{self.tools}/crictl", "--runtime-endpoint", f"unix://{self.work}/containerd.sock", *arguments]
        return subprocess.run(command, capture_output=True, text=True).stdout.split()

    def get(self, path, data=None):
        context = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(KUBELET + path, data=data, context=context, timeout=60) as answer:
                text = answer.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            return f"HTTP {error.code}: {error.read().decode(errors='replace')}"
        except (urllib.error.URLError, OSError):
            return None
        return json.loads(text) if path == "/pods" else text

    def pods(self):
        answer = self.get("/pods")
        items = answer["items"] if isinstance(answer, dict) else []
        return {pod["metadata"]["name"].removesuffix(f"-{NODE}"): pod for pod in items or []}

    def apply(self, path):
        with open(path) as file:
            text = file.read().replace("@SHARED@", f"{self.work}/shared")
        write(f"{self.work}/{os.path.basename(path)}", text)
        os.rename(f"{self.work}/{os.path.basename(path)}", f"{self.work}/manifests/{os.path.basename(path)}")

    def remove(self, name):
        os.remove(f"{self.work}/manifests/{name}.yaml")

    def exec(self, pod, container, command):
        return self.get(f"/run/default/{pod}-{NODE}/{container}?cmd={command}", data=b"") or "no answer"

    def log(self, pod, container):
        """The lines that the container's first run printed."""
        directory = os.path.join(self.work, "logs", f"default_{pod['metadata']['name']}_{pod['metadata']['uid']}", container)
        return [line.split(" ", 3)[-1] for line in read(os.path.join(directory, "0.log")).splitlines()]


def statuses(pod):
    status = pod.get("status", {})
    return status.get("initContainerStatuses", []) + status.get("containerStatuses", [])


def has_settled(pod):
    """Nothing more is to come of the pod, or what it is for has been seen."""
    name = pod["metadata"]["name"].removesuffix(f"-{NODE}")
    restarts = [status["restartCount"] for status in statuses(pod)]
    running = [bool(status["state"].get("running")) and status["ready"] for status in statuses(pod)]
    if name in ("shared-processes", "probes"):
        return max(restarts, default=0) >= 1 and all(running)
    if name == "crash-loop":
        return max(restarts, default=0) >= 2
    if name == "leaves":
        return bool(running) and all(running)
    if pod["spec"].get("restartPolicy") != "Never":
        return bool(running) and all(running)
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def outcome(node, name, pod):
    """Returns what became of the pod, a line each; without ids and times."""
    if pod is None:
        return ["no such pod"]
    lines = []
    settled = has_settled(pod)
    lines.append(f"phase {pod['status'].get('phase')}" + ("" if settled else " (unsettled)"))
    for status in sorted(statuses(pod), key=lambda one: one["name"]):
        state = status["state"]
        ended = state.get("terminated") or status.get("lastState", {}).get("terminated") or {}
        kind = "running" if state.get("running") else "waiting" if state.get("waiting") else "terminated"
        if name != "crash-loop":
            lines.append(f"{status['name']}: {kind}, restarts {status['restartCount']}")
        if "exitCode" in ended:
            lines.append(f"{status['name']}: {ended.get('reason')} {ended['exitCode']}")
        if not settled and state.get("waiting"):
            lines.append(f"{status['name']}: {state['waiting']}")
        if pod["spec"].get("restartPolicy") == "Never":
            lines += [f"{status['name']}: {line}" for line in node.log(pod, status["name"])]
    ids = r"[0-9a-f]{64}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<= 0 )\s*[0-9]{6,}(?= +65536)"
    return [re.sub(ids, "ID", line).replace(node.work, "WORK") for line in lines]


def mount_below(node):
    """For the pod `propagation`: the host mounts below each volume while it runs."""
    for volume in ("none", "slave", "shared"):
        later = f"{node.work}/shared/{volume}/later"
        os.makedirs(later, exist_ok=True)
        sh("mount", "-t", "tmpfs", "later", later)
    write(f"{node.work}/shared/slave/later/here", "")


def run_pods(node, names):
    for name in names:
        node.apply(f"{HERE}/pods/{name}.yaml")
    if "propagation" in names:
        until("propagation", lambda: any(status["state"].get("running") for status in statuses(node.pods().get("propagation", {}))))
        mount_below(node)
    until("all pods to settle", lambda: all(name in (pods := node.pods()) and has_settled(pods[name]) for name in names))
    pods = node.pods()
    outcomes = {name: outcome(node, name, pods.get(name)) for name in names}
    if "propagation" in names:
        with open("/proc/self/mountinfo") as file:
            seen = [line.split()[4].removeprefix(node.work) for line in file if line.split()[4].startswith(node.work)]
        outcomes["propagation"] += sorted(f"on the host: {path}" for path in seen if path.endswith("/own"))
    if "hooks" in names:
        outcomes["hooks"] += ["exec: " + line for line in node.exec("hooks", "main", "/bin/facts").splitlines()]
        node.remove("hooks")
        stopped = until("the end of hooks", lambda: "term" in (lines := read(f"{node.work}/shared/stopped").split()) and lines)
        outcomes["hooks"] += ["stopped: " + line for line in stopped or []]
    return outcomes


def by_design(pod, line):
    return any(re.search(pattern, line) for name, pattern in BY_DESIGN if name in ("*", pod))


def compare(handler, reference, outcomes):
    """Prints which pods differ, and returns how many."""
    differ = 0
    for name, lines in outcomes.items():
        missing = [line for line in reference[name] if line not in lines and not by_design(name, line)]
        added = [line for line in lines if line not in reference[name] and not by_design(name, line)]
        if missing or added or "(unsettled)" in reference[name][0]:
            differ += 1
            print(f"{handler}: {name} differs from runc, where it came to: {reference[name][0]}")
            for sign, several in (("-", missing), ("+", added)):
                for line in several:
                    print(f"  {sign} {line}")
        else:
            print(f"{handler}: {name} as under runc ({len(lines)} lines)")
    return differ


# CRI asks runtimes of runc's type alone for features; so this pod is not even tried under egpu's
# own type.
NEEDS_FEATURES = ["user-namespace"]

# Lines that the outcomes of pods/gpu must have.
GPU_PODS = {
    "share": ["gpu: Completed 0", "sidecar: Completed 0", "sidecar: 0"],
    "quota-kill": ["main: OOMKilled 0"],
    "user-namespace": ["main: Completed 0"],
    "comes": ["phase Succeeded", "main: terminated, restarts 0"],
}


def run_gpu_pods(node):
    names = ["share", "quota-kill", "leaves"] + (NEEDS_FEATURES if node.handler == "drop-in" else [])
    for name in names:
        node.apply(f"{HERE}/pods/gpu/{name}.yaml")
    until("the pods with GPUs", lambda: all(name in (pods := node.pods()) and has_settled(pods[name]) for name in names))
    leaves = node.pods()["leaves"]
    node.remove("leaves")
    # Who comes before that finds nobody on its way out, and is refused at once.
    until("the end of leaves to begin", lambda: "leaving" in node.log(leaves, "main"))
    node.apply(f"{HERE}/pods/gpu/comes.yaml")
    until("the pod that waits", lambda: has_settled(node.pods().get("comes", {"metadata": {"name": ""}, "spec": {"restartPolicy": "Never"}})))
    pods, failed = node.pods(), 0
    for name in [*names, "comes"]:
        lines = outcome(node, name, pods.get(name)) if name != "leaves" else []
        missing = [line for line in GPU_PODS.get(name, []) if line not in lines]
        if missing:
            failed += 1
            print(f"{node.handler}: GPU pod {name} lacks {missing}; it came to:", *lines, sep="\n  ")
        elif name != "leaves":
            print(f"{node.handler}: GPU pod {name} as it should be")
    return failed


def main(arguments, names):
    names = names or sorted(name.removesuffix(".yaml") for name in os.listdir(f"{HERE}/pods") if name.endswith(".yaml"))
    top = tempfile.mkdtemp(prefix="egpu-pods-")
    os.chmod(top, 0o711)  # as /run/containerd: roots of user namespaces pass through it
    failed, reference = 0, {}
    try:
        for handler in HANDLERS:
            with KubeletNode(top, handler, arguments) as node:
                tried = [name for name in names if handler != "egpu" or name not in NEEDS_FEATURES]
                outcomes = run_pods(node, tried)
                if handler == "runc":
                    reference = outcomes
                    continue
                failed += compare(handler, reference, outcomes)
                failed += run_gpu_pods(node)
    finally:
        if os.environ.get("EGPU_TEST_KEEP"):
            print(f"kept: {top}", file=sys.stderr)
        else:
            shutil.rmtree(top, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    if os.environ.get("EGPU_PODS_ISOLATED") != "1":
        paths = [os.path.realpath(path) for path in sys.argv[1:6]]
        command = ["unshare", "--mount", "--net", sys.executable, os.path.abspath(__file__), *paths, *sys.argv[6:]]
        with kept_sysctls():
            code = subprocess.run(command, env=dict(os.environ, EGPU_PODS_ISOLATED="1")).returncode
        sys.exit(code)
    isolate("/run", "/var/log")
    sys.exit(main(sys.argv[1:6], sys.argv[6:]))
