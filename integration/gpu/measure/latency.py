"""Latency-critical requests beside batch work: what high waits, what low gets of the rest."""

import math
import signal
import statistics
from dataclasses import dataclass

from measure import served
from measure.compute import check_log, save_rows
from measure.disturbed import scheduler_cpu_us
from measure.figures import at_least, at_most, percent, ratio, samples, text, within
from measure.loads import Compute
from measure.settings import select
from measure.systems import SYSTEMS, Sides

# Kernels of batch work, in microseconds; the one that most is measured beside.
KERNELS, KERNEL = (100, 3000, 300_000), 3000
HIGH = ("EGPU_POLICY=soft", "EGPU_WEIGHT=1", "EGPU_PRIORITY=high")
LOW = (*HIGH[:2], "EGPU_PRIORITY=low")
HEAD = (f"{'':<14} {'beside':>8} {'p50':>7} {'p90':>7} {'p99':>7} {'max':>7} {'of alone':>8} "
        f"{'queue':>7} {'queue 2':>7} {'first p50':>9} {'p99':>6} {'low %':>6} {'of rest':>7}  "
        "requests, p99 of fifths")


@dataclass
class Requests:
    """Requests of a length: at random at a percentage of the card; or tokens, one after another."""

    length_us: int
    load: float
    count: int
    seed: int = 1

    def __str__(self):
        kind = f"at {self.load:g} percent" if self.load else "one after another"
        return f"{self.length_us / 1000:g} ms {kind}"

    def seconds(self):
        return self.count * self.length_us / 1e6 / (self.load / 100 or 1)

    def limit(self):
        """Returns when it is cut off: some systems' queues never drain."""
        return max(20, math.ceil(2.5 * self.seconds()))

    def arguments(self, per_us):
        if not self.load:
            return ["decode", per_us, str(self.length_us), str(self.count), str(self.limit())]
        return ["serve", per_us, str(self.length_us), f"{self.load:g}", str(self.count),
                str(self.limit()), str(self.seed)]


def milliseconds(kernel_us):
    return f"{kernel_us / 1000:g} ms" if kernel_us else "alone"


