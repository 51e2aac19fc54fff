"""Mixes of programs on one card: what each gets done, of what it does alone, and how it waits.

EGPU_GPU_DECODER names a folder with the program `decoder` (decoder.cpp, built with llama.cpp) and
`model.gguf` (decoder_model.py makes one).
"""

import re

from measure import figures, served
from measure.disturbed import scheduler_cpu_us
from measure.latency import Requests
from measure.loads import Compute
from measure.systems import mps

MIXES = {"two decoders": ("decoder", "decoder"), "four decoders": ("decoder",) * 4,
         "eight decoders": ("decoder",) * 8,
         "a decoder and a training": ("decoder", "float32"),
         "two trainings": ("float32", "bfloat16"),
         "two that make breaks": ("breaks", "breaks"),
         "one that makes breaks and a training": ("breaks", "float32")}
PERIODS = ("20ms", "50ms", "100ms")
# Ways of sharing that a mix is measured by.
LINES = ("outside", "mps", "adaptive", "native", "soft", "preemptive", "caps", "auto")
REQUESTS = Requests(1640, 30, 1000)
# Holds a context, and says so as a load that has done something.
RESTS = """import time, torch
torch.zeros(1).cuda()
print("1 1", "2 2", "3 3", sep=chr(10), flush=True)
time.sleep(60)"""
HEAD = f"{'':<26}{'together':>9}  of what each does alone (p50, p99 ms of a token or step)"


def gaps(text):
    """Returns (end in microseconds, length in milliseconds) of each token or step but the first."""
    found = []
    for part in re.split("^prompt$", text, flags=re.MULTILINE):
        times = [time for time, _ in figures.samples(part)]
        found += [(end, (end - begin) / 1000) for begin, end in zip(times, times[1:])]
    return found


