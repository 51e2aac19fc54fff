"""Systems that let a latency-critical program and batch work share a card."""

import contextlib
import signal
from dataclasses import dataclass

MPS = "nvidia-cuda-mps-control"


@dataclass
class Sides:
    """Where the two programs run: in containers of their names, or outside with a prefix each."""

    inside: bool = False
    high: tuple = ()
    low: tuple = ()


@contextlib.contextmanager
def egpu(suite, *settings):
    """Containers `high` and `low`; settings are lines of egpu's configuration."""
    with contextlib.ExitStack() as stack:
        for line in settings:
            stack.enter_context(suite.node.setting(line))
        suite.ask("high")
        suite.ask("low")
        try:
            yield Sides(inside=True)
        finally:
            suite.end("high", "low")


def harvest(suite):
    return egpu(suite)


def strict(suite):
    return egpu(suite, 'priority = "strict"')


@contextlib.contextmanager
def time_slicing(_):
    yield Sides()


@contextlib.contextmanager
def mps(suite):
    """A daemon of its own; each of its servers is ended with it."""
    node = suite.node
    if not node.on_host("sh", "-c", f"command -v {MPS}"):
        yield suite.report.skip(f"MPS: this machine has no {MPS}")
        return
    folder = f"{node.work}/mps{node.now_us()}"
    node.on_host("mkdir", folder)
    there = [f"CUDA_MPS_PIPE_DIRECTORY={folder}", f"CUDA_MPS_LOG_DIRECTORY={folder}"]
    node.spawn(None, ["env", *there, MPS, "-d"], f"{folder}/daemon")
    ask = " ".join(["env", *there, "timeout", "15", MPS])
    node.sleep(1)
    client = ["env", there[0]]
    try:
        yield Sides(high=(*client, "CUDA_MPS_CLIENT_PRIORITY=0"),
                    low=(*client, "CUDA_MPS_CLIENT_PRIORITY=1"))
    finally:
        servers = node.on_host("sh", "-c", f"echo get_server_list | {ask}").split()
        daemon = node.read(f"{folder}/{MPS}.pid").split()
        node.on_host("sh", "-c", f"echo quit -t 5 | {ask}")
        for pid in filter(str.isdigit, servers + daemon):
            node.kill(int(pid), signal.SIGKILL)
        print(f"MPS: servers {' '.join(servers) or 'none: nobody was its client'}")


@contextlib.contextmanager
def hami_core(suite):
    """HAMi-core outside containers, by the variables that its device plugin sets.

    Its library holds a low priority back only where there is a limit, and by what a daemon of the
    node tells it: the low one has a limit of what is left to it.
    """
    peer = suite.settings.peer
    if not peer:
        yield suite.report.skip("HAMi-core: EGPU_GPU_PEER names no library")
        return
    both = ("env", f"LD_PRELOAD={peer}", "LIBCUDA_LOG_LEVEL=1", "CUDA_DEVICE_MEMORY_LIMIT=16g")
    cache = f"CUDA_DEVICE_MEMORY_SHARED_CACHE={suite.node.work}/peer{suite.node.now_us()}"
    yield Sides(
        high=(*both, f"{cache}high", "CUDA_TASK_PRIORITY=0"),
        low=(*both, f"{cache}low", "CUDA_TASK_PRIORITY=1", "CUDA_DEVICE_SM_LIMIT=70",
             "GPU_CORE_UTILIZATION_POLICY=force"))


# By the names that tables have, the most wanted first.
SYSTEMS = {"egpu-harvest": harvest, "egpu-strict": strict, "time-slicing": time_slicing,
           "MPS": mps, "HAMi-core": hami_core}