class Latency(Compute):
    """Programs of latency-load, in containers `high` and `low` or outside."""

    def __init__(self, node, report, settings):
        super().__init__(node, report, settings)
        self.per_us, self.low_rates = None, {}

    def requests(self, length_us, load, count=1500):
        return Requests(length_us, load, self.settings.requests or count)

    def calibrate_requests(self):
        said = self.node.on_host(f"{self.node.tools}/latency-load", "calibrate").strip()
        self.per_us = said if said.replace(".", "", 1).isdigit() else None
        print(f"steps of the kernels' loop in a microsecond: {said}")
        return self.report.check("latency-load runs", self.per_us is not None)

    def ask(self, container):
        """Starts a container: high or low, by the beginning of its name."""
        self.share(container, *(HIGH if container.startswith("high") else LOW))

    def start(self, name, sides, arguments, timeout=0):
        prefix = sides.high if name.startswith("high") else sides.low
        folder = "/tmp" if sides.inside else self.node.tools
        command = [*prefix, f"{folder}/latency-load", *arguments]
        place = name if sides.inside else None
        self.running[name] = self.node.spawn(place, command, self.path(name), timeout=timeout)
        self.kinds[name] = None

    def start_low(self, kernel_us, sides, seconds, name="low"):
        """Starts batch work. Returns whether it got anything done."""
        self.start(name, sides, ["batch", self.per_us, str(kernel_us), str(math.ceil(seconds))])
        for _ in range(200):
            if len([work for _, work in samples(self.output(name)) if work > 0]) >= 3:
                return True
            if self.running[name].poll() is not None:
                break
            self.node.sleep(0.1)
        print(f"{name}: no work is done", *self.output(name).splitlines()[-3:], sep="\n")
        if sides.inside:
            self.report.check(f"batch work runs in {name}", False)
        return False

    def end_low(self, sides, *names):
        """Kills batch work, which has no end of its own in a measurement."""
        if sides.inside:
            self.node.signal(signal.SIGKILL, "^/tmp/latency-load batch ")
        for name in names or ("low",):
            program = self.running.pop(name)
            if not sides.inside:
                program.terminate()
            for _ in range(100):
                if program.poll() is not None:
                    break
                self.node.sleep(0.1)
            else:
                program.kill()

    def start_high(self, requests, sides, name="high"):
        self.start(name, sides, requests.arguments(self.per_us), timeout=requests.limit() + 30)

    def await_high(self, name="high"):
        """Waits until the requests are served. Returns them, or None."""
        self.running.pop(name).wait()
        found = served.read(self.output(name))
        if not found:
            print(f"{name} served nobody:", *self.output(name).splitlines()[-3:], sep="\n")
        return found

    def serve(self, requests, sides):
        self.start_high(requests, sides)
        return self.await_high()

    def low_alone(self, kernel_us, inside=True):
        """Returns the rate of batch work with nobody beside it, measured once for each place."""
        if (kernel_us, inside) not in self.low_rates:
            sides, rate = Sides(inside=inside), None
            if inside:
                self.ask("low")
            if self.start_low(kernel_us, sides, 30):
                self.node.sleep(0.5)
                [rate] = self.rates(3, "low")
            self.end_low(sides)
            if inside:
                self.end("low")
            self.low_rates[kernel_us, inside] = rate
            where = "in its container" if inside else "outside"
            print(f"low alone {where}, kernels of {milliseconds(kernel_us)}: "
                  f"{text((rate or math.nan) / 1e4, 2)} percent of the time that they should take")
        return self.low_rates[kernel_us, inside]

    def low_percent(self, kernel_us, found, inside=True, name="low"):
        """Returns what batch work did while requests were served, in percent of alone."""
        if not found:
            return percent(None, None)
        self.node.sleep(0.8)
        rate = self.rate(name, found.begin_us, found.end_us)
        return percent(rate, self.low_rates[kernel_us, inside])

    def beside(self, requests, kernel_us, sides):
        """Serves requests beside batch work. Returns them and what low did in percent of alone."""
        if not self.start_low(kernel_us, sides, requests.limit() + 60):
            self.end_low(sides)
            return None, percent(None, None)
        self.node.sleep(0.5)
        found = self.serve(requests, sides)
        low = self.low_percent(kernel_us, found, sides.inside)
        self.end_low(sides)
        return found, low

    # What is printed.

    def alone_row(self, who, requests, found):
        """Prints what was served with nobody beside it. Returns whether there is anything."""
        if not self.report.check(f"{who}: {requests} are served alone", found):
            return False
        nominal = 100 * len(found.requests) * requests.length_us
        nominal /= max(found.end_us - found.begin_us, 1)
        print(HEAD)
        print(f"{who:<14} {'alone':>8} {latencies(found)} {'':>24} {firsts(found)} "
              f"{'':>6} {'':>7}  {counts(found, requests)}")
        print(f"{'':<14} high's share of the card alone: {found.percent_of_card():.2f} percent, by "
              f"the time from each request's first call to its end; its kernels' {nominal:.2f}")
        return True

    def row(self, who, requests, kernel_us, alone, found, low):
        """Prints and keeps a cell of a table. Returns low's percent of what high leaves."""
        if not found:
            print(f"{who:<14} {milliseconds(kernel_us):>8} failed")
            if who.startswith("egpu"):
                name = f"{who}, {requests} beside {milliseconds(kernel_us)}: requests are served"
                self.report.check(name, False)
            return None
        # Tokens one after another leave nothing.
        rest = percent(low, 100 - alone.percent_of_card() if requests.load else None)
        tail = ratio(found.latency_ms(0.99), alone.latency_ms(0.99))
        one, due = queues(alone, found)
        print(f"{who:<14} {milliseconds(kernel_us):>8} {latencies(found)} {text(tail, 3):>7}x "
              f"{one:>7.2f} {due:>7.2f} {firsts(found)} {low:>6.2f} {rest:>7.2f}  "
              f"{counts(found, requests)}")
        table = f"latency, {requests}"
        self.report.row(table, milliseconds(kernel_us), who, rest, 100 * tail)
        save_rows(self.report)
        return rest

    def aims(self, requests, kernel_us, alone, found, rest, most):
        """Checks a cell against what is to be reached."""
        if not found:
            return
        report, name = self.report, f"{requests} beside {milliseconds(kernel_us)}"
        p50, p99 = found.latency_ms(0.5), found.latency_ms(0.99)
        tail, (one, due) = ratio(p99, alone.latency_ms(0.99)), queues(alone, found)
        more = p50 - alone.latency_ms(0.5)
        report.check(f"{name}: every request is served", len(found.requests) == requests.count)
        report.check(f"{name}: p99 is at most {most:.2f}x of alone ({tail:.3f})", tail <= most)
        report.check(f"{name}: p99 is at most a queue's whose requests take a switch longer "
                     f"({p99:.3f} of {due:.3f} ms; {one:.3f} by one cost for all)", p99 <= due)
        report.check(f"{name}: p50 is at most 0.2 ms above alone ({more:.3f})", more <= 0.2)
        first, last = (found.first_ms(part, True) for part in (0.5, 0.99))
        report.check(f"{name}: after an idle time the first kernel begins within 0.5 ms at p50, 1 "
                     f"at p99 ({text(first, 3)}, {text(last, 3)})",
                     at_most(first, 0.5) and at_most(last, 1))
        report.check(f"{name}: low has at least 90 percent of what high leaves ({rest})",
                     at_least(rest, 90))


