"""Other people's programs and test suites in a share, against the same outside."""

import functools
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from measure.programs import events, getters, llama, loads, samples, suites, tools
from measure.programs.places import Places, shared
from measure.programs.rows import Rows

SCRIPTS = ("program_loads.py", "torch_check.py", "nvml_getters.py", "run_tests.py",
           "llama_server.py", "llama_model.py")


@dataclass
class Group:
    """Programs that are tried together, on so many cards; `built` is what they need of ours."""

    run: Callable
    cards: tuple = (1,)
    built: str = ""
    quick: bool = True


def of_suites(name, *cards):
    return Group(functools.partial(suites.run, name), cards, quick=False)


GROUPS = {
    "sanitizer": Group(tools.sanitizer, built="planted_faults"),
    "debugger": Group(tools.debugger, built="planted_faults"),
    "ncu": Group(tools.ncu, built="planted_faults"),
    "mps": Group(tools.mps),
    "profiler": Group(loads.profiler),
    "pools": Group(loads.pools, cards=(1, 2), built="memory_pools"),
    "frameworks": Group(loads.frameworks, cards=(1, 2)),
    "getters": Group(getters.getters),
    "events": Group(events.events),
    "vllm": Group(loads.vllm, quick=False),
    "llama": Group(llama.llama, quick=False),
    "samples": Group(samples.samples, cards=(1, 2), quick=False),
    "pytorch": of_suites("pytorch", 1, 2),
    "cupy": of_suites("cupy", 1, 2),
    "numba": of_suites("numba", 1),
    "rmm": Group(loads.rmm, cards=(1, 2), quick=False),
}


def selected(settings):
    """The groups that were asked for, by name; else all, or those that take minutes only."""
    for name in settings.groups:
        if name not in GROUPS:
            raise SystemExit(f"no group of programs is called {name}: {', '.join(GROUPS)}")
    return settings.groups or [name for name, one in GROUPS.items()
                               if one.quick or not settings.quick]


def prepare(node):
    """Makes the folder that both places have; returns the programs that were built for it."""
    folder = shared(node)
    os.makedirs(folder, exist_ok=True)
    for source in (*(f"{node.folder}/{name}" for name in SCRIPTS), f"{node.programs}/cuda-load"):
        shutil.copy(source, folder)
    return tools.build(node, folder)


def run_group(suite, rows, built, cards, name):
    """Runs a group in a share of its own, which no other group has left anything in."""
    group = GROUPS[name]
    suite.report.title(f"programs: {name}, cards: {cards}")
    if group.built and group.built not in built:
        rows.skip(name, cards, "nvcc is not installed, or does not build what it needs")
        return
    with Places(suite.node, cards, suite.settings.programs_folder) as places:
        group.run(places, rows, suite.settings)


def run(suite):
    node, names = suite.node, selected(suite.settings)
    rows, built = Rows(suite.report), prepare(node)
    for cards in (1, 2):
        if cards > len(node.uuids):
            suite.report.skip("programs on two cards: there is one card only")
            continue
        for name in names:
            if cards in GROUPS[name].cards:
                part = functools.partial(run_group, rows=rows, built=built, cards=cards, name=name)
                part.__name__ = f"{name}, cards: {cards},"
                suite.run(part)
    model = node.nvidia_smi("--query-gpu=name", "--format=csv,noheader").split("\n")[0]
    rows.keep(node, model)
