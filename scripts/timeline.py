#!/usr/bin/env python3
"""Timeline of creates, execs and deletes from the marks of EGPU_SPANS.

usage: EGPU_SPANS=FILE make bench BENCH_ARGS="--only 'run --rm'"; scripts/timeline.py FILE [PREFIX]

Prints the median over the containers whose ids begin with PREFIX: the time from a container's first
mark to each point, the step from the point before, and the quartiles of that step. Points of
processes that run side by side stand in the order in which they are usually passed.
"""
import statistics
import sys
from collections import defaultdict

BAR = 50


def read(path):
    """Marks by container; the commands start and delete are of the container that they name."""
    names, marks = {}, []
    for line in open(path, encoding="utf-8"):
        time, group, _, point, *container = line.split(" ")
        container = container[0].strip() if container else ""
        if container:
            names.setdefault(group, container)
        marks.append((int(time), group, point.strip(), container))
    found = defaultdict(list)
    for time, group, point, container in marks:
        found[container or names.get(group, group)].append((time, point))
    return {name: sorted(found[name]) for name in found}


def numbered(marks):
    """Points that come several times, as the workers of one container, get a number."""
    seen = defaultdict(int)
    for time, point in marks:
        seen[point] += 1
        yield time, point if seen[point] == 1 else f"{point} {seen[point]}"


def main():
    path, prefix = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    offsets, steps = defaultdict(list), defaultdict(list)
    containers = [marks for name, marks in read(path).items() if name.startswith(prefix)]
    for marks in containers:
        first = before = marks[0][0]
        for time, point in numbered(marks):
            offsets[point].append((time - first) / 1e3)
            steps[point].append((time - before) / 1e3)
            before = time
    # Points that hardly any container passes would only confuse.
    points = [point for point in offsets if len(offsets[point]) * 2 > len(containers)]
    points.sort(key=lambda point: statistics.median(offsets[point]))
    last = statistics.median(offsets[points[-1]]) if points else 0
    print(f"{len(containers)} containers, ms")
    print(f"{'at':>8} {'step':>7} {'quartiles':>15}  point")
    for point in points:
        at, step = statistics.median(offsets[point]), statistics.median(steps[point])
        low, _, high = statistics.quantiles(steps[point], n=4) if len(steps[point]) > 1 else [step] * 3
        place = round(at / last * BAR) if last else 0
        length = max(1, round(step / last * BAR)) if last else 1
        bar = " " * max(0, place - length) + "#" * length
        print(f"{at:8.2f} {step:7.2f} {low:7.2f} {high:7.2f}  {point:<28} |{bar}")


if __name__ == "__main__":
    main()