def latencies(found):
    return " ".join(f"{found.latency_ms(part):>7.2f}" for part in (0.5, 0.9, 0.99, 1))


def firsts(found):
    p50, p99 = (found.first_ms(part, True) for part in (0.5, 0.99))
    return f"{text(p50, 3):>9} {text(p99, 3):>6}"


def counts(found, requests):
    is_cut = len(found.requests) < requests.count
    note = f" of {requests.count}, cut off: its queue did not drain" if is_cut else ""
    fifths = " ".join(f"{part:.2f}" for part in found.five_parts())
    return f"{len(found.requests)}{note}, {fifths}"


def switch_us(alone, found, is_idle=None):
    """Returns by how much the first kernel comes later than alone, the medians' difference."""
    here, there = (one.first_ms(0.5, is_idle) for one in (found, alone))
    if here is None or there is None:
        return switch_us(alone, found)
    return 1000 * (here - there)


def queues(alone, found):
    """Returns the p99 of alone's queue if each request took as much longer as a switch, in ms.

    With one cost for all requests; and with one for those that find nobody and one for those that
    wait, behind whom a switch to batch work and back has begun.
    """
    cost = switch_us(alone, found)
    idle, behind = switch_us(alone, found, True), switch_us(alone, found, False)
    return alone.queued_ms(cost, cost, 0.99), alone.queued_ms(idle, behind, 0.99)


def main(suite):
    """Requests of 1.64 ms at 30 percent, in each system."""
    requests = suite.requests(1640, 30)
    suite.report.title(f"latency: {requests}, in each system")
    chosen, alone = suite.settings.systems or list(SYSTEMS), {}
    for inside in sorted({who.startswith("egpu") for who in chosen}, reverse=True):
        for kernel_us in KERNELS:
            suite.low_alone(kernel_us, inside)
        if inside:
            suite.ask("high")
        alone[inside] = suite.serve(requests, Sides(inside=inside))
        if inside:
            suite.end("high")
        where = "in a container" if inside else "outside"
        if not suite.alone_row(where, requests, alone[inside]):
            return
    for who in chosen:
        in_system(suite, who, requests, alone)


def in_system(suite, who, requests, alone):
    """Fills a system's rows. What is made for it is made anew for each row outside containers."""
    is_egpu = who.startswith("egpu")
    for kernels in [KERNELS] if is_egpu else [[kernel_us] for kernel_us in KERNELS]:
        with SYSTEMS[who](suite) as sides:
            if not sides:
                return
            for kernel_us in kernels:
                found, low = suite.beside(requests, kernel_us, sides)
                rest = suite.row(who, requests, kernel_us, alone[sides.inside], found, low)
                if who == "egpu-harvest":
                    suite.aims(requests, kernel_us, alone[True], found, rest, 1.25)
            if who == "egpu-harvest":
                rarely(suite, sides, alone[True])
                print(*suite.node.egpu("inspect", "high").splitlines()[-12:], sep="\n")
            if is_egpu:
                suite.top()


def rarely(suite, sides, alone):
    """One request each 200 ms."""
    requests = Requests(1640, 0.82, min(75, suite.settings.requests or 75))
    found, low = suite.beside(requests, KERNEL, sides)
    rest = percent(None, None)
    if found:
        each = statistics.mean(alone.service_us())
        high = 100 * each * len(found.requests) / (found.end_us - found.begin_us)
        rest = percent(low, 100 - high)
        print(f"a request each 200 ms, {len(found.requests)} of them: low has {low:.2f} percent")
    suite.report.check(f"a request each 200 ms: low has at least 95 percent of what high leaves "
                       f"({rest})", at_least(rest, 95))