class Mixes(Compute):
    def __init__(self, node, report, settings):
        super().__init__(node, report, settings)
        # Sums of the words of a round that one alone says.
        self.right, self.per_us = set(), None
        self.lines = settings.lines or LINES

    def load(self, kind, place, seconds):
        if kind == "decoder":
            folder = self.settings.decoder
            return [f"{folder}/decoder", f"{folder}/model.gguf", str(seconds)]
        return ["python3", f"{'/tmp' if place else self.node.tools}/matrix_load.py", str(seconds),
                kind]

    def figures_of(self, title, names, seconds=8):
        """Measures loads that run, and prints a line."""
        start = self.node.now_us()
        self.node.sleep(seconds)
        end = self.node.now_us()
        self.node.sleep(0.3)
        parts, texts = [], []
        for name in names:
            rate = self.rate(name, start, end) or 0
            parts.append(rate / self.alone_rates[self.kinds[name]])
            took = [gap for at, gap in gaps(self.output(name)) if start <= at <= end]
            p50, p99 = (figures.quantile(took, part) or 0 for part in (0.5, 0.99))
            texts.append(f"{self.kinds[name]} {parts[-1]:.3f} ({p50:.1f}, {p99:.1f})")
        print(f"{title:<26}{sum(parts):>9.3f}  {'; '.join(texts)}")
        said = {one for name in names for one in self.sums(name)}
        self.report.check(f"{title}: the words of one alone", said <= self.right, said)

    def sums(self, name):
        return set(re.findall("^sum ([0-9]+)$", self.output(name), re.MULTILINE))

    def outside(self, title, kinds, prefix=()):
        names = [f"outside{number}" for number in range(len(kinds))]
        for name, kind in zip(names, kinds):
            self.begin(name, None, [*prefix, *self.load(kind, None, 17)], kind)
        self.await_work(*names)
        self.figures_of(title, names)
        self.settle()

    def inside(self, kinds):
        names = [f"share{number}" for number in range(len(kinds))]
        for name in names:
            self.share(name)
        for name, kind in zip(names, kinds):
            self.begin(name, name, self.load(kind, name, 90), kind)
        self.await_work(*names)
        if "adaptive" in self.lines:
            # What is chosen depends on what was seen.
            self.node.sleep(2)
            self.chosen(names)
        for policy in ("native", "soft"):
            if policy in self.lines:
                self.policy(policy)
                self.figures_of(f"shares, {policy}", names)
        for period in PERIODS if "preemptive" in self.lines else ():
            self.policy("preemptive", "--period", period)
            self.figures_of(f"preemptive, period {period}", names)
        self.policy("fixed")
        periods = (*(PERIODS if "caps" in self.lines else ()), *({"auto"} & set(self.lines)))
        if periods:
            for name in names:
                self.node.egpu("set", name, "--compute", f"{100 // len(names)}%", "--wait")
        for period in periods:
            self.policy("--period", period)
            self.figures_of(f"equal caps, period {period}", names)
            if period == "auto":
                self.top(len(names))
        self.policy("--period", "100ms")
        self.end(*names)

    def chosen(self, names):
        """Measures what egpu chooses for shares that ask for memory only, and what it costs."""
        (before, _), start = scheduler_cpu_us(self.node), self.node.now_us()
        self.figures_of("shares, nothing asked for", names)
        (after, _), end = scheduler_cpu_us(self.node), self.node.now_us()
        cost = figures.text(figures.percent(after - before, end - start), 2)
        print(f"{'':<26}the threads that schedule: {cost} percent of a processor")
        self.top(len(names))

    def notebooks(self, idle=9):
        """One that works among others that only hold the card open."""
        self.report.title(f"mixes: {idle} that rest, and a decoder")
        names = [f"idle{number}" for number in range(idle)]
        for name in names:
            self.share(name, "EGPU_MEMORY=4GiB")
            self.begin(name, name, ["python3", "-c", RESTS], "idle")
        self.await_work(*names)
        self.share("one")
        self.begin("one", "one", self.load("decoder", "one", 60), "decoder")
        self.await_work("one")
        self.node.sleep(2)
        self.chosen(["one"])
        self.end(*names, "one")

    def serve(self, title, place, beside):
        """Serves requests in a container or outside, and prints how long they take."""
        folder = "/tmp" if place else self.node.tools
        command = [f"{folder}/latency-load", *REQUESTS.arguments(self.per_us)]
        self.running["requests"] = self.node.spawn(place, command, self.path("requests"))
        self.running.pop("requests").wait()
        found = served.read(self.output("requests"))
        if not found:
            said = self.output("requests")
            return self.report.check(f"{title}: requests are served", False, said)
        p50, p99 = (found.latency_ms(part) for part in (0.5, 0.99))
        rate = self.rate(beside, found.begin_us, found.end_us) if beside else None
        part = f"; decoder {rate / self.alone_rates['decoder']:.3f}" if rate else ""
        print(f"{title:<26}requests {len(found.requests)} ({p50:.1f}, {p99:.1f}){part}")
        return None

    def requests_and_decoder(self):
        self.report.title("mixes: requests at 30 percent and a decoder")
        self.per_us = self.node.on_host(f"{self.node.tools}/latency-load", "calibrate").strip()
        self.serve("alone, outside", None, None)
        if "outside" in self.lines:
            self.begin("beside", None, self.load("decoder", None, 12), "decoder")
            self.await_work("beside")
            self.serve("time slices, outside", None, "beside")
            self.settle()
        self.share("server")
        self.share("beside")
        self.begin("beside", "beside", self.load("decoder", "beside", 60), "decoder")
        self.await_work("beside")
        self.serve("shares, nothing asked for", "server", "beside")
        self.end("server", "beside")


def mixes(suite):
    """Runs each mix by time slices, under MPS, and in shares."""
    if not suite.settings.decoder:
        return suite.report.skip("mixes: EGPU_GPU_DECODER names no folder")
    if not suite.needs_torch("mixes"):
        return None
    mix = Mixes(suite.node, suite.report, suite.settings)
    for kind in ("float32", "bfloat16", "breaks", "decoder"):
        mix.measure_alone(kind)
        if not mix.alone_rates[kind]:
            return suite.report.check(f"{kind} runs", False, mix.output("solo")[-500:])
    # The decoder was the last.
    mix.right = mix.sums("solo")
    for title, kinds in MIXES.items():
        suite.report.title(f"mixes: {title}")
        print(HEAD)
        if "outside" in mix.lines:
            mix.outside("time slices, outside", kinds)
        if "mps" in mix.lines:
            with mps(mix) as sides:
                if sides:
                    mix.outside("MPS, outside", kinds, sides.high)
        mix.inside(kinds)
    mix.requests_and_decoder()
    mix.notebooks()
    return None
