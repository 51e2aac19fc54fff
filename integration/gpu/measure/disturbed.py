"""Shares beside neighbours that disturb them, and what it costs to keep shares."""

import os
import subprocess

from measure.figures import (
    at_least, at_most, batch_times, percent, quantile, ratio, samples, text, within)


def needs(suite, name, program):
    there = suite.node.exists(f"{suite.node.tools}/{program}")
    if not there:
        suite.report.skip(f"{name}: the bundle has no {program}")
    return there


def flood(suite):
    """Seven neighbours that call the driver: an edge waits for its locks and its firmware."""
    if not needs(suite, "a flood", "hostile"):
        return
    report = suite.report
    report.title("compute: a busy container beside seven that flood the driver with calls")
    suite.measure_alone("short")
    names = [f"f{number}" for number in range(1, 8)]
    for name in names:
        suite.share(name, "EGPU_COMPUTE=5%", "EGPU_MEMORY=2GiB")
    suite.keep_busy(90, "short", v="EGPU_COMPUTE=50%")
    suite.node.sleep(1)
    [quiet] = suite.percents(4, "v")
    for name in names:
        suite.begin(name, name, ["/tmp/hostile", "flood", "30", "4"])
    suite.node.sleep(2)
    [beside] = suite.percents(6, "v")
    scheduling_cost(suite, "in the flood")
    for name in names:
        print(f"{name}: {' '.join(suite.output(name).splitlines())}")
    report.row("in a flood", "short", "v", 50, beside)
    print(f"50 percent: {quiet} beside idle neighbours, {beside} in the flood")
    report.check("its share holds within 1 point in a flood", within(beside, 50, 1))
    suite.end("v", *names)


def preemption(suite):
    """Kernels of 300 ms of a program that does not ask for preemption at any instruction.

    CUDA does ask; no_preemption.c holds that back.
    """
    if not needs(suite, "preemption", "no-preemption.so"):
        return
    report = suite.report
    report.title("compute: kernels of 300 ms that do not ask to be preemptible, beside short ones")
    suite.measure_alone("long", 4)
    suite.measure_alone("short")
    suite.share("p1", "EGPU_COMPUTE=25%")
    preload = ["env", "LD_PRELOAD=/tmp/no-preemption.so"]
    suite.begin("p1", "p1", [*preload, *suite.load("long", "p1", 25)], "long")
    suite.keep_busy(20, "short", p2="EGPU_COMPUTE=50%")
    suite.node.sleep(3)
    long, short = suite.percents(8, "p1", "p2")
    print(f"25 percent: {long}; beside it 50 percent: {short}")
    report.check("the long ones keep to their share", within(long, 25, 1.5))
    report.check("the short ones have theirs", within(short, 50, 1))
    suite.top()
    suite.settle()
    report.check("what it asked for was held back", "held back" in suite.output("p1"))
    suite.end("p1", "p2")


def migrate(suite):
    """Copies that the kernel makes for a program, on channels of its own, outside all turns."""
    report = suite.report
    report.title("compute: managed memory that is moved all the time (10 percent) beside copies "
                 "(50 percent) and kernels (40 percent)")
    for kind in ("copy", "migrate", "short"):
        suite.measure_alone(kind, 2, 5)
    suite.share("mm", "EGPU_COMPUTE=10%")
    suite.keep_busy(60, "copy", mc="EGPU_COMPUTE=50%")
    suite.keep_busy(60, "short", mk="EGPU_COMPUTE=40%")
    suite.node.sleep(1)
    asked = {"mc": 50, "mk": 40}
    quiet = suite.percents(3, *asked)
    suite.begin_load("mm", "migrate", 60)
    suite.await_work("mm")
    suite.node.sleep(1)
    *beside, moves = suite.percents(4, *asked, "mm")
    print(f"copies: {quiet[0]} percent, beside the moves {beside[0]}")
    print(f"kernels: {quiet[1]} percent, beside the moves {beside[1]}")
    print(f"the moves: {moves} percent of alone")
    suite.rows("beside moves of managed memory", asked, beside)
    report.check("kernels keep to their share within 1 point", within(beside[1], 40, 1))
    suite.top()
    suite.end(*asked, "mm")


