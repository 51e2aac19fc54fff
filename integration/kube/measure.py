#!/usr/bin/env python3
"""Measures claims on one cluster, on a machine that does nothing else: what they cost a pod's start, and the plugin. As root.

usage: measure.py [--pairs N] [--idle SECONDS] BINARIES TARGET RM_CLIENT
"""

import datetime
import json
import statistics
import sys
import threading
import time

from api import until
from cluster import Cluster
from host import in_namespaces
from objects import PODS, TEMPLATES, claims_of_container, container, request, template
from part import cpu_s, resident_mb
from run import parser

ANNOTATIONS = {"egpu.io/memory": "8GiB", "egpu.io/compute": "25%"}


def arguments():
    options = parser(__doc__)
    options.add_argument("--pairs", type=int, default=30)
    options.add_argument("--idle", type=int, default=60, help="seconds over which the plugin's CPU is counted")
    return options.parse_args()


def pod(name, is_claim):
    spec = {"runtimeClassName": "egpu", "terminationGracePeriodSeconds": 1, "containers": [container()]}
    if is_claim:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "quarter"}]
        spec["containers"] = [container(resources=claims_of_container())]
    metadata = {"name": name, "annotations": {} if is_claim else ANNOTATIONS}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def start(cluster, name, is_claim):
    """Returns the seconds from the pod's creation to the API server's knowing that it runs."""
    running = threading.Event()
    watcher = threading.Thread(target=watch, args=(cluster, name, running), daemon=True)
    watcher.start()
    time.sleep(0.2)
    began = time.monotonic()
    cluster.api.create(PODS, pod(name, is_claim))
    if not running.wait(60):
        raise TimeoutError(f"{name} does not run")
    took = time.monotonic() - began
    cluster.delete_pod(name)
    until("the node to be empty", lambda: not cluster.grants())
    return took


def watch(cluster, name, running):
    for line in cluster.api.lines(f"{PODS}?watch=1&fieldSelector=metadata.name={name}"):
        if json.loads(line)["object"]["status"].get("phase") == "Running":
            running.set()
            return


def prepares(log):
    """Returns what kubelet waited for its calls, in ms, by the times in its log: one call at a time."""
    times, began = [], None
    for line in log.splitlines():
        if "alling NodePrepareResources rpc" in line:
            now = datetime.datetime.strptime(line.split()[1], "%H:%M:%S.%f")
            if "Done calling" in line:
                times.append((now - began).total_seconds() * 1000)
            began = now
    return times


def main():
    options = arguments()
    folder = in_namespaces()
    cluster = Cluster(options.binaries, options.target, options.rm_client, folder, options.runtime, plugin=options.plugin)
    cluster.part("kubelet").command.append("--vmodule=dra_plugin=4")
    with cluster:
        cluster.api.create(TEMPLATES, template("quarter", request(memory="8Gi", compute=25)))
        times = {True: [], False: []}
        for number in range(options.pairs + 1):
            for is_claim in (number % 2 == 0, number % 2 != 0):
                took = start(cluster, f"pod-{number}-{'claim' if is_claim else 'annotation'}", is_claim)
                if number:  # the first pair warms up
                    times[is_claim].append(took)
        claims, annotations = (statistics.median(times[is_claim]) * 1000 for is_claim in (True, False))
        calls = prepares(cluster.log("kubelet"))
        print(f"pod start, median of {options.pairs}: claim {claims:.0f} ms, annotation {annotations:.0f} ms, "
              f"claim - annotation {claims - annotations:.0f} ms")
        print(f"prepare, as kubelet waits for it, median of {len(calls)}: {statistics.median(calls):.1f} ms, most {max(calls):.1f} ms")
        pid = cluster.part("plugin").process.pid
        time.sleep(10)
        before = cpu_s(pid)
        time.sleep(options.idle)
        busy = (cpu_s(pid) - before) / options.idle
        print(f"plugin: {resident_mb(pid):.1f} MiB resident, idle {busy:.3%} of a CPU over {options.idle} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
