"""Shares of a card's time, beside what was granted."""

import math
import os
import re
import signal

from measure.figures import at_least, at_most, percent, ratio, text, within, worst_error
from measure.node import NCCL, NCCL_OPTIONS


def caps(suite):
    report, settings = suite.report, suite.settings
    report.title("compute: a hard cap, alone on the card")
    print(f"{'load':<12} achieved percent of the same outside, for each percent asked")
    for kind in settings.loads:
        if kind == "training" and not suite.needs_torch("training"):
            continue
        suite.measure_alone(kind)
        suite.keep_busy(90, kind, caps="EGPU_COMPUTE=90%")
        found = {}
        for cap in settings.caps:
            done = suite.node.call_egpu("set", "caps", "--compute", f"{cap}%", "--wait")
            if done.code:
                print(f"egpu set caps --compute {cap}%:", done.text, sep="\n")
                continue
            suite.node.sleep(0.4)
            [found[cap]] = suite.percents(5 if cap <= 10 else 3, "caps")
            report.row("cap, alone", kind, "one", cap, found[cap])
        worst = worst_error((have, cap) for cap, have in found.items())
        print(f"{kind:<12} {by_cap(found.items())}")
        name = f"{kind}: each cap within 1 point (worst {worst:.2f})"
        report.check(name, len(found) == len(settings.caps) and worst <= 1)
        suite.top(lines=2)
        suite.end("caps")
        if settings.peer:
            peer_caps(suite, kind)


def by_cap(found):
    return "".join(f" {cap}: {have} " for cap, have in found)


def peer_caps(suite, kind):
    """Measures the same load on the same card under the other library, outside."""
    peer, found = suite.settings.peer, {}
    name = os.path.basename(peer)
    for cap in suite.settings.caps:
        cache = f"CUDA_DEVICE_MEMORY_SHARED_CACHE={suite.node.work}/peer{cap}{kind}"
        limits = [f"LD_PRELOAD={peer}", f"CUDA_DEVICE_SM_LIMIT={cap}", cache, "LIBCUDA_LOG_LEVEL=1",
                  "CUDA_DEVICE_MEMORY_LIMIT=16g", "GPU_CORE_UTILIZATION_POLICY=force"]
        suite.begin("peer", None, ["env", *limits, *suite.load(kind, None, 60)], kind)
        suite.await_work("peer")
        # It takes some seconds to find its way, and may hold a launch up for long.
        suite.node.sleep(3)
        [achieved] = suite.percents(5, "peer", tail=3)
        if achieved:
            found[cap] = achieved
            suite.report.row(name, kind, "one", cap, achieved)
        else:
            print(f"{cap}: failed", *suite.output("peer").splitlines()[-3:], sep="\n")
        suite.running["peer"].terminate()
        suite.settle()
    print(f"{kind:<12} with {name}: {by_cap(found.items())}")


def caps_together(suite, table, *caps):
    report = suite.report
    asked = {f"t{number}": cap for number, cap in enumerate(caps)}
    suite.keep_busy(60, "short", **{name: f"EGPU_COMPUTE={cap}%" for name, cap in asked.items()})
    suite.node.sleep(1)
    achieved = suite.percents(6, *asked)
    suite.rows(table, asked, achieved)
    total, worst = round(sum(achieved), 2), worst_error(zip(achieved, caps))
    print(f"{table}: {by_cap(zip(caps, achieved))} sum {total:.2f}")
    report.check(f"{table}: each within 1 point (worst {worst:.2f})", worst <= 1)
    report.check(f"{table}: the sum is at least 1 - 0.6 ms x containers / 100 ms",
                 at_least(total, 100 - 0.6 * len(caps)))
    suite.top()
    suite.end(*asked)


def together(suite):
    suite.report.title("compute: caps of busy containers together")
    suite.measure_alone("short")
    caps_together(suite, "10/30/60", 10, 30, 60)
    caps_together(suite, "25 x 4", 25, 25, 25, 25)
    caps_together(suite, "20/80", 20, 80)


def periods(suite):
    """Periods other than the default: the shorter, the more of each turn its edges take."""
    suite.report.title("compute: 20 and 50 percent with other periods")
    suite.measure_alone("short")
    asked = {"p0": 20, "p1": 50}
    suite.keep_busy(60, "short", p0="EGPU_COMPUTE=20%", p1="EGPU_COMPUTE=50%")
    for period in (20, 40, 200, 500):
        suite.policy("fixed", "--period", f"{period}ms")
        suite.node.sleep(2)
        achieved = suite.percents(6, *asked)
        suite.rows(f"20/50, {period} ms", asked, achieved)
        worst = worst_error(zip(achieved, asked.values()))
        print(f"{period} ms: {achieved[0]} and {achieved[1]}")
        # 0.6 ms of each turn, as for the sums of busy containers.
        most = max(1, 60 / period)
        name = f"{period} ms: each within {most:g} points (worst {worst:.2f})"
        suite.report.check(name, worst <= most)
    suite.end(*asked)
    suite.policy("fixed", "--period", "100ms")


