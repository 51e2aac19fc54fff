"""Loads that keep a card busy, outside and in containers, and what they get done."""

import signal

from measure import figures
from measure.suite import Suite

# Loads of a fixed size, and those that are made of another one's kernels.
FIXED, SAME_KERNELS = ("copy", "memory", "migrate"), {"streams": "short", "waiting": "short"}


class Compute(Suite):
    """A suite with loads: what each does alone, outside, is what its share is measured by."""

    def __init__(self, node, report, settings):
        super().__init__(node, report, settings)
        self.running, self.kinds, self.iterations, self.alone_rates = {}, {}, {}, {}
        self.unmanaged_totals = {}

    # The loads.

    def calibrate(self, kinds):
        """Finds out how many iterations make kernels of the length that they should have here."""
        for kind in kinds:
            if kind not in FIXED and kind != "training" and kind not in self.iterations:
                program, of = f"{self.node.tools}/compute-load", SAME_KERNELS.get(kind, kind)
                found = self.iterations.get(of) or self.node.on_host(program, "calibrate", of)
                self.iterations[kind] = found
        if self.iterations:
            found = "; ".join(f"{kind} {count}" for kind, count in self.iterations.items())
            print(f"iterations: {found}; ")

    def load(self, kind, place, seconds):
        """Returns the command line of a load, "KIND" or "KIND x PROCESSES"; outside in no place."""
        kind, _, processes = kind.partition(" x ")
        folder = "/tmp" if place else self.node.tools
        if kind == "training":
            return ["python3", f"{folder}/torch_load.py", str(seconds), "small"]
        command = [f"{folder}/compute-load", "run", kind, self.iterations.get(kind, "1")]
        return [*command, str(seconds), *([processes] if processes else [])]

    def path(self, name):
        return f"{self.node.work}/{name}.load"

    def begin(self, name, place, command, kind=None):
        self.running[name] = self.node.spawn(place, command, self.path(name))
        self.kinds[name] = kind

    def begin_load(self, name, kind, seconds):
        """Starts a load in the container of its name."""
        self.begin(name, name, self.load(kind, name, seconds), kind)

    def keep_busy(self, seconds, kind, **containers):
        """Starts containers with these settings, a load in each, and waits until all work."""
        for name, settings in containers.items():
            self.share(name, *settings.split())
        for name in containers:
            self.begin_load(name, kind, seconds)
        self.await_work(*containers)

    def output(self, name):
        return self.node.read(self.path(name))

    def await_work(self, *names):
        """Waits until each of the loads has done something, or all have ended."""
        for name in names:
            for _ in range(600):
                worked = [work for _, work in figures.samples(self.output(name)) if work >= 1]
                if len(worked) >= 3 or self.have_ended():
                    break
                self.node.sleep(0.1)

    def have_ended(self):
        return all(load.poll() is not None for load in self.running.values())

    def settle(self):
        """Waits for the end of all loads."""
        for load in self.running.values():
            load.wait()
        self.running = {}

    def rate(self, name, start_us, end_us):
        return figures.rate(figures.samples(self.output(name)), start_us, end_us)

    def rates(self, seconds, *names, tail=0.8):
        """Measures the work a second of each load; tail: how long to wait for its last sample."""
        start = self.node.now_us()
        self.node.sleep(seconds)
        end = self.node.now_us()
        self.node.sleep(tail)
        return [self.rate(name, start, end) for name in names]

    def measure_alone(self, kind, measured=2.5, seconds=8):
        """Measures what a load does outside, unmanaged."""
        self.begin("solo", None, self.load(kind, None, seconds))
        self.await_work("solo")
        self.node.sleep(0.5)
        [rate] = self.rates(measured, "solo")
        self.alone_rates[kind] = rate
        power = self.node.nvidia_smi("--query-gpu=clocks.sm,power.draw", "--format=csv,noheader")
        print(f"alone, outside: {kind} {figures.text(rate, 3)}/s, clock and power "
              f"{(power.splitlines() or [''])[0]}")
        self.settle()

    def percents(self, seconds, *names, tail=0.8):
        """Measures loads in percent of what such a load does alone."""
        rates = zip(names, self.rates(seconds, *names, tail=tail))
        return [figures.percent(rate, self.alone_rates.get(self.kinds[name]))
                for name, rate in rates]

    def rows(self, table, asked, achieved):
        """Keeps what loads of these names were to have and had, for the picture."""
        for (name, want), have in zip(asked.items(), achieved):
            self.report.row(table, self.kinds[name].partition(" x ")[0], name, want, have)

    def signal_load(self, sent, *seconds):
        """Sends a signal to loads of short kernels in containers, known by their length."""
        for length in seconds:
            self.node.signal(sent, f"^/tmp/compute-load run short .* {length}$")

    def idle(self, *seconds):
        self.signal_load(signal.SIGSTOP, *seconds)

    # Containers.

    def share(self, container, *settings):
        """Starts a container with a share of the first card, of 16 GiB unless it is said."""
        if not any(one.startswith("EGPU_MEMORY=") for one in settings):
            settings = ("EGPU_MEMORY=16GiB", *settings)
        self.node.launch(container, ["EGPU_DEVICES=0", *settings])

    def end(self, *containers):
        """Stops containers, and with them their loads."""
        self.node.stop(*containers)
        self.settle()

    def policy(self, *arguments):
        """Sets the first card's policy of sharing."""
        said = self.node.egpu("policy", "0", *arguments, "--wait")
        if said:
            print(said)

    def top(self, lines=0):
        """Prints what egpu says of the cards' time."""
        print(*self.node.egpu("top", "-n", "1").splitlines()[-lines:], sep="\n")
