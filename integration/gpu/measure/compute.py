"""Quotas of time: which measurements there are, the picture that they make."""

from measure import disturbed, shares, utilization
from measure.containerd import write
from measure.loads import Compute
from measure.plot import svg
from measure.settings import select

PARTS = [
    shares.caps, shares.together, shares.periods, shares.weights, shares.lending, shares.priority,
    disturbed.edges, disturbed.flood, disturbed.preemption, disturbed.migrate, disturbed.scrub,
    disturbed.firmware, disturbed.churn, disturbed.starts, utilization.utilization,
    utilization.achieved, disturbed.errors, disturbed.groups, shares.case3, shares.two,
    disturbed.endless]

# Loads that a measurement needs, but for short kernels.
KINDS = {
    shares.weights: (), shares.case3: (), shares.two: (),
    disturbed.preemption: ("long", "short"), disturbed.endless: ("long", "short"),
    disturbed.groups: ("short", "streams")}


def run(suite):
    compute = Compute(suite.node, suite.report, suite.settings)
    parts = select(PARTS, suite.settings.compute, without=[disturbed.endless])
    kinds = {**KINDS, shares.caps: tuple(suite.settings.loads)}
    compute.calibrate({kind: None for part in parts for kind in kinds.get(part, ("short",))})
    for part in parts:
        compute.run(part)
        compute.running = {}
    save_picture(suite.report)
    check_log(suite)


def check_log(suite):
    suite.report.title("compute: the kernel's log")
    log = suite.node.kernel_log() or []
    print(*log[-10:], sep="\n")
    # One for each time that the driver was too busy to read the log of context switches before it
    # was full.
    full = sum("FECS Exception: Logging error" in line for line in log)
    suite.report.equal(f"the log of context switches was never full ({full} lines)", full, 0)


def save_rows(report):
    """Writes the rows beside the results."""
    path = f"{report.path.removesuffix('.txt')}.tsv"
    write(path, "".join("\t".join(row) + "\n" for row in report.rows))


def save_picture(report):
    """Writes the rows beside the results, and their picture."""
    save_rows(report)
    if report.rows:
        write(f"{report.path.removesuffix('.txt')}.svg", svg(report.rows))
