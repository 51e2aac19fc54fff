"""Parts of what mediation costs: an allocation and CUDA's start beside the least that any mediator
does, on processors of one's choice, asleep and awake."""

import contextlib
import glob
import os
import struct
import subprocess

from measure.figures import first_figures, median, text

PLACES = {
    "outside": None,
    "filter": "filter",        # the seccomp filter alone
    "continue": "continue",    # and a notification, that the kernel goes on from
    "answer": "answer",        # and what every mediator has to do with a call
    "spin": "spin",            # awake for the next call, on a processor of its own
    "runc": None,
    "share": None,
}


@contextlib.contextmanager
def awake():
    """Keeps processors out of idle states that take long to leave (pm_qos)."""
    with open("/dev/cpu_dma_latency", "wb", buffering=0) as file:
        file.write(struct.pack("i", 0))
        yield


@contextlib.contextmanager
def busy():
    """Runs a program without end on each processor, that makes way for any other (SCHED_IDLE)."""
    command = ["chrt", "--idle", "0", "sh", "-c", "while :; do :; done"]
    programs = [subprocess.Popen(command) for _ in range(os.cpu_count())]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def show_idling(node):
    """Prints how idle processors of this machine wait."""
    for path in ("/proc/cpuinfo", "/sys/devices/system/cpu/cpuidle/current_driver",
                 "/sys/devices/system/cpu/cpuidle/current_governor",
                 *sorted(glob.glob("/sys/devices/system/cpu/cpu0/cpuidle/state*/name")),
                 *sorted(glob.glob("/sys/module/haltpoll/parameters/*"))):
        said = node.read(path)
        lines = [one for one in said.splitlines() if "model name" in one][:1]
        print(f"{path}: {(lines or [said.strip()])[0]}")


def sibling_of(cpu):
    """Another thread of that processor's core; None without."""
    with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list",
              encoding="utf-8") as file:
        others = file.read().strip().replace("-", ",").split(",")
    return next((int(one) for one in others if int(one) != cpu), None)


class Floor:
    def __init__(self, suite):
        self.suite, self.node = suite, suite.node

    def __enter__(self):
        self.node.launch("share", ["EGPU_DEVICES=0", "EGPU_MEMORY=40GiB"])
        self.places = [one for one in PLACES if one != "runc" or self.node.launch_runc()]
        return self

    def __exit__(self, *_):
        self.node.stop("share", *(["runc"] if "runc" in self.places else []))

    def run(self, place, command, cpus):
        """Runs a command in one place, on a processor; a mediator on the other."""
        if cpus:
            command = ["taskset", "-c", str(cpus[0]), *command]
        if place in ("runc", "share"):
            return self.node.exec(place, *(part.replace("@", "/tmp/") for part in command))
        command = [part.replace("@", f"{self.node.tools}/") for part in command]
        if PLACES[place]:
            command = [f"{self.node.tools}/notify-floor", PLACES[place], "--", *command]
            if cpus:
                command = ["taskset", "-c", str(cpus[1]), *command]
        return self.node.on_host(*command)

    def compare(self, title, *command, rounds, cpus=None, places=None, pause=0):
        """Prints the medians and quartiles of a command's figure in each place, in turn."""
        print(f"\n{title}, {rounds} rounds")
        places = places or self.places
        self.node.pin_mediators({cpus[1]} if cpus else set(range(os.cpu_count())))
        figures = {place: [] for place in places}
        for number in range(rounds):
            # Each place is first as often as any other.
            first = number % len(places)
            for place in places[first:] + places[:first]:
                self.node.sleep(pause)
                figures[place] += map(float, first_figures(self.run(place, command, cpus), 1))
        outside = median(figures["outside"])
        for place in places:
            of = sorted(figures[place])
            if not of or outside is None:
                print(f"  {place:<9} no figures")
                continue
            quarter = len(of) // 4
            middle = median(of)
            print(f"  {place:<9} {text(middle, 2):>9}  quartiles {of[quarter]:.2f} to "
                  f"{of[-1 - quarter]:.2f}  more {middle - outside:8.2f}  {middle / outside:.4f}x")


def floor(suite):
    """The floor of mediation: see the head."""
    suite.report.title("what mediation costs, part by part")
    show_idling(suite.node)
    pairs, cpu = suite.settings.pairs, os.cpu_count() // 4
    malloc = ("@cuda-load", "malloc", "4096", "3000")
    with Floor(suite) as measured:
        compare = measured.compare
        compare("4 MiB, us", *malloc, rounds=2 * pairs)
        # Two that share a processor cannot both stay awake.
        places = [one for one in measured.places if one != "spin"]
        far = cpu + os.cpu_count() // 2
        others = {"the same processor": cpu, "another thread of its core": sibling_of(cpu),
                  "another core": far}
        for where, other in others.items():
            if other is not None:
                compare(f"4 MiB, us, the mediator on {where}", *malloc, rounds=pairs,
                        cpus=(cpu, other), places=places)
        with awake():
            compare("4 MiB, us, processors kept awake", *malloc, rounds=pairs, places=places)
        with busy():
            compare("4 MiB, us, no processor idle", *malloc, rounds=pairs, places=places)
        # As cost.initialisation says of the pause.
        compare("CUDA's start, ms", "@cuda-load", "init", rounds=2 * pairs, places=places,
                pause=2.5)
        for command in (malloc, ("@cuda-load", "init")):
            command = [part.replace("@", f"{suite.node.tools}/") for part in command]
            said = suite.node.on_host(f"{suite.node.tools}/notify-floor", "times", "--", *command,
                                      errors=True)
            print(f"\neach step, {' '.join(command[1:])}", said, sep="\n")