def beside(suite, name, after, command):
    """Measures what kernels of 50 and writes of 40 percent lose by a neighbour of 10 percent.

    It has run for so many seconds by then: what may be asked for at once is used up.
    """
    report = suite.report
    for kind in ("short", "memory"):
        suite.measure_alone(kind, 2, 5)
    suite.share("bb", "EGPU_COMPUTE=10%")
    suite.keep_busy(after + 25, "short", bk="EGPU_COMPUTE=50%")
    suite.keep_busy(after + 25, "memory", bm="EGPU_COMPUTE=40%")
    suite.node.sleep(1)
    asked = {"bk": 50, "bm": 40}
    quiet = suite.percents(4, *asked)
    suite.top()
    suite.begin("bb", "bb", command)
    suite.node.sleep(after)
    loud = suite.percents(6, *asked)
    suite.top()
    print(f"kernels, 50 percent: {quiet[0]}, beside {name} {loud[0]}")
    print(f"writes of memory, 40 percent: {quiet[1]}, beside {name} {loud[1]}")
    suite.rows(f"beside {name}", asked, loud)
    report.check("kernels keep what they had within 1 point", within(loud[0], quiet[0], 1))
    report.check("writes keep what they had within 1 point", within(loud[1], quiet[1], 1))
    # It ends by itself, and prints how much it did.
    for _ in range(150):
        if any(word in suite.output("bb") for word in "calls"):
            break
        suite.node.sleep(0.1)
    suite.end(*asked, "bb")
    print("its own count:", *suite.output("bb").splitlines()[-3:])


def scrub(suite):
    """The driver writes over freed memory on channels of its own, in everybody's time."""
    suite.report.title("compute: beside memory that is taken and freed, 14 GiB at a time")
    beside(suite, "freed memory", 8, ["/tmp/hostile", "flood", "16", "4", "3584"])


def firmware(suite):
    """Calls that succeed and that only the firmware can answer."""
    suite.report.title("compute: beside eight threads of calls to the firmware that succeed")
    beside(suite, "calls to the firmware", 1, ["/tmp/hostile", "flood-firmware", "10", "8"])


def churn(suite):
    """The driver makes and frees each context in 0.1 s, under the locks that edges need."""
    suite.report.title("compute: beside contexts that are made and freed without end")
    script = """for n in 1 2 3 4; do (until=$(($(date +%s) + 38)); count=0
        while [ $(date +%s) -lt $until ]; do
        /tmp/cuda-load init >/dev/null; count=$((count + 1)); done
        echo "contexts $count") & done; wait"""
    beside(suite, "contexts", 30, ["sh", "-c", script])


# Processes that start each second, for how long they do, and the length of a batch at its cap.
STARTS, STARTS_SECONDS, BATCH_MS = (0, 1, 5), 24, 100
LOST = ("lost_us", "edge_wait_us", "slow_edges", "longest_edge_us")


def starts(suite):
    """CUDA processes that start outside egpu hold the driver's locks, and compute."""
    suite.report.title("compute: beside CUDA processes that start outside egpu, on the same card")
    if not needs(suite, "starts", "cuda-load"):
        return
    suite.measure_alone("short")
    bare_beside_starts(suite, STARTS[-1])
    for caps in ({"s25": 25}, {"s25": 25, "s75": 75}):
        settings = {name: f"EGPU_COMPUTE={cap}%" for name, cap in caps.items()}
        suite.keep_busy(len(STARTS) * (STARTS_SECONDS + 6), "short", **settings)
        suite.node.sleep(1)
        for rate in STARTS:
            beside_starts(suite, caps, rate)
        suite.end(*caps)


