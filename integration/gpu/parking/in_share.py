"""Parks containers that share a card: in_share.py KIND..., of a build with the feature `parking`, beside the package measure.

For each kind (torch, expandable, llm): program.py in a container, parked and brought back, beside a neighbour that takes what was
given back; work that is submitted while it is parked; the command killed in the middle; cuda-checkpoint's calls for the same
program; and a container that ends while it is parked. Needs what run.sh of the folder above needs."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

from measure.node import Node, command_lines  # noqa: E402
from measure.settings import Settings  # noqa: E402

ARGUMENTS, sys.argv[1:] = sys.argv[1:], ["/nowhere", "none"]
import programs  # noqa: E402
from programs import Child, check, checkpoint, judge, say, used  # noqa: E402

cuda = ctypes.CDLL("libcuda.so.1")
SETTINGS = {"expandable": ["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"]}
PROGRAM = {"expandable": "torch"}


# How long the command prepares before the container is stopped, in milliseconds.
before_pause = []


class Neighbour:
    """Takes memory of the card, writes over it, and frees it."""

    def __init__(self):
        context = ctypes.c_void_p()
        codes = cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)
        judge(codes == (0, 0, 0), f"the neighbour's context: {codes}")

    def fill(self, mib):
        address = ctypes.c_uint64()
        code = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib << 20))
        code = code or cuda.cuMemsetD8_v2(address, 0x5E, ctypes.c_size_t(mib << 20)) or cuda.cuCtxSynchronize() or cuda.cuMemFree_v2(address)
        judge(code == 0, f"the neighbour does not get {mib} MiB: {code}")


def egpu(node, *arguments):
    done = node.call_egpu(*arguments)
    say(f"  egpu {arguments[0]}: {done.text}")
    if numbers := re.search(r": ([0-9.]+) ms.*; the command ([0-9]+) ms", done.text):
        paused, whole = map(float, numbers.groups())
        if arguments[0] == "park":
            before_pause.append(whole - paused)
    return done.code == 0


def rounds(node, name, program, neighbour):
    for _ in range(3):
        before = used()
        judge(egpu(node, "park", name), "not parked")
        away = used()
        say(f"  in use {before} MiB, {away} away: {before - away} given back")
        judge(before - away > 8000, "too little is given back")
        neighbour.fill(before - away)
        judge(egpu(node, "unpark", name), "not brought back")
        began, right = check(program)
        say(f"  then a check took {(right - began) * 1e3:.0f} ms; in use {used()} MiB")


def submitted(node, name, program):
    egpu(node, "park", name)
    program.tell("check")
    began = float(program.line().split()[1])
    time.sleep(0.5)
    egpu(node, "unpark", name)
    line = program.line()
    judge(line.startswith("RIGHT"), line)
    say(f"  work submitted while parked: {line.split()[0]}, {(float(line.split()[1]) - began) * 1e3:.0f} ms after it began")


def killed(node, name, program):
    for after in (-300, 0, 100, 200, 300):
        milliseconds = round(sorted(before_pause)[len(before_pause) // 2]) + after
        command = subprocess.Popen(["egpu", "park", name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        time.sleep(milliseconds / 1e3)
        over = command.poll() is not None
        command.kill()
        command.wait()
        time.sleep(0.3)
        if not over:
            line = node.call_egpu("unpark", name).text
            say(f"  the command killed after {milliseconds} ms; then unpark: {line}")
        else:
            say(f"  the command was over after {milliseconds} ms")
            egpu(node, "unpark", name)
        check(program)


def run(node, kind, neighbour):
    say(f"==== {kind}, in a share")
    failures, empty = programs.failures, used()
    node.launch(kind, ["EGPU_DEVICES=0", "EGPU_MEMORY=24GiB", "HF_HUB_OFFLINE=1", *SETTINGS.get(kind, [])])
    shutil.copy(f"{HERE}/program.py", f"{node.root(kind)}/tmp/")
    program = Child(node.exec_command(kind, ["python3", "-u", "/tmp/program.py", PROGRAM.get(kind, kind), "8"]))
    try:
        while not (line := program.line(150)).startswith(("READY", "WRONG")):
            say(line)
        judge(line == "READY", line)
        check(program)
        say(f"  it has {used() - empty} MiB by NVML")
        rounds(node, kind, program, neighbour)
        submitted(node, kind, program)
        if kind == "torch":
            killed(node, kind, program)
            program.process.pid = next((pid for pid, line in command_lines() if line.endswith("program.py torch 8") and "ctr" not in line), 0)
            if "CHECKPOINT" in os.environ:
                checkpoint(program)
        egpu(node, "park", kind)
        node.stop(kind)
        time.sleep(1)
        say(f"  ended while parked: in use {used()} MiB, {empty} before it began")
    except Exception as error:
        judge(False, f"{kind}: {type(error).__name__}: {error}")
    finally:
        node.stop(kind)
    say(f"{'PASSED' if programs.failures == failures else 'FAILED'} {kind}")


settings = Settings(os.environ)
os.environ.setdefault("EGPU_CONFIG", f"{settings.work}/config.toml")
with Node(os.path.dirname(HERE), HERE, settings) as one:
    other = Neighbour()
    for each in ARGUMENTS:
        run(one, each, other)
sys.exit(programs.failures != 0)
