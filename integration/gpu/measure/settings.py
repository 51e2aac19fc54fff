"""Settings of a run, by environment variables.

EGPU_GPU_ONLY      one part: memory, compute, attacks (8 minutes at most), cost (CUDA
                   initialisation, malloc and free, training beside the same outside: 5 minutes),
                   floor (malloc and free and initialisation part by part, beside the least that
                   any mediator costs: 8 minutes; in no other run),
                   two (NCCL on two cards), utilization, achieved, errors, programs (other
                   people's programs and suites, outside and in a share), latency (requests beside
                   batch work, 11 minutes; in no other run), mixes (programs beside each other by
                   time slices, under MPS, in shares: 5 minutes; in no other run)
EGPU_GPU_DECODER   a folder with decoder and model.gguf, for mixes (mixes.py)
EGPU_GPU_LINES     ways of sharing that mixes are measured by, of mixes.py (all)
EGPU_GPU_MEMORY    measurements of memory, of memory.py and cost.py (all)
EGPU_GPU_PROGRAMS  random programs (300)
EGPU_GPU_PAIRS     pairs of a comparison (5)
EGPU_GPU_VERBOSE   1: all that compared programs print
EGPU_GPU_COMPUTE   measurements of time (all but endless)
EGPU_GPU_LOADS     loads that caps are tried with (short long graph cooperative training)
EGPU_GPU_CAPS      caps in percent (90 75 50 33 25 10 5)
EGPU_GPU_PEER      a library that limits by LD_PRELOAD and CUDA_DEVICE_SM_LIMIT (HAMi-core's
                   interface), with which the same is done beside; no part of the bundle
EGPU_GPU_LATENCY   measurements of latency.py (main second decode busy several)
EGPU_GPU_REQUESTS  requests of each of their cells (1500, of 20 ms 300)
EGPU_GPU_SYSTEMS   systems that the first of them compares, of systems.py (all)
EGPU_GPU_BATCHES   batches that weights are tried with (16 32 64 128)
EGPU_GPU_CASES     suites of attacks (attacks memory); EGPU_GPU_SECONDS: when no further case is
                   begun (420); EGPU_GPU_CASE_SECONDS: how long each may take (60)
EGPU_GPU_GROUPS    groups of the part programs, of programs/__init__.py (all)
EGPU_GPU_PROGRAMS_FOLDER
                   what measure/programs/fetch.py fetched, for suites of other people
EGPU_GPU_SUITE_SECONDS
                   how long each of these suites may take in each place (120)
EGPU_GPU_QUICK     1: without the suite on simulated cards, and without suites of other people
EGPU_GPU_DRY       1: tries this program where there is no card, on simulated ones; of use with
                   EGPU_GPU_ONLY=attacks alone
EGPU_GPU_WORK      a folder for everything but the results (/tmp/egpu-gpu)
"""

import os

ONLY = ("memory", "compute", "attacks", "cost", "floor", "two", "utilization", "achieved", "errors",
        "programs", "latency", "mixes")


class Settings:
    def __init__(self, environment):
        def get(name, default=""):
            return environment.get(f"EGPU_GPU_{name}") or default

        self.only = get("ONLY")
        if self.only and self.only not in ONLY:
            raise SystemExit(f"EGPU_GPU_ONLY={self.only}: one of {', '.join(ONLY)}")
        self.memory, self.compute = get("MEMORY").split(), get("COMPUTE").split()
        if self.only == "cost":
            self.memory = ["initialisation", "allocation", "training"]
        elif self.only == "floor":
            self.memory = ["floor"]
        elif self.only in ("two", "utilization", "achieved", "errors"):
            self.compute = [self.only]
        self.programs, self.pairs = int(get("PROGRAMS", "300")), int(get("PAIRS", "5"))
        self.verbose = bool(get("VERBOSE"))
        self.loads = get("LOADS", "short long graph cooperative training").split()
        self.caps = [int(cap) for cap in get("CAPS", "90 75 50 33 25 10 5").split()]
        self.peer = get("PEER")
        self.latency, self.systems = get("LATENCY").split(), get("SYSTEMS").split()
        self.decoder, self.lines = get("DECODER"), get("LINES").split()
        self.requests = int(get("REQUESTS", "0"))
        self.batches = [int(batch) for batch in get("BATCHES", "16 32 64 128").split()]
        self.suites = get("CASES", "attacks memory").split()
        self.seconds, self.case_seconds = float(get("SECONDS", "420")), get("CASE_SECONDS", "60")
        self.groups = get("GROUPS").split()
        folder = get("PROGRAMS_FOLDER")
        self.programs_folder = os.path.realpath(folder) if folder else ""
        if folder and not os.path.isdir(folder):
            raise SystemExit(f"EGPU_GPU_PROGRAMS_FOLDER={folder}: no such folder")
        self.suite_seconds = float(get("SUITE_SECONDS", "120"))
        self.quick, self.dry = bool(get("QUICK")), bool(get("DRY"))
        self.work = get("WORK", "/tmp/egpu-gpu")


def select(parts, asked, without=()):
    """Picks the functions of the measurements that were asked for, by name, or all."""
    table = {part.__name__: part for part in parts}
    for name in asked:
        if name not in table:
            raise SystemExit(f"no measurement is called {name}: {', '.join(table)}")
    return [table[name] for name in asked or table if asked or table[name] not in without]