def begin_starts(suite, card, rate):
    suite.begin("starts", None, ["sh", "-c", starter(suite.node.tools, card, rate)])
    suite.node.sleep(1)


def await_starts(suite):
    suite.running.pop("starts").wait()
    print(*(line for line in suite.output("starts").splitlines() if "starts" in line), sep="\n")


def bare_beside_starts(suite, rate):
    """Measures what the starts cost a load that nobody caps: what they compute themselves."""
    suite.begin("bare", None, suite.load("short", None, STARTS_SECONDS + 6), "short")
    suite.await_work("bare")
    begin_starts(suite, "0", rate)
    [have] = suite.percents(STARTS_SECONDS - 3, "bare")
    await_starts(suite)
    suite.settle()
    print(f"outside, without a cap, {rate} starts/s: has {have} percent of what it does alone")


def beside_starts(suite, caps, rate):
    """Measures capped loads beside so many starts a second."""
    node, layout = suite.node, "+".join(str(cap) for cap in caps.values())
    if rate:
        begin_starts(suite, next(iter(node.granted("s25")), "0"), rate)
    before, start = lost(node), node.now_us()
    achieved = suite.percents(STARTS_SECONDS - 3, *caps)
    after, end = lost(node), node.now_us()
    if rate:
        await_starts(suite)
    suite.rows(f"{layout} beside {rate} starts/s", caps, achieved)
    for (name, cap), have in zip(caps.items(), achieved):
        work = (suite.alone_rates["short"] or 0) * cap / 100 * BATCH_MS / 1000
        times = batch_times(samples(suite.output(name)), start, node.now_us(), work)
        p50, p90, most = (text(quantile(times, part), 1) for part in (0.5, 0.9, 1))
        counted = {key: after[name][key] - before[name][key] for key in LOST[:3]}
        counted["longest_edge_us"] = after[name]["longest_edge_us"]
        told = percent(counted["lost_us"], end - start)
        print(f"{layout}, {rate} starts/s: {cap} percent has {have} and is told that it lost "
              f"{told}; batches of {BATCH_MS} ms: p50 {p50} p90 {p90} max {most} ms; "
              + " ".join(f"{key} {value}" for key, value in counted.items()))
        what = f"{layout}, {rate} starts/s: {cap} percent"
        if len(caps) == 1 or not rate:
            suite.report.check(f"{what} holds within 1 point", within(have, cap, 1))
        # Programs outside compute, too, for which a card that is granted whole has no time.
        name = f"{what} is told within 1 point what it lacks, and has no more than its share"
        suite.report.check(name, within(have + told, cap, 1) and at_most(have, cap + 1))


def starter(tools, card, rate):
    """A shell that starts CUDA programs on a card, at a pace that does not wait for their ends."""
    environment = f"CUDA_VISIBLE_DEVICES={card}"
    return (f"for n in $(seq {rate * STARTS_SECONDS}); do "
            f"{environment} {tools}/cuda-load init >/dev/null & sleep {1 / rate:.3f}; done; "
            f"wait; echo starts {rate * STARTS_SECONDS}")


def lost(node):
    """Returns what each container lost of its turns, and what its edges waited for."""
    top = node.json("top", "-n", "1")
    return {one["id"]: {key: one["cards"][0][key] for key in LOST} for one in top["containers"]}


