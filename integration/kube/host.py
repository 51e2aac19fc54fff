"""The machine around a cluster: namespaces for it, and what it may not have left at the end."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, f"{HERE}/../cri")
from isolation import SYSCTLS, cgroup_mounts, cgroups, isolate, kept_sysctls, remove_cgroups  # noqa: E402

VARIABLE = "EGPU_KUBE_FOLDER"
# Where kubelet, containerd and CNI write by default; in the namespaces, /run and /var are others.
FOLDERS = ["/etc/cdi", "/etc/cni", "/etc/kubernetes", "/opt/cni", "/opt/containerd", "/run/cdi", "/run/egpu", "/run/node",
           "/usr/libexec/kubernetes", "/var/lib/cni", "/var/lib/kubelet", "/var/lib/node", "/var/log/pods"]


def in_namespaces(processes=True):
    """Runs this program in mount, network and process namespaces of its own; returns there, with a folder for logs.

    Without the last, a run that is killed leaves processes. Outside, it ends with the inner one's
    exit status, or with 1 if something of it is left. The folder stays after a failure.
    """
    folder = os.environ.get(VARIABLE)
    if folder:
        isolate("/run", "/var/log", "/var/lib")
        return folder
    if os.geteuid():
        sys.exit("a cluster needs root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = tempfile.mkdtemp(prefix="egpu-kube-")
    before = traces()
    try:
        with kept_sysctls():
            code = _run_inside(folder, processes)
    finally:
        left = clean_up(folder, before)
    for one in left:
        print(f"left behind: {one}", file=sys.stderr)
    if code or left:
        print(f"logs: {folder}", file=sys.stderr)
        sys.exit(code or 1)
    shutil.rmtree(folder)
    sys.exit(0)


def _run_inside(folder, processes):
    # The shell is the first process: it reaps those whose parents are gone. When this one or
    # unshare ends, by whatever, so does everything in the namespaces.
    shell = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-B", *sys.argv]
    killed_too = ["setpriv", "--pdeathsig", "KILL"]
    own = ["--pid", "--mount-proc"] if processes else []
    unshare = ["unshare", "--mount", "--net", *own, "--fork", "--kill-child"]
    return subprocess.run([*killed_too, *unshare, *shell], env={**os.environ, VARIABLE: folder}, check=False).returncode


def traces():
    """What a cluster could leave on the machine, as a set of lines."""
    found = {f"{folder} exists" for folder in FOLDERS if os.path.lexists(folder)}
    for name in SYSCTLS:
        with open(f"/proc/sys/{name}", encoding="ascii") as file:
            found.add(f"sysctl {name} = {file.read().strip()}")
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mounts = [line.split()[4] for line in file]
    found |= {f"mount {path}" for path in mounts if path.startswith(tuple(FOLDERS))}
    cgroups_of_pods = [os.path.join(mount, "kubepods") for mount in cgroup_mounts()]
    return found | {f"cgroup {path}" for path in cgroups_of_pods if os.path.exists(path)}


def clean_up(folder, before):
    """Removes the cluster's cgroups; returns what is left of it otherwise."""
    name, end = os.path.basename(folder), time.monotonic() + 10
    while _processes(folder) and time.monotonic() < end:
        time.sleep(0.1)
    remove_cgroups(name)
    left = [f"cgroup {path}" for path in cgroups(name)] + [f"process {pid}" for pid in _processes(folder)]
    return left + sorted(traces() - before)


def _processes(folder):
    """Those that have the cluster's variable in their environment."""
    mark, found = f"{VARIABLE}={folder}".encode(), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            pass
    return found
