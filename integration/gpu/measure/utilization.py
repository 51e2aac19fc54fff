"""Use of the card's time as programs and operators see it: egpu top, nvidia-smi in containers."""

import math
import statistics

from measure.figures import Percent, at_least, at_most, ratio, text, within


def achieved_percent(node, *containers):
    """Returns the percent of the card's time in the last second, by `egpu top`."""
    found = {one["id"]: one["cards"][0]["achieved_1s_percent"]
             for one in node.json("top", "-n", "1")["containers"]}
    figures = (found.get(container) for container in containers)
    return [Percent(math.nan if figure is None else round(figure, 2)) for figure in figures]


def achieved(suite):
    suite.report.title("compute: what containers achieve, as egpu tells it")
    achieved_alone(suite)
    achieved_by_two(suite)


def achieved_alone(suite):
    report = suite.report
    suite.keep_busy(91, "short", a0="")
    suite.node.sleep(2.5)
    [seen] = achieved_percent(suite.node, "a0")
    print(f"alone, no limit, busy: {seen} percent")
    report.check("who is alone and busy achieves the card's time", within(seen, 99, 2))
    suite.idle(91)
    suite.node.sleep(3)
    [seen] = achieved_percent(suite.node, "a0")
    print(f"the same, with a context and memory and no work: {seen} percent")
    report.check("who is alone and idle achieves nothing", within(seen, 0, 1))
    suite.end("a0")


def achieved_by_two(suite):
    node, report = suite.node, suite.report
    suite.policy("soft")
    for weight in (1, 2):
        suite.share(f"a{weight}", "EGPU_POLICY=soft", f"EGPU_WEIGHT={weight}")
        suite.begin_load(f"a{weight}", "short", 91 + weight)
    suite.await_work("a1", "a2")
    node.sleep(2)
    rates = suite.rates(3, "a1", "a2")
    first, second = achieved_percent(node, "a1", "a2")
    seen, had = ratio(second, first), ratio(rates[1], rates[0])
    print(f"soft 1:2, both busy: {first} and {second} percent, ratio {text(seen, 4)}; "
          f"throughputs have the ratio {text(had, 4)}")
    report.check("the sum is at most the card's time", at_most(first + second, 100.5))
    report.check("it is what they do, within 10 percent", within(ratio(seen, had), 1, 0.1))
    suite.idle(92)
    node.sleep(3)
    first, second = achieved_percent(node, "a1", "a2")
    print(f"the first one idle: {first} and {second} percent")
    report.check("who is idle beside a busy one achieves nothing", within(first, 0, 1))
    report.check("and the other one all that it takes", within(second, 99, 2))
    suite.idle(93)
    node.sleep(3)
    first, second = achieved_percent(node, "a1", "a2")
    print(f"both idle: {first} and {second} percent")
    report.check("both idle achieve nothing", within(first + second, 0, 1))
    suite.end("a1", "a2")
    suite.policy("fixed")


QUERY = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]


def seen_percent(node, container):
    """Returns what nvidia-smi prints in a container, the median of five times a second apart."""
    seen = []
    for _ in range(5):
        digits = "".join(filter(str.isdigit, node.exec(container, "nvidia-smi", *QUERY)))
        seen += [int(digits)] if digits else []
        node.sleep(1)
    return statistics.median_low(seen) if seen else None


def utilization(suite):
    node, report = suite.node, suite.report
    report.title("compute: what containers are told of the card's utilization")
    suite.measure_alone("short")
    suite.share("u1", "EGPU_COMPUTE=25%")
    suite.share("u2", "EGPU_COMPUTE=50%")
    print(f"both idle: {seen_percent(node, 'u1')} and {seen_percent(node, 'u2')} percent")
    suite.begin_load("u1", "short", 60)
    suite.await_work("u1")
    node.sleep(2)
    busy, idle = seen_percent(node, "u1"), seen_percent(node, "u2")
    host = node.nvidia_smi(QUERY[0], "--format=csv,noheader")
    print(f"25 percent busy: it is told {busy}, its idle neighbour {idle}, the host {host} percent")
    report.check("a cap that is used up is 100 percent", at_least(busy, 90))
    report.check("a busy neighbour is not seen", at_most(idle, 2))
    [ps] = [card["utilization_percent"] for one in node.json("ps") if one["id"] == "u1"
            for card in one["cards"]]
    report.check("egpu ps says the same", at_least(ps, 90))
    print(node.exec("u1", "nvidia-smi"))
    # By the driver's samples, of the card and by process.
    print(node.exec("u1", "nvidia-smi", "pmon", "-c", "3"))
    print(node.exec("u2", "nvidia-smi", "pmon", "-c", "1"))
    lines = node.exec("u1", "nvidia-smi", "-q", "-d", "UTILIZATION").splitlines()
    print(*lines[7:], sep="\n")
    suite.end("u1", "u2")
