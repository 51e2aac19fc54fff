"""Managed memory, more of it than a quota has room for, and NVML's account meanwhile."""

import re

from measure.node import tool

MIB, QUOTA_MIB = 1 << 20, 2048
# Twice and three times the quota.
LOADS = [("sum", 4096), ("sum", 6144), ("tiles", 6144), ("advice", 3072), ("atomics", 3072),
         ("batch", 6144), ("attach", 3072), ("pool", 6144), ("malloc", 512)]
ATTACKS = [("wait", 8192), ("cut", 8192)]
# What limits.md lets a container have beyond its grant: page tables, and memory that is cut.
BEYOND_MIB = 64
# Four programs at once.
RANDOM = """for seed in $(seq {first} {last}); do
    timeout 120 /tmp/managed_load random $seed 6 1024 >/tmp/out.$seed 2>&1
    code=$?; [ $code = 0 ] || [ $code = 2 ] || tail -n 1 /tmp/out.$seed >&2
    echo "$seed exit $code" & done; wait"""


def built(node):
    """Builds the load; None where there is no compiler for it."""
    nvcc = tool("nvcc")
    if not nvcc:
        return None
    load = f"{node.tools}/managed_load"
    print(node.on_host(nvcc, "-O2", "-arch=native", "-Xlinker", "--export-dynamic", "-o", load, f"{node.folder}/managed_load.cu",
                       errors=True))
    return load if node.exists(load) else None


def managed(suite):
    node, report = suite.node, suite.report
    report.title(f"memory: managed memory beyond a quota of {QUOTA_MIB} MiB")
    load = built(node)
    if not load:
        return report.skip("managed memory: nvcc is not installed, or does not build the load")
    drifts, limit = suite.drifts(), (QUOTA_MIB + BEYOND_MIB) * MIB
    node.launch("managed", ["EGPU_DEVICES=0", f"EGPU_MEMORY={QUOTA_MIB}MiB"])
    for what, mib in LOADS + ATTACKS:
        sampler = node.spawn(None, ["python3", "-m", "measure.nvml", "0", str(limit), "card"],
                             f"{node.work}/samples", read_input=True)
        inside = node.outcome("managed", "timeout", "200", "/tmp/managed_load", what, str(mib))
        sampler.stdin.close()
        within = sampler.wait() == 0
        said = inside.text.splitlines()[-1:]
        print(f"{what} {mib} MiB: exit {inside.code}", *said, node.read(f"{node.work}/samples").strip(), sep="; ")
        if (what, mib) in LOADS:
            report.equal(f"{what} of {mib} MiB is right", inside.code, 0)
        report.check(f"{what} of {mib} MiB: the card is never above the grant", within)
    at_random(suite, limit)
    report.equal("nothing was ended", [event for event in node.json("events", "--kind", "killed")], [])
    suite.check_drained("managed")
    report.equal("nothing drifts", suite.drifts(), drifts)
    node.stop("managed")
    first_touch(suite, load)


def at_random(suite, limit):
    node, report, programs = suite.node, suite.report, suite.settings.programs
    sampler = node.spawn(None, ["python3", "-m", "measure.nvml", "0", str(limit), "card"],
                         f"{node.work}/samples", read_input=True)
    lines = []
    for first in range(0, programs, 4):
        script = RANDOM.format(first=first, last=min(first + 4, programs) - 1)
        lines += node.exec("managed", "sh", "-c", script).splitlines()
    sampler.stdin.close()
    within = sampler.wait() == 0
    codes = [found[1] for line in lines if (found := re.search(r"^[0-9]+ exit ([0-9]+)$", line))]
    print(f"{programs} random programs, four at once: exit {sorted(set(codes))}", node.read(f"{node.work}/samples").strip(),
          *(line for line in lines if " exit " not in line), sep="\n")
    report.check("random programs: the card is never above the grant", within)
    report.check("all ended by themselves", sum(code in "02" for code in codes) == programs)


def first_touch(suite, load):
    """Within the quota it is as fast as outside."""
    node, report = suite.node, suite.report
    node.launch("touch", ["EGPU_DEVICES=0", "EGPU_MEMORY=4GiB"])
    medians = []
    for text in (node.on_host(load, "touch", "1024"), node.exec("touch", "/tmp/managed_load", "touch", "1024")):
        times = [tuple(map(float, pair)) for pair in re.findall(r"made ([0-9.]+) us, touched ([0-9.]+) us", text)]
        medians.append([sorted(column)[len(column) // 2] for column in zip(*times)] or [0, 0])
    (made, touched), (made_inside, touched_inside) = medians
    print(f"1 GiB of managed memory, us, outside and inside: made {made} {made_inside}, touched {touched} {touched_inside}")
    report.check("a first touch costs no more than 1.05 of what it does outside", touched_inside <= 1.05 * touched)
    node.stop("touch")