def examples_per_second(said):
    found = re.search(r"examples/s ([0-9.]+)", said)
    return float(found[1]) if found else None


def case3(suite):
    node, report = suite.node, suite.report
    if not suite.needs_torch("case 3"):
        return
    report.title("compute: CTYun's case 3: 10240 MiB at 10, 50 and 100 percent, the same training "
                 "job")
    base = examples_per_second(node.on_host("python3", f"{node.tools}/train.py", "6", "7250"))
    print(f"outside: {text(base)} examples/s")
    for weight in (100, 50, 10):
        request = f"EGPU=POLICY=0,ONLINE=0,TYPE=CONTAINERD:PGPU=0,MEM=10240,WEIGHT={weight}"
        said = node.run(f"case{weight}", ["NVIDIA_VISIBLE_DEVICES=0", request], "python3",
                        "/tmp/train.py", "8", "7250").text
        line = (said.splitlines() or [""])[-1]
        achieved = percent(examples_per_second(line), base)
        print(f"{weight:<4} {line}: {achieved} percent")
        report.row("vendor case 3", "training", "one", weight, achieved)
        report.check(f"case 3 at {weight} percent is within 1 point", within(achieved, weight, 1))


# Trainings begin this long after they were started, and have each batch for so long; of that, the
# first 1.5 s and the last second are not measured.
LEAD_US, BATCH_S = 25_000_000, 6


def train_two(suite, names, place_of):
    """Trains in two places at once; yields each batch with what the first and the second do."""
    start, batches = suite.node.now_us() + LEAD_US, suite.settings.batches
    for name in names:
        place = place_of(name)
        program = f"{'/tmp' if place else suite.node.tools}/torch_load.py"
        command = ["env", f"AT={start}", "python3", program, str(BATCH_S), *map(str, batches)]
        suite.begin(name, place, command)
    suite.settle()
    for number, batch in enumerate(batches):
        begin = start + 1_500_000 + number * BATCH_S * 1_000_000
        end = begin + BATCH_S * 1_000_000 - 2_500_000
        first, second = (suite.rate(name, begin, end) for name in names)
        yield batch, first, second, round((first or 0) + (second or 0), 1)


def weights(suite):
    if not suite.needs_torch("weights"):
        return
    suite.report.title("compute: weights 1:2, training ResNet-50 (float16)")
    print(f"{'unmanaged':<10} {'batch':>6} {'first':>12} {'second':>12}")
    for batch, first, second, total in train_two(suite, ("n1", "n2"), lambda name: None):
        suite.unmanaged_totals[batch] = total
        print(f"{'':<10} {batch:>6} {text(first, 3):>12} {text(second, 3):>12} total {total:.1f}")
    weights_of(suite, "weighted", 2.5)
    weights_of(suite, "soft", 5)
    suite.policy("fixed")


def weights_of(suite, policy, most):
    report, names = suite.report, ("w1", "w2")
    suite.policy(policy)
    for name in names:
        suite.share(name, "EGPU_MEMORY=40GiB", f"EGPU_WEIGHT={name[1]}", f"EGPU_POLICY={policy}")
    print(f"{policy:<10} {'batch':>6} {'weight 1':>12} {'weight 2':>12} {'ratio':>8} {'total':>8}")
    for batch, first, second, total in train_two(suite, names, lambda name: name):
        had = ratio(second, first)
        print(f"{'':<10} {batch:>6} {text(first, 3):>12} {text(second, 3):>12} "
              f"{text(had, 4):>8} {total:>8.1f}")
        table = f"weights 1:2, {policy}"
        report.row(table, f"batch {batch}", "w1", 33.33, percent(first, total))
        report.row(table, f"batch {batch}", "w2", 66.67, percent(second, total))
        wrong = abs(100 * ((had or 0) / 2 - 1))
        name = f"{policy}, batch {batch}: 1:2 within {most:g} percent ({wrong:.2f})"
        report.check(name, wrong <= most)
        unmanaged = suite.unmanaged_totals.get(batch)
        report.check(f"{policy}, batch {batch}: the total is that of two unmanaged processes "
                     f"({text(unmanaged, 1)})", at_least(total, unmanaged or math.inf))
    suite.top(lines=3)
    suite.end(*names)


def after_signal(suite, sent):
    """Measures s1 in half a second from 100 ms after s2's program has got a signal.

    s2 has 11 ms of work queued by then.
    """
    suite.signal_load(sent, 57)
    at = suite.node.now_us()
    suite.node.sleep(1.5)
    rate = suite.rate("s1", at + 100_000, at + 600_000)
    return percent(rate, suite.alone_rates["short"])