def second(suite):
    """Longer requests, and more of them, beside kernels of 3 ms."""
    cells = [(suite.requests(5000, 30), 1.1), (suite.requests(5000, 60), 1.1),
             (suite.requests(20_000, 30, 300), 1.05)]
    suite.report.title("latency: longer requests beside kernels of 3 ms")
    for requests, _ in cells:
        print(f"{requests}: {requests.count} requests")
    against_alone(suite, cells, Latency.aims)


def decode(suite):
    """Tokens of 20 ms, one after another, as of one stream of a language model."""
    suite.report.title("latency: tokens one after another beside kernels of 3 ms")
    tokens = Requests(20_000, 0, min(200, suite.settings.requests or 200))
    against_alone(suite, [(tokens, 1.05)], token_aims)


def against_alone(suite, cells, aims):
    """Fills a row alone and one beside batch work for each of (requests, their most of p99)."""
    suite.low_alone(KERNEL)
    suite.ask("high")
    sides, alone = Sides(inside=True), []
    for requests, _ in cells:
        found = suite.serve(requests, sides)
        alone.append(found if suite.alone_row("in a container", requests, found) else None)
    suite.ask("low")
    for (requests, most), before in zip(cells, alone):
        if before:
            found, low = suite.beside(requests, KERNEL, sides)
            print(requests)
            rest = suite.row("egpu-harvest", requests, KERNEL, before, found, low)
            aims(suite, requests, KERNEL, before, found, rest, most)
    suite.top()
    suite.end("high", "low")


def token_aims(suite, requests, _, alone, found, rest, most):
    if found:
        for part, limit in ((0.99, most), (0.5, 1.02)):
            times = ratio(found.latency_ms(part), alone.latency_ms(part))
            suite.report.check(f"{requests}: time between tokens, p{100 * part:g} at most "
                               f"{limit:.2f}x of alone ({times:.3f})", times <= limit)


# Loads without a break, as compute-load calls them.
BUSY = ("short", "waiting")


def always_busy(suite, kind):
    """Returns the rate of a load in the container `high`, and when it was taken."""
    suite.begin_load("high", kind, 7)
    suite.await_work("high")
    suite.node.sleep(0.5)
    begin = suite.node.now_us()
    [rate] = suite.rates(3, "high")
    suite.running.pop("high").wait()
    return rate, begin, begin + 3_000_000


def busy(suite):
    """A high one that is always busy, and a cap beside high and low."""
    suite.report.title("latency: a busy high one beside low, and a cap beside both")
    suite.calibrate(dict.fromkeys(BUSY))
    suite.low_alone(KERNEL)
    suite.ask("high")
    alone = {kind: always_busy(suite, kind)[0] for kind in BUSY}
    suite.ask("low")
    sides = Sides(inside=True)
    suite.start_low(KERNEL, sides, 60)
    for kind in BUSY:
        rate, *span = always_busy(suite, kind)
        high = percent(rate, alone[kind])
        low = percent(suite.rate("low", *span), suite.low_rates[KERNEL, True])
        print(f"high, {kind} without a break: {high} percent of alone; low {low}")
        suite.report.row("latency, busy", kind, "high", 100, high)
        suite.report.check(f"a busy high one keeps at least 99 percent, {kind} ({high})",
                           at_least(high, 99))
    suite.end_low(sides)
    suite.top()
    suite.end("high", "low")
    capped(suite)


