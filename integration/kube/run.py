#!/usr/bin/env python3
"""Runs the cases of cases/ on one cluster of real Kubernetes, in namespaces of its own. As root.

Names that contain a FILTER are run; without one, all. A failed run keeps the logs.

usage: run.py [--list] [--runtime drop-in|own] [--plugin EGPU_KUBELET_PLUGIN] BINARIES TARGET RM_CLIENT [FILTER...]
"""

import argparse
import os
import sys
import time
import unittest

from case import KubeCase, TimedResult, name
from cluster import Cluster
from host import in_namespaces

HERE = os.path.dirname(os.path.abspath(__file__))


def parser(description):
    """What everything needs that starts a cluster."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runtime", choices=("drop-in", "own"), default="drop-in", help="of examples/containerd")
    options.add_argument("--plugin", type=os.path.realpath, help="by default the one among BINARIES, if there is one")
    for path in ("binaries", "target", "rm_client"):
        options.add_argument(path, type=os.path.realpath)
    return options


def arguments():
    options = parser(__doc__)
    options.add_argument("--list", action="store_true", help="only names")
    options.add_argument("filters", nargs="*", metavar="FILTER")
    return options.parse_intermixed_args()


def cases(filters):
    suites = [unittest.defaultTestLoader.discover(f"{HERE}/cases", pattern="*.py", top_level_dir=HERE)]
    found = []
    while suites:
        one = suites.pop(0)
        if isinstance(one, unittest.TestSuite):
            suites[:0] = one
        elif not filters or any(word in name(one) for word in filters):
            found.append(one)
    return found


def main():
    options = arguments()
    chosen = cases(options.filters)
    if options.list:
        print(*map(name, chosen), sep="\n")
        return 0
    if not chosen:
        sys.exit("no case has such a name")
    folder, began = in_namespaces(), time.monotonic()
    result = TimedResult()
    cluster = Cluster(options.binaries, options.target, options.rm_client, folder, options.runtime, plugin=options.plugin)
    with cluster:
        print(f"{'cluster ready':60} {time.monotonic() - began:6.1f} s", flush=True)
        KubeCase.cluster = cluster
        unittest.TestSuite(chosen).run(result)
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun} cases, {failed} failed, {len(result.skipped)} skipped, {time.monotonic() - began:.1f} s in all")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
