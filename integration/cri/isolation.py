"""Namespaces, cgroups and sysctls for a kubelet, of which nothing stays on the machine."""

import contextlib
import os
import subprocess
import sys

# What kubelet sets, outside of any namespace.
SYSCTLS = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
           "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"]


@contextlib.contextmanager
def kept_sysctls():
    """Puts the machine's settings back at the end."""
    before = {name: _sysctl(name) for name in SYSCTLS}
    try:
        yield
    finally:
        for name, value in before.items():
            try:
                with open(f"/proc/sys/{name}", "w", encoding="ascii") as file:
                    file.write(value)
            except OSError as error:
                print(f"{name} could not be put back: {error}", file=sys.stderr)


def _sysctl(name):
    with open(f"/proc/sys/{name}", encoding="ascii") as file:
        return file.read()


def isolate(*directories):
    """Gives a network with one node address, and the directories empty, in namespaces that this process has for itself."""
    mount = ["mount", "--make-rprivate", "/"]
    subprocess.run(mount, check=True)
    for directory in directories:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", directory], check=True)
    for command in ("link set lo up", "link add node0 type bridge", "addr add 10.88.0.1/16 dev node0", "link set node0 up",
                    "route add default via 10.88.0.1 dev node0"):
        subprocess.run(["busybox", "ip", *command.split()], check=True)


def cgroup_mounts():
    """Returns a directory for each hierarchy, in which cgroups can be made."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        lines = [line.split() for line in file]
    return [fields[4] for fields in lines if fields[fields.index("-") + 1] in ("cgroup", "cgroup2")]


def make_cgroups(name):
    for mount in cgroup_mounts():
        os.makedirs(os.path.join(mount, name), exist_ok=True)


def cgroups(name):
    """Returns the cgroups of this name and below, of every hierarchy, the deepest first."""
    tops = [os.path.join(mount, name) for mount in cgroup_mounts()]
    return [path for top in tops for path, _, _ in os.walk(top, topdown=False)]


def remove_cgroups(name):
    """Removes those in which nothing runs."""
    for directory in cgroups(name):
        with contextlib.suppress(OSError):
            os.rmdir(directory)