def endless(suite):
    """A block of 20 s that cannot be preempted, outside egpu: how long the firmware waits."""
    node = suite.node
    suite.report.title("compute: channels taken off the card in the middle of a block of 20 s that "
                       "cannot be preempted (outside egpu)")
    before = node.kernel_log("NVRM") or []
    suite.measure_alone("short", 2, 5)
    suite.keep_busy(40, "short", e50="EGPU_COMPUTE=50%")
    load = [f"{node.tools}/compute-load", "run", "long", str(int(suite.iterations["long"]) * 66)]
    preload = [f"LD_PRELOAD={node.tools}/no-preemption.so", "TAKE_OFF_AFTER=4"]
    suite.begin("endless", None, ["env", *preload, *load, "30"])
    node.sleep(20)
    suite.top()
    print(*node.egpu("inspect", "e50").splitlines()[-20:], sep="\n")
    print("output of the block's program:")
    said = suite.output("endless").splitlines()
    print(*(line for line in said if not line[:1].isdigit()), sep="\n")
    now = node.now_us()
    rate = suite.rate("e50", now - 16_000_000, now - 1_000_000)
    print(f"the 50 percent: {percent(rate, suite.alone_rates['short'])} in these 15 s")
    suite.settle()
    suite.end("e50")
    print("the driver's new lines in the kernel's log:")
    print(*(node.kernel_log("NVRM") or [])[len(before):][:20], sep="\n")


def card_rows(top):
    """Returns the cards of all containers, as `egpu top` has them."""
    return [card for one in top["containers"] for card in one["cards"]]


def scheduler_cpu_us(node):
    """Processor time of all threads that schedule, and of that what went into driver calls."""
    cards = card_rows(node.json("top", "-n", "1"))
    return [sum(card[key] for card in cards)
            for key in ("scheduler_cpu_us", "scheduler_driver_cpu_us")]


def scheduling_cost(suite, when):
    """Measures for 10 s what scheduling costs the host."""
    node = suite.node
    threads, (total, inside), start = node.processor_ticks(), scheduler_cpu_us(node), node.now_us()
    node.sleep(10)
    end, (total_after, inside_after), after = (
        node.now_us(), scheduler_cpu_us(node), node.processor_ticks())
    inside = inside_after - inside
    outside = percent(total_after - total - inside, end - start)
    print(f"{when}: the schedulers' processor time is {outside} percent of a core outside driver "
          f"calls, {percent(inside, end - start)} in them")
    name = "outside driver calls it is at most 2 percent of a core"
    suite.report.check(name, at_most(outside, 2))
    print(f"{when}; thread, percent of a core in user mode and in the kernel:")
    tick_us = 1e6 / os.sysconf("SC_CLK_TCK")
    for name in sorted(threads.keys() & after.keys()):
        user, kernel = (percent((new - old) * tick_us, end - start)
                        for old, new in zip(threads[name], after[name]))
        print(f"  {name:<18} {user:6.2f} {kernel:6.2f}")
    for card in card_rows(node.json("top", "-n", "1")):
        print("  ", {key: value for key, value in card.items()
                     if not isinstance(value, (dict, list))})


def edges(suite):
    suite.report.title("compute: eight containers on a card: the schedulers' own cost and lateness")
    suite.measure_alone("short")
    names = [f"e{number}" for number in range(1, 9)]
    suite.keep_busy(60, "short", **dict.fromkeys(names, "EGPU_COMPUTE=12%"))
    suite.node.sleep(1)
    scheduling_cost(suite, "an idle host")
    achieved = suite.percents(3, *names)
    print(*map("{}".format, achieved), f"sum {sum(achieved):.2f}")
    with BusyCores():
        suite.node.sleep(1)
        scheduling_cost(suite, "every core of the host busy")
    suite.end(*names)


class BusyCores:
    """A program without end on each core of the host."""

    def __enter__(self):
        command = ["sh", "-c", "while :; do :; done"]
        self.programs = [subprocess.Popen(command) for _ in range(os.cpu_count())]

    def __exit__(self, *_):
        for program in self.programs:
            program.kill()
            program.wait()


FAILING = """import torch
x = torch.zeros(4, device="cuda")
print("begun", flush=True)
try: print(x[torch.tensor([9], device="cuda")]); torch.cuda.synchronize()
except Exception as error: print(str(error).splitlines()[0])
"""


