"""The machine with its cards, and containers on overlays of its own root file system.

Everything that measurements do to the world goes through here; tests put a made-up node in place.
"""

import contextlib
import functools
import glob
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from measure.containerd import SIMULATED, Containerd, egpu_config, write

# Containers of single cards on machines that lend them have no multicast; both ends of NCCL are on
# this machine.
NCCL = ["NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1", "NVSHMEM_DISABLE_NVLS=1",
        "NCCL_IB_DISABLE=1", "NCCL_SOCKET_IFNAME=lo", "NCCL_DEBUG=WARN"]
# The host's network, where an interface is up, and a larger /dev/shm than 64 MiB: NCCL's buffers
# are there where cards do not reach each other.
NCCL_OPTIONS = ["--net-host", "--mount",
                "type=tmpfs,src=shm,dst=/dev/shm,options=nosuid:nodev:mode=1777:size=1073741824"]
DRIVER = "/usr/local/nvidia"
LOADS = ["train.py", "pin_load.py", "large_load.py", "torch_load.py", "nccl_load.py",
         "torch_check.py", "matrix_load.py"]
PROGRAMS = ["cuda-load", "notify-floor", "compute-load", "latency-load", "no-preemption.so",
            "rm-client", "hostile", "egpu"]
DISABLED = [f"io.containerd.{name}" for name in (
    "grpc.v1.cri", "cri.v1.runtime", "cri.v1.images", "snapshotter.v1.btrfs", "snapshotter.v1.zfs",
    "snapshotter.v1.devmapper", "snapshotter.v1.aufs", "internal.v1.tracing", "nri.v1.nri")]


def uuids_in(text):
    return sorted(set(re.findall("GPU-[0-9a-f-]+", text)))


@dataclass
class Output:
    code: int
    text: str


def call(command, **options):
    """Runs a command; what it prints on both outputs is kept."""
    options = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, **options}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, **options)
    text = done.stdout.decode(errors="replace").replace("\r", "")
    return Output(done.returncode, text.rstrip("\n"))


def host_environment():
    """The environment of programs outside containers: where the driver's libraries are."""
    libraries = f"{os.environ.get('LD_LIBRARY_PATH', '')}:{DRIVER}/lib64:{DRIVER}/lib"
    return {**os.environ, "LD_LIBRARY_PATH": libraries}


def nvidia_smi(*arguments):
    """Returns what nvidia-smi prints outside containers; nothing where there is none."""
    with contextlib.suppress(FileNotFoundError):
        return call(["nvidia-smi", *arguments], env=host_environment(),
                    stderr=subprocess.DEVNULL).text
    return ""


def tool(name):
    """Finds a program of the CUDA toolkit; None where there is none."""
    path = f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin"
    return shutil.which(name, path=path)


def command_lines():
    """Yields (pid, command line) of all processes but this one."""
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            line = file.read().replace(b"\0", b" ").decode(errors="replace").rstrip()
            if line and int(path.split("/")[2]) != os.getpid():
                yield int(path.split("/")[2]), line


def unmount_below(folder):
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mounts = [line.split()[4] for line in file]
    for mount in sorted((one for one in mounts if one.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "-l", mount], check=False)


