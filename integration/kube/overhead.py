#!/usr/bin/env python3
"""Measures the memory that egpu's own processes have for a pod, its mediator included: for a RuntimeClass' overhead. As root.

usage: EGPU_KUBE_PROGRAM=integration/kube/overhead.py integration/kube/run.sh [--pods N] BINARIES TARGET RM_CLIENT
"""

import os
import sys

from cluster import Cluster
from host import in_namespaces
from objects import PODS, TEMPLATES, claims_of_container, container, request, template
from run import parser


def pss_kib(program):
    """Proportional set size of each process of this program."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/exe").endswith(program):
                with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
                    yield next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except (FileNotFoundError, ProcessLookupError):
            pass


def main():
    options = parser(__doc__)
    options.add_argument("--pods", type=int, default=8)
    options = options.parse_args()
    cluster = Cluster(options.binaries, options.target, options.rm_client, in_namespaces(), options.runtime, plugin=options.plugin)
    with cluster:
        cluster.api.create(TEMPLATES, template("quarter", request(memory="8Gi", compute=25)))
        names = [f"pod-{number}" for number in range(options.pods)]
        for name in names:
            spec = {"runtimeClassName": "egpu", "containers": [container(resources=claims_of_container())],
                    "terminationGracePeriodSeconds": 1,
                    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "quarter"}]}
            cluster.api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        for name in names:
            cluster.wait_running(name)
            cluster.kubectl("exec", name, "--", "rm-client", "smi")
        processes = list(pss_kib("/containerd-shim-egpu-v1"))
        print(f"{options.pods} pods with a share each: {len(processes)} processes of egpu, "
              f"{sum(processes) / 1024 / options.pods:.1f} MiB a pod (PSS)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