def errors(suite):
    """A kernel that fails: its program is told what it is told outside; neighbours go on."""
    node, report = suite.node, suite.report
    if not suite.needs_torch("errors"):
        return
    report.title("compute: kernels that fail")
    program = ["timeout", "60", "python3", "-c", FAILING]
    outside = (node.on_host(*program).splitlines() or [""])[-1]
    suite.measure_alone("short")
    suite.share("f1", "EGPU_COMPUTE=40%")
    suite.keep_busy(60, "short", f2="EGPU_COMPUTE=40%")
    [before] = suite.rates(2, "f2")
    inside = (node.exec("f1", *program, errors=False).splitlines() or [""])[-1]
    [after] = suite.rates(2, "f2")
    print(f"outside: {outside}")
    print(f"inside:  {inside}")
    name = "an assertion in a kernel is told as it is outside"
    report.check(name, inside and inside == outside)
    print(f"the neighbour: {text(before, 3)} rounds/s before, {text(after, 3)} after")
    report.check("the neighbour goes on", at_least(ratio(after, before), 0.95))
    suite.end("f1", "f2")


# CUDA has 4 channel groups and 20 channels for a context, and a container may have 64 groups: so
# that many processes.
MANY = "short x 16"


def groups(suite):
    """Many channel groups in a container, and many channels in a group."""
    suite.report.title("compute: 16 processes (64 channel groups, 320 channels) beside one, and 32 "
                       "streams")
    suite.measure_alone("short", 2, 5)
    suite.measure_alone("streams", 2, 5)
    # They take turns with one another, which costs a part of what one process does.
    suite.measure_alone(MANY, 2, 8)
    groups_soft(suite)
    groups_priority(suite)
    groups_capped(suite)


def groups_soft(suite):
    report = suite.report
    suite.policy("soft")
    suite.share("g1", "EGPU_WEIGHT=1", "EGPU_POLICY=soft")
    suite.share("g16", "EGPU_WEIGHT=1", "EGPU_POLICY=soft")
    suite.begin_load("g16", MANY, 60)
    suite.begin_load("g1", "short", 60)
    suite.await_work("g16", "g1")
    # Groups that begin all at once have more for a second or two.
    suite.node.sleep(2)
    several, one = suite.percents(5, "g16", "g1")
    print(f"soft, weights 1:1: 16 processes {several} percent of what they do alone, one {one}")
    suite.rows("soft 1:1, many groups", {"g16": 50, "g1": 50}, (several, one))
    # Each loses some of its share by the changes between them.
    report.check("soft: 16 processes have no more than one share", at_most(several, 50))
    name = "soft: the one beside them keeps its share, less what changes cost"
    report.check(name, at_least(one, 40))
    suite.top()
    suite.end("g16", "g1")
    said = suite.output("g16").splitlines()
    print(*(line for line in said if "ended" in line or ": CUDA" in line), sep="\n")
    suite.policy("fixed")


def groups_priority(suite):
    suite.share("high", "EGPU_PRIORITY=high")
    suite.keep_busy(60, MANY, low="EGPU_PRIORITY=low")
    suite.begin_load("high", "short", 60)
    suite.await_work("high")
    suite.node.sleep(1)
    one, several = suite.percents(3, "high", "low")
    print(f"priority: high {one} percent, 16 processes of low priority {several}")
    name = "high has at least 90 percent beside 16 processes of low priority"
    suite.report.check(name, at_least(one, 90))
    suite.report.check("which have at most 5 percent", at_most(several, 5))
    suite.end("high", "low")


def groups_capped(suite):
    report = suite.report
    suite.keep_busy(60, "streams", c32="EGPU_COMPUTE=25%")
    suite.keep_busy(60, MANY, c16="EGPU_COMPUTE=25%")
    suite.node.sleep(1)
    one, several = suite.percents(5, "c32", "c16")
    print(f"25 percent each: 32 streams {one}, 16 processes {several}")
    report.row("cap, many channels", "streams", "c32", 25, one)
    report.row("cap, many groups", "short", "c16", 25, several)
    report.check("32 streams are within 1 point", within(one, 25, 1))
    report.check("16 processes are within 1 point", within(several, 25, 1))
    suite.top()
    suite.end("c32", "c16")