class Node:
    def __init__(self, folder, programs, settings):
        self.folder, self.programs, self.dry = folder, programs, settings.dry
        self.work, self.namespace = settings.work, f"egpu-gpu-{os.getpid()}"
        self.tools, self.log = f"{self.work}/tools", f"{self.work}/egpu.log"
        self.uuids = uuids_in(nvidia_smi("--query-gpu=uuid", "--format=csv,noheader"))
        python = os.path.dirname(shutil.which("python3") or sys.executable)
        self.path = f"{python}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.containerd, self.numbers, self.spawned = None, itertools.count(), []

    @functools.cached_property
    def has_torch(self):
        return call(["python3", "-c", "import torch"], env=host_environment()).code == 0

    # The machine.

    def __enter__(self):
        os.makedirs(self.work, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", self.work], check=True)
        try:
            self.configure()
            os.mkdir(self.tools)
            sources = [f"{self.folder}/{name}" for name in LOADS]
            for source in [*sources, *(f"{self.programs}/{name}" for name in PROGRAMS)]:
                if os.path.exists(source):
                    shutil.copy(source, self.tools)
            self.containerd = Containerd(self.work, disabled=DISABLED, level="debug")
            self.containerd.start(dict(os.environ))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        print("\n=== cleaning up")
        self.end_programs()
        if self.containerd:
            self.stop_all()
        print(f"records left: {self.records()}")
        print(f"shims left: {len(self.shims())}")
        if self.containerd:
            self.containerd.stop()
        for pid in self.shims():
            self.kill(pid, signal.SIGKILL)
        unmount_below(self.work)
        subprocess.run(["umount", "-l", self.work], check=False)
        shutil.rmtree(self.work, ignore_errors=True)

    def configure(self, *settings):
        """Writes egpu's configuration, with these lines of its top level."""
        driver = '[driver]\nkind = "nvidia"\n'
        if self.dry:
            driver = SIMULATED.format(model="NVIDIA H200", memory="140GiB", count=2)
        write(os.environ["EGPU_CONFIG"], egpu_config(self.work, driver, *settings))

    @contextlib.contextmanager
    def setting(self, line):
        self.configure(line)
        try:
            yield
        finally:
            self.configure()

    def sleep(self, seconds):
        time.sleep(seconds)

    def now_us(self):
        """CLOCK_MONOTONIC, which loads tell the time by, too."""
        return time.monotonic_ns() // 1000

    def nvidia_smi(self, *arguments):
        return nvidia_smi(*arguments)

    def kernel_log(self, pattern="NVRM|nvidia"):
        """The driver's lines in the kernel's log; None where it cannot be read."""
        log = call(["dmesg"], stderr=subprocess.DEVNULL)
        lines = [line for line in log.text.splitlines() if re.search(pattern, line)]
        return lines if log.code == 0 else None

    def kill(self, pid, sent):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sent)

    def signal(self, sent, pattern):
        """Sends a signal to the processes whose command line is of this pattern."""
        for pid, line in command_lines():
            if re.search(pattern, line):
                self.kill(pid, sent)

    def shims(self):
        return [pid for pid, line in command_lines() if f"-address {self.work}/" in line]

    def records(self):
        return len(glob.glob(f"{self.work}/egpu/ledger/*.json"))

    def call_egpu(self, *arguments):
        return call(["egpu", *arguments])

    def egpu(self, *arguments):
        return self.call_egpu(*arguments).text

    def json(self, *arguments):
        command = ["egpu", *arguments, "--output", "json"]
        return json.loads(call(command, stderr=None).text or "[]")

    # Containers.

    def ctr(self, *arguments):
        return self.containerd.ctr(self.namespace, *arguments)

    def root(self, container):
        return f"{self.work}/roots/{container}/merged"

    def overlay(self, container):
        """Mounts an overlay of this machine's root file system, with the programs in its /tmp."""
        root = self.root(container)
        top = os.path.dirname(root)
        for name in ("upper", "work", "merged"):
            os.makedirs(f"{top}/{name}", exist_ok=True)
        options = f"lowerdir=/,upperdir={top}/upper,workdir={top}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, root], check=True)
        os.makedirs(f"{root}/tmp", exist_ok=True)
        for name in os.listdir(self.tools):
            shutil.copy(f"{self.tools}/{name}", f"{root}/tmp/")

    def rootfs(self, container):
        """Makes a root without this machine's driver: what works inside was injected."""
        root = self.root(container)
        if os.path.isdir(root):
            return
        self.overlay(container)
        subprocess.run(["rm", "-rf", root + DRIVER], check=False)
        folders = [f"{root}/{name}" for name in ("usr/lib", "usr/lib64", "lib", "lib64", "usr/bin")]
        names = "libcuda.so* -o -name libnvidia-* -o -name nvidia-smi -o -name libcudadebugger*"
        which = ["(", "-name", *names.split(), ")", "-delete"]
        command = ["find", *folders, "-maxdepth", "2", "-xdev", *which]
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False)

    def share_root(self, container, other):
        os.symlink(other, f"{self.work}/roots/{container}")

    def start(self, mode, container, settings, command, options):
        self.rootfs(container)
        environment = [f"PATH={self.path}", "HOME=/root", "TORCH_HOME=/tmp", *settings]
        options = [mode, "--runtime", "io.containerd.egpu.v1", *options,
                   *(part for one in environment for part in ("--env", one)), "--rootfs"]
        return self.ctr("run", *options, self.root(container), container, *command)

    def run(self, container, settings, *command):
        """Runs a container to its end; settings are variables of its environment."""
        return call(self.start("--rm", container, settings, command, []))

    def launch(self, container, settings, options=()):
        """Starts a container that waits for programs."""
        command = self.start("--detach", container, settings, ["sleep", "infinity"], options)
        subprocess.run(command, stdin=subprocess.DEVNULL, check=False)

    def launch_runc(self):
        """Starts a container of runc with all of the machine's devices and rights."""
        if not shutil.which("runc") or not shutil.which("containerd-shim-runc-v2"):
            return False
        root, options = self.root("runc"), []
        if not os.path.isdir(root):
            self.overlay("runc")
        if os.path.isdir(DRIVER):
            # An overlay shows nothing of what is mounted below it.
            os.makedirs(root + DRIVER, exist_ok=True)
            options = ["--mount", f"type=bind,src={DRIVER},dst={DRIVER},options=rbind:ro"]
        libraries = f"LD_LIBRARY_PATH={host_environment()['LD_LIBRARY_PATH']}"
        for one in (f"PATH={self.path}", "HOME=/root", "TORCH_HOME=/tmp", libraries):
            options += ["--env", one]
        command = self.ctr("run", "--detach", "--privileged", "--runtime", "io.containerd.runc.v2",
                           *options, "--rootfs", root, "runc", "sleep", "infinity")
        return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0

    def exec_command(self, container, command):
        return self.ctr("tasks", "exec", "--exec-id", f"x{next(self.numbers)}", container, *command)

    def exec(self, container, *command, timeout=0, errors=True):
        """Runs a program in a container and returns what it printed."""
        limit = ["timeout", str(timeout)] if timeout else []
        to = subprocess.STDOUT if errors else subprocess.DEVNULL
        return call([*limit, *self.exec_command(container, command)], stderr=to).text

    def on_host(self, *command, errors=False):
        """Runs a program outside, and returns what it printed."""
        to = subprocess.STDOUT if errors else subprocess.DEVNULL
        return call(command, env=host_environment(), stderr=to).text

    def outcome(self, container, *command):
        """Runs a program in a container, or outside without one; returns how it ended, too."""
        if container is not None:
            command = self.exec_command(container, command)
        return call(command, env=host_environment())

    def spawn(self, container, command, path, read_input=False, timeout=0):
        """Starts a program in a container, or outside, that prints into a file."""
        if container is not None:
            command = self.exec_command(container, command)
        if timeout:
            command = ["timeout", str(timeout), *command]
        stdin = subprocess.PIPE if read_input else subprocess.DEVNULL
        with open(path, "w", encoding="utf-8") as file:
            started = subprocess.Popen(command, env=host_environment(), stdin=stdin,
                                       stdout=file, stderr=file, cwd=self.folder)
        self.spawned.append(started)
        return started

    def end_programs(self):
        """Kills what spawn started and what has not ended by itself."""
        for program in self.spawned:
            if program.poll() is None:
                program.kill()
                program.wait()
        self.spawned = []

    def exists(self, path):
        return os.path.exists(path)

    def touch(self, path):
        write(path, "")

    def read(self, path):
        with contextlib.suppress(FileNotFoundError), open(path, errors="replace") as file:
            return file.read().replace("\r", "")
        return ""

    def stop(self, *containers):
        for container in containers:
            call(self.ctr("tasks", "kill", "--all", "--signal", "KILL", container))
            for _ in range(100):
                if call(self.ctr("tasks", "delete", container)).code == 0:
                    break
                time.sleep(0.1)
            call(self.ctr("containers", "delete", container))

    def stop_all(self):
        listed = call(self.ctr("containers", "list", "--quiet"))
        self.stop(*(listed.text.split() if listed.code == 0 else []))

    def pid(self, container):
        rows = (line.split() for line in call(self.ctr("tasks", "list")).text.splitlines())
        return next((row[1] for row in rows if row[0] == container), None)

    def metrics(self, container):
        return call(self.ctr("tasks", "metrics", container)).text

    def granted(self, container):
        """The cards of a container, by UUID."""
        return sorted(card["uuid"] for one in self.json("ps") if one["id"] == container
                      for card in one["cards"])

    def used_mib(self, container):
        """MiB that a container is charged; None where that is not known."""
        for one in self.json("ps"):
            if one["id"] == container:
                used = [card["memory_used_bytes"] for card in one["cards"]]
                return None if None in used else sum(used) >> 20
        return None

    def mediators(self):
        """Yields the folders of the mediators' processes."""
        for path in glob.glob("/proc/[0-9]*"):
            if self.read(f"{path}/comm").strip() == "egpu-mediator":
                yield path

    def pin_mediators(self, cpus):
        """Has all threads of the mediators run on these processors."""
        for process in self.mediators():
            for thread in os.listdir(f"{process}/task"):
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(thread), cpus)

    def processor_ticks(self):
        """Processor time of the mediators' threads by name: in user mode, in the kernel."""
        ticks = {}
        for process in self.mediators():
            for path in glob.glob(f"{process}/task/[0-9]*/stat"):
                name, _, rest = self.read(path).partition("(")[2].rpartition(")")
                if rest:
                    user, kernel = ticks.get(name, (0, 0))
                    fields = rest.split()
                    ticks[name] = (user + int(fields[11]), kernel + int(fields[12]))
        return ticks
