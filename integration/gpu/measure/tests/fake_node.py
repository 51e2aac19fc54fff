"""A node whose cards share their time exactly as they were asked to, at a clock of its own."""

import re
import signal
from contextlib import nullcontext

from measure.node import Output

BASE = 1000.0
STEP_US = 50_000
FILLED = "allocated 1800000000 in 10 blocks, then refused; free 1245184 total 2147483648"


class Program:
    """A load or another program; samples of a load are written as the clock goes on."""

    def __init__(self, node, container, command, path):
        self.node, self.container, self.path = node, container, path
        self.line, self.work, self.killed = " ".join(command), 0.0, False
        loads = (r"(compute-load run \S+ \S+|latency-load batch \S+ \S+|torch_load.py|nccl_load.py) "
                 r"([0-9.]+)")
        found = re.search(loads, self.line)
        self.is_load, self.stopped, self.stdin = bool(found), False, self
        at = re.search(r"AT=([0-9]+)", self.line)
        self.begin = int(at[1]) if at else node.now
        seconds = float(found[2]) if found else 0
        if at:
            seconds *= len(node.batches)
        self.end = self.begin + int(seconds * 1e6)

    def is_busy(self):
        return (self.is_load and not self.killed and not self.stopped
                and self.begin <= self.node.now < self.end)

    def poll(self):
        return 0 if self.killed or self.node.now >= self.end else None

    def wait(self):
        while self.poll() is None:
            self.node.sleep(0.5)
        return 0

    def terminate(self):
        self.killed = True

    close = kill = terminate


class FakeNode:
    def __init__(self, greed=1.0, batches=(16, 32)):
        self.greed, self.batches, self.now = greed, batches, 5_000_000
        self.tools, self.work, self.programs = "/work/tools", "/work", "/bundle/bin"
        self.uuids, self.has_torch = ["GPU-0", "GPU-1"], True
        self.containers, self.loads, self.files, self.policy = {}, [], {}, "fixed"

    # Time, and the work that is done in it.

    def now_us(self):
        return self.now

    def sleep(self, seconds):
        end = self.now + int(seconds * 1e6)
        while self.now < end:
            step = min(STEP_US, end - self.now)
            busy = [load for load in self.loads if load.is_busy()]
            for load in busy:
                load.work += BASE * self.share(load.container, busy) * step / 1e6
            self.now += step
            for load in busy:
                self.files[load.path] += f"{self.now} {load.work:.3f}\n"

    def share(self, container, busy):
        """The part of the card's time that each load of the container has."""
        outside = [load for load in busy if load.container is None]
        if container is None:
            return 1 / len(outside)
        mine = self.containers[container]
        others = [self.containers[load.container] for load in busy if load.container]
        if any("EGPU_PRIORITY" in one for one in others):
            is_alone = len(others) == 1
            return 1.0 if is_alone else {"high": 0.97, "low": 0.03}[mine["EGPU_PRIORITY"]]
        if self.policy != "fixed":
            total = sum(int(one["EGPU_WEIGHT"]) for one in others)
            return int(mine["EGPU_WEIGHT"]) / total
        return min(1, float(mine.get("EGPU_COMPUTE", "100%")[:-1]) / 100 * self.greed)

    def achieved(self, container):
        busy = [load for load in self.loads if load.is_busy()]
        is_busy = any(load.container == container for load in busy)
        return 100 * self.share(container, busy) if is_busy else 0.0

    # Programs.

    def spawn(self, container, command, path, **_):
        program = Program(self, container, command, path)
        self.files[path] = "held back\ncalls 7, contexts 3\n"
        self.loads.append(program)
        return program

    def signal(self, sent, pattern):
        for load in self.loads:
            if load.container and re.search(pattern, load.line) and load.poll() is None:
                load.killed |= sent == signal.SIGKILL
                load.stopped = sent == signal.SIGSTOP

    def on_host(self, *command, **_):
        return self.said("host", command)

    def exec(self, container, *command, **_):
        return self.said(container, command)

    def said(self, place, command):
        line = " ".join(command)
        if "utilization.gpu" in line:
            return "99" if self.achieved(place) else "0"
        if "pin_load" in line:
            return "checked 420\nregister 20.5"
        if "seq" in line and "random" in line:
            first, last = re.search("seq ([0-9]+) ([0-9]+)", line + "seq 1 32").groups()
            seeds = range(int(first), int(last) + 1)
            lines = (f"{seed} exit 2" if "$seed exit" in line else "exit 0" for seed in seeds)
            return "\n".join(lines)
        figures = {"calibrate": "3091", "train.py": "examples/s 1000.0 batch 64", "init": "300.25",
                   "malloc": "20.5", "launch": "250000\n251000", "x[torch": "device-side assert",
                   "large_load": "ok written on card 0\npeers True"}
        return next((said for part, said in figures.items() if part in line), "")

    def run(self, container, settings, *command):
        weight = re.search("WEIGHT=([0-9]+)", " ".join(settings))
        rate = 10.0 * float(weight[1]) if weight and "8" in command else 100.0
        if "MEM=3276" in " ".join(settings):
            return Output(2, "out of memory: CUDA")
        said = "checked 420\nregister 40.5" if "pin_load" in command[-1] else f"examples/s {rate}"
        return Output(0, said)

    # Containers, and egpu.

    def launch(self, container, settings, options=()):
        self.containers[container] = dict(one.split("=", 1) for one in settings)

    def launch_runc(self):
        return False

    def stop(self, *containers):
        for load in self.loads:
            load.killed |= load.container in containers
        for container in containers:
            self.containers.pop(container, None)

    def call_egpu(self, *arguments):
        if arguments[0] == "set":
            self.containers[arguments[1]]["EGPU_COMPUTE"] = arguments[3]
        if arguments[0] == "policy":
            self.policy = arguments[2]
        return Output(0, "")

    def egpu(self, *arguments):
        return self.call_egpu(*arguments).text

    def json(self, command, *_):
        if command == "ps":
            cards = [{"utilization_percent": 99}]
            return [{"id": name, "cards": cards} for name in self.containers]
        if command == "top":
            cards = [(name, self.achieved(name)) for name in self.containers]
            return {"containers": [
                {"id": name, "cards": [{
                    "achieved_1s_percent": achieved, "scheduler_cpu_us": self.now // 10_000,
                    "scheduler_driver_cpu_us": self.now // 20_000, "lost_us": self.now // 1000,
                    "edge_wait_us": self.now // 500, "slow_edges": self.now // 1_000_000,
                    "longest_edge_us": 41_000}]} for name, achieved in cards]}
        return []

    def nvidia_smi(self, *_):
        return "1980 MHz, 376.99 W"

    def kill(self, *_):
        pass

    def pin_mediators(self, _):
        pass

    def kernel_log(self, _=None):
        return []

    def processor_ticks(self):
        return {"scheduler": (0, self.now // 1_000_000)}

    def granted(self, _):
        return self.uuids

    def used_mib(self, _):
        return 0

    def exists(self, _):
        return True

    def read(self, path):
        return self.files.get(path, "")

    def rootfs(self, _):
        pass

    def share_root(self, *_):
        pass

    def end_programs(self):
        pass

    def stop_all(self):
        self.stop(*list(self.containers))

    def setting(self, _):
        return nullcontext()
