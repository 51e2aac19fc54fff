"""Memory pools and frameworks: short programs that end well, or do not."""

from measure.programs import suites
from measure.programs.compare import outcome
from measure.programs.places import SIDES, python_path, versions
from measure.programs.rows import installed
from measure.programs.tools import show

LOADS = "@program_loads.py"
ASYNC = ["PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync"]

# (name, package, cards, command, settings, what it prints when it ends well)
POOLS = [
    ("memory pool, exported", None, 1, ["@memory_pools", "export"], [], "fine"),
    ("memory pool, used by another card", None, 2, ["@memory_pools", "access"], [], "fine"),
    ("block of 600 MiB, used by another card", None, 2, ["@memory_pools", "big"], [], "fine")]
FRAMEWORKS = [
    ("PyTorch, matrices", "torch", 1, ["python3", "@torch_check.py"], [], "computed"),
    ("PyTorch, cudaMallocAsync", "torch", 1, ["python3", "@torch_check.py"], ASYNC, "computed"),
    ("PyTorch, copies between cards", "torch", 2, ["python3", LOADS, "copy"], [], "fine"),
    ("PyTorch, cudaMallocAsync, copies between cards", "torch", 2, ["python3", LOADS, "copy"],
     ASYNC, "fine"),
    ("NCCL, all-reduce", "torch", 2, ["python3", LOADS, "nccl"], [], "fine"),
    ("JAX, default allocator", "jax", 1, ["python3", LOADS, "jax"], [], "fine"),
    ("JAX, default allocator", "jax", 2, ["python3", LOADS, "jax"], [], "fine"),
    ("JAX, cuda_async", "jax", 2, ["python3", LOADS, "jax"],
     ["XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async"], "fine")]
PROFILER = ("torch.profiler (CUPTI)", "torch", 1, ["python3", LOADS, "profiler"], [], "fine")
VLLM = ("vLLM", "vllm", 1, ["python3", LOADS, "vllm"], [], "fine")


def run_load(places, rows, load, seconds=90, version=""):
    name, package, cards, command, settings, last = load
    if cards != places.cards:
        return None
    version = installed(package) if package else version
    if package and not version:
        return rows.skip(name, cards, f"python3 has no {package}")
    ends = places.both(command, seconds, settings)
    found = {side: {"ends well": outcome(
        ends[side].code == 0 and last in ends[side].text.splitlines())} for side in SIDES}
    if "failed" in (found["outside"]["ends well"], found["inside"]["ends well"]):
        show(ends)
    return rows.judge(name, version, cards, *found.values())


def profiler(places, rows, _):
    run_load(places, rows, PROFILER)


def pools(places, rows, _):
    for load in POOLS:
        run_load(places, rows, load)


def frameworks(places, rows, _):
    for load in FRAMEWORKS:
        run_load(places, rows, load)


def rmm(places, rows, settings):
    """Pools of RMM, and its own tests where they are."""
    version = versions(places.folder).get("rmm-cu13", "") or installed("rmm-cu13")
    load = ("RMM, pools", None, places.cards, ["python3", LOADS, "rmm", str(places.cards)],
            [python_path(places.folder)], "fine")
    if version:
        run_load(places, rows, load, version=version)
    else:
        rows.skip(load[0], places.cards, "python3 has no rmm, and none was fetched")
    suites.run("rmm", places, rows, settings)


def vllm(places, rows, _):
    run_load(places, rows, VLLM, seconds=300)