def capped(suite):
    """A cap of 30 percent on a fixed card, whose rest high and low share."""
    suite.policy("fixed")
    suite.measure_alone("short")
    suite.share("cap", "EGPU_COMPUTE=30%")
    suite.share("high", "EGPU_PRIORITY=high")
    suite.share("low", "EGPU_PRIORITY=low")
    sides = Sides(inside=True)
    suite.begin_load("cap", "short", 60)
    suite.await_work("cap")
    suite.start_low(KERNEL, sides, 60)
    requests = Requests(1640, 20, 700)
    suite.start_high(requests, sides)
    suite.node.sleep(1)
    [cap] = suite.percents(4, "cap")
    found = suite.await_high()
    if found:
        print(f"high beside it, {requests}: {latencies(found)} ms")
    suite.begin_load("high", "short", 7)
    suite.await_work("high")
    suite.node.sleep(0.5)
    [busy_cap] = suite.percents(4, "cap")
    for what, have in (("requests", cap), ("a busy high one", busy_cap)):
        suite.report.row("latency, a cap", what, "cap", 30, have)
        suite.report.check(f"30 percent beside {what} and low: within 1 point ({have})",
                           within(have, 30, 1))
    suite.end_low(sides)
    suite.top()
    suite.end("cap", "high", "low")


def several(suite):
    """Two high and two low on the card."""
    highs, lows, sides = ("high1", "high2"), ("low1", "low2"), Sides(inside=True)
    requests = [Requests(1640, 15, suite.settings.requests or 1500, seed) for seed in (1, 2)]
    suite.report.title(f"latency: two high, {requests[0]} each, and two low, kernels of 3 ms")
    suite.low_alone(KERNEL)
    for name in highs:
        suite.ask(name)
    suite.start_high(Requests(1640, 15, min(300, requests[0].count)), sides, "high1")
    one = suite.await_high("high1")
    alone = all_of(suite, dict(zip(highs, requests)), sides)
    for name in lows:
        suite.ask(name)
        suite.start_low(KERNEL, sides, requests[0].limit() + 60, name)
    suite.node.sleep(0.5)
    before, begin = scheduler_cpu_us(suite.node), suite.node.now_us()
    found = all_of(suite, dict(zip(highs, requests)), sides)
    passed = suite.node.now_us() - begin
    total, inside = (now - then for now, then in zip(scheduler_cpu_us(suite.node), before))
    print(f"the schedulers' processor time is {percent(total - inside, passed)} percent of a core "
          f"outside driver calls, {percent(inside, passed)} in them")
    suite.node.sleep(0.8)
    suite.report.check("two high ones are served, alone and beside low", one and alone and found)
    if one and alone and found:
        print_several(suite, lows, one, alone, found)
    suite.end_low(sides, *lows)
    suite.top()
    suite.end(*highs, *lows)


def all_of(suite, requests, sides):
    """Serves the requests of several containers at once. Returns all that was, or nothing."""
    for name, of in requests.items():
        suite.start_high(of, sides, name)
    found = {name: suite.await_high(name) for name in requests}
    return found if all(found.values()) else None


def print_several(suite, lows, one, alone, found):
    report = suite.report
    for name, beside in found.items():
        tail = ratio(beside.latency_ms(0.99), alone[name].latency_ms(0.99))
        print(f"{name}, p50 p90 p99 max: the two alone {latencies(alone[name])}, beside low "
              f"{latencies(beside)}, p99 {tail:.3f}x; {len(beside.requests)} requests")
        report.check(f"{name}: p99 is at most 1.25x of what it is beside the other high one alone "
                     f"({tail:.3f})", tail <= 1.25)
    begin = max(beside.begin_us for beside in found.values())
    end = min(beside.end_us for beside in found.values())
    had = [percent(suite.rate(name, begin, end), suite.low_rates[KERNEL, True]) for name in lows]
    # Few requests of one tell how long each takes, but not how many there are of all.
    each = statistics.mean(one.service_us())
    high = sum(100 * each * len(beside.requests) / (beside.end_us - beside.begin_us)
               for beside in found.values())
    rest = percent(sum(had), 100 - high)
    print(f"low: {' and '.join(map('{}'.format, had))} percent of alone, together {sum(had):.2f}, "
          f"{rest} percent of what the two high ones leave")
    report.check(f"the low ones have at least 90 percent of what the high ones leave ({rest})",
                 at_least(rest, 90))


PARTS = [main, second, decode, busy, several]


def run(suite):
    latency = Latency(suite.node, suite.report, suite.settings)
    parts = select(PARTS, suite.settings.latency)
    for who in suite.settings.systems:
        if who not in SYSTEMS:
            raise SystemExit(f"no system is called {who}: {', '.join(SYSTEMS)}")
    if not latency.calibrate_requests():
        return
    for part in parts:
        latency.policy("soft")
        latency.run(part)
        latency.running = {}
    latency.policy("fixed")
    save_rows(suite.report)
    check_log(suite)
