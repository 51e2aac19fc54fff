#!/usr/bin/env python3
"""Runs critest with runc, with egpu, and with egpu in runc's place (examples/containerd/drop-in-*).

What fails under egpu and not under runc is named, and makes the exit status 1; two tests that want
no seccomp filter at all are expected to.

usage: critest.py DIRECTORY_OF_EGPU_BINARIES CRI_TOOLS DIRECTORY_OF_CONTAINERD RUNC     (as root)
"""

import os
import re
import subprocess
import sys
import tempfile

from node import HANDLERS, Node, cri_config, require

# Tests that want a registry, iptables for host ports, NRI; MaskedPaths wants an /bin/ls that is a
# file of its own.
SKIPPED = ("Image Manager|Image Consistency|Image Identifier Consistency|Image Volume|NRI|HostPort|"
           "port mapping|MaskedPaths")
# A container without a grant carries the filter that keeps it from the driver.
EXPECTED = "nil profile, which is unconfined|seccomp unconfined on the container"


def failures(node, critest, handler):
    """Runs critest under a runtime; returns the names of what fails."""
    endpoint = f"unix://{node.containerd.socket}"
    command = [critest, "--config", "/dev/null", "--runtime-endpoint", endpoint,
               "--runtime-handler", handler, "--ginkgo.no-color", "--ginkgo.skip", SKIPPED]
    said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    text = said.stdout.decode(errors="replace")
    count = re.search(r"\d+ Passed \| \d+ Failed.*", text)
    print(f"{handler}: {count[0] if count else 'did not end'}", flush=True)
    return set(re.findall(r"^ *\[FAIL\] (.*)", text, re.MULTILINE))


def main(binaries, tools, containerd, runc):
    critest = f"{tools}/critest"
    require(f"{binaries}/containerd-shim-egpu-v1", critest, f"{containerd}/containerd",
            f"{tools}/ptp", runc)
    work = tempfile.mkdtemp(prefix="egpu-cri-")
    node = Node(work, binaries, containerd, cri_config(work, "runc", tools, runc, binaries))
    try:
        node.start()
        failed = {handler: failures(node, critest, handler) for handler in HANDLERS}
    finally:
        node.close()
    alone = [(handler, name) for handler in ("egpu", "drop-in")
             for name in sorted(failed[handler] - failed["runc"]) if not re.search(EXPECTED, name)]
    for handler, name in alone:
        print(f"fails under {handler} alone: {name}")
    return 1 if alone else 0


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    sys.exit(main(*map(os.path.realpath, sys.argv[1:])))