def lending(suite):
    """Time that an idle neighbour leaves, under soft."""
    report = suite.report
    report.title("compute: soft, with kernels of 0.7 ms, and lending")
    suite.measure_alone("short")
    suite.policy("soft")
    suite.share("s2", "EGPU_WEIGHT=3", "EGPU_POLICY=soft")
    suite.keep_busy(40, "short", s1="EGPU_WEIGHT=1 EGPU_POLICY=soft")
    suite.node.sleep(1)
    [alone] = suite.percents(2, "s1")
    print(f"beside an idle neighbour of weight 3: {alone} percent")
    suite.begin_load("s2", "short", 57)
    suite.await_work("s2")
    suite.node.sleep(3)
    first, second = suite.percents(4, "s1", "s2")
    had = ratio(second, first)
    print(f"weights 1:3, both busy: {first} and {second} percent, ratio {text(had, 4)}")
    report.check("soft 1:3 within 5 percent", within(had, 3, 0.15))
    suite.rows("soft 1:3", {"s1": 25, "s2": 75}, (first, second))
    # A neighbour that lives on and launches no more; then one that ends.
    for _ in range(3):
        after = after_signal(suite, signal.SIGSTOP)
        print(f"from 100 ms after the neighbour has launched its last: {after} percent")
        report.check("an idle neighbour's time is used within 100 ms", at_least(after, 95))
        suite.signal_load(signal.SIGCONT, 57)
        suite.node.sleep(2)
    after = after_signal(suite, signal.SIGKILL)
    print(f"from 100 ms after the neighbour's end: {after} percent")
    name = "the time of a neighbour that has ended is used within 100 ms"
    report.check(name, at_least(after, 95))
    suite.end("s1", "s2")
    suite.policy("fixed")


def priority(suite):
    report = suite.report
    report.title("compute: low priority beside high")
    suite.measure_alone("short")
    suite.share("high", "EGPU_PRIORITY=high")
    suite.keep_busy(60, "short", low="EGPU_PRIORITY=low")
    [low] = suite.percents(2, "low")
    print(f"low, high idle: {low} percent")
    suite.begin_load("high", "short", 8)
    suite.await_work("high")
    suite.node.sleep(0.5)
    high, low = suite.percents(3, "high", "low")
    print(f"both busy: high {high}, low {low} percent")
    report.check("high has at least 90 percent", at_least(high, 90))
    report.check("low has at most 5 percent", at_most(low, 5))
    suite.node.sleep(6)
    [low] = suite.percents(2, "low")
    print(f"after it: low {low} percent")
    suite.end("high", "low")


def two(suite):
    node, report = suite.node, suite.report
    if len(node.uuids) < 2:
        return report.skip("two cards: one only")
    if not suite.needs_torch("two cards"):
        return None
    report.title("compute: two containers of two cards at 50 percent each, NCCL all-reduce")
    program = ["timeout", "90", "python3", f"{node.tools}/nccl_load.py", "8"]
    suite.begin("solo", None, ["env", *NCCL, "CUDA_VISIBLE_DEVICES=0,1", *program])
    suite.await_work("solo")
    [base] = suite.rates(4, "solo")
    suite.settle()
    print(f"outside: {text(base, 3)} rounds/s")
    if base is None:
        return report.check("NCCL works outside", False, *suite.output("solo").splitlines()[-30:])
    names = ("d1", "d2")
    for name in names:
        # Both on the same two cards, whatever else the machine has.
        settings = ["EGPU_DEVICES=0,1", "EGPU_MEMORY=16GiB", "EGPU_COMPUTE=50%", *NCCL]
        node.launch(name, settings, options=NCCL_OPTIONS)
    first, second = (node.granted(name) for name in names)
    report.check("both are on the same two cards", first and first == second)
    print(node.exec("d1", "sh", "-c", "nvidia-smi -L; df -h /dev/shm | tail -n 1"))
    for name in names:
        command = ["timeout", "150", "python3", "/tmp/nccl_load.py", "60", f"2952{name[1]}"]
        suite.begin(name, name, command)
    suite.await_work(*names)
    node.sleep(1)
    for name, rate in zip(names, suite.rates(8, *names)):
        if rate is None:
            said = suite.output(name).splitlines()
            print(f"output of container {name[1]}:", *said[-30:], sep="\n")
        had = ratio(rate or 0, base)
        print(f"container {name[1]}: {text(rate, 3)} rounds/s, {text(had, 4)} of alone")
        report.row("two cards, NCCL", "all-reduce", name, 50, percent(rate, base))
        report.check("it makes at least 0.45 of its progress alone", at_least(had, 0.45))
    suite.top()
    return suite.end(*names)
