"""Memory of other people's programs leaves the card and comes back: programs.py FOLDER [KIND...], FOLDER with mover and
libattach.so. Kinds: torch, expandable, async, llm, jax; what follows a colon is options: import, watch, checkpoint, rounds=N, gib=N."""

import ctypes
import os
import select
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER, KINDS = sys.argv[1], sys.argv[2:] or ["torch:watch:checkpoint", "expandable", "llm:checkpoint", "jax", "async"]
SETTINGS = {"expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}}
PROGRAM = {"expandable": "torch", "async": "torch"}
failures = 0


def say(*what):
    print(*what, flush=True)


def judge(good, what):
    global failures
    if not good:
        failures += 1
        say("  WRONG:", what)


def used():
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True)
    return int(out.stdout.split()[0])


class Child:
    def __init__(self, command, **more):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **more)
        self.rest = b""

    def line(self, limit=90):
        end = time.monotonic() + limit
        while b"\n" not in self.rest:
            if not select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError(f"no answer in {limit} s")
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                raise EOFError(f"it has ended: {self.process.wait()}")
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode()

    def tell(self, order):
        self.process.stdin.write(order.encode() + b"\n")
        self.process.stdin.flush()

    def end(self):
        self.process.kill()
        self.process.wait()


class Mover(Child):
    def answer(self, silent=False, limit=90):
        while (line := self.line(limit)) != ".":
            if "FAILED" in line or not silent:
                say(line)
            judge("FAILED" not in line, line)
            if "FAILED" in line:
                raise RuntimeError(line)

    def ask(self, order, silent=False):
        self.tell(order)
        self.answer(silent)


def answer_of(program):
    began = float(program.line().split()[1])
    line = program.line()
    judge(line.startswith("RIGHT"), line)
    return began, float(line.split()[1]) if line.startswith("RIGHT") else time.monotonic()


def check(program):
    program.tell("check")
    return answer_of(program)


def demand(program, mover):
    mover.ask("out", True)
    mover.tell("watch 5000 1900 all streaming")
    mover.answer(True)
    time.sleep(0.2)
    program.tell("check")
    began = float(program.line().split()[1])
    noticed = mover.line()
    mover.answer(True)
    at = float(noticed.split("at ")[1].split(";")[0]) if "noticed at" in noticed else None
    judge(at is not None, "the work was not noticed")
    mover.ask("in", True)
    on = time.monotonic()
    line = program.line()
    judge(line.startswith("RIGHT"), line)
    say(f"  work submitted while away: noticed {(at - began) * 1e3:.2f} ms after it began, all of it done {(float(line.split()[1]) - began) * 1e3:.0f} ms after that (channels on after {(on - began) * 1e3:.0f}): {line.split()[0]}"
        if at else "  not noticed")


def watch(mover):
    for how in ("1000 all one", "1000 all streaming", "1900 all streaming", "1900 used one", "1900 used streaming"):
        mover.tell(f"watch 2000 {how}")
        mover.answer(True)
        mover.answer()


def checkpoint(program):
    cuda = ctypes.CDLL("libcuda.so.1")
    say("  cuInit", cuda.cuInit(0), "; cuCheckpointProcess*, in ms:")
    pid = program.process.pid
    for _ in range(3):
        before, times, codes = used(), [], []
        for step in ("Lock", "Checkpoint", "Restore", "Unlock"):
            begin = time.monotonic()
            codes.append(getattr(cuda, f"cuCheckpointProcess{step}")(pid, None))
            times.append((time.monotonic() - begin) * 1e3)
            if step == "Checkpoint":
                away = used()
        say("  " + ", ".join(f"{step} {t:.0f}" for step, t in zip(("lock", "checkpoint", "restore", "unlock"), times)),
            f"; codes {codes}; in use {before} MiB, {away} away: {before - away} given back")
        if any(codes):
            return
        began, right = check(program)
        say(f"  right after it; its next check took {(right - began) * 1e3:.0f} ms")


def run(kind, options):
    gib = next((o[4:] for o in options if o.startswith("gib=")), "8")
    rounds = next((int(o[7:]) for o in options if o.startswith("rounds=")), 5)
    how = "import" if "import" in options else "window"
    say(f"==== {kind} {' '.join(options)}")
    empty = used()
    settings = {**os.environ, **SETTINGS.get(kind, {}), "LD_PRELOAD": f"{FOLDER}/libattach.so", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    program, mover = Child([sys.executable, f"{HERE}/program.py", PROGRAM.get(kind, kind), gib], env=settings), None
    try:
        while not (line := program.line(150)).startswith(("READY", "WRONG")):
            say(line)
        judge(line == "READY", line)
        has = used() - empty
        began, right = check(program)
        say(f"  the program has {has} MiB of the card by NVML; a check takes {(right - began) * 1e3:.0f} ms")
        mover = Mover([f"{FOLDER}/mover", str(program.process.pid)], cwd=HERE)
        mover.answer(True)
        mover.ask("table")
        mover.ask(f"prepare {how}")
        for number in range(rounds):
            silent = 1 < number < rounds - 1
            mover.ask("out" if not silent else "out silently", silent)
            mover.ask("neighbour", silent or number > 0)
            mover.ask("in" if not silent else "in silently", silent)
            began, right = check(program)
            if not silent:
                say(f"  then a check took {(right - began) * 1e3:.0f} ms")
        for _ in range(3):
            demand(program, mover)
        if "watch" in options:
            watch(mover)
        mover.ask("finish")
        mover.tell("quit")
        mover.process.wait(20)
        mover = None
        check(program)
        if "checkpoint" in options:
            checkpoint(program)
        say(f"PASSED {kind}, {failures} failures so far")
    except Exception as error:
        judge(False, f"{kind}: {type(error).__name__}: {error}")
        say(f"FAILED {kind}")
    finally:
        for child in (mover, program):
            child and child.end()


if __name__ == "__main__":
    for one in KINDS:
        run(one.split(":")[0], one.split(":")[1:])
    sys.exit(failures != 0)
