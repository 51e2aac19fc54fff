"""Runs what settings.py was asked for. Exit status: 0 when every check passed."""

import os
import signal
import sys
import time

from measure import attacks, basics, compute, latency, memory, mixes, programs
from measure.node import DRIVER, Node, call, nvidia_smi, uuids_in
from measure.report import Report, kept_in
from measure.settings import Settings
from measure.suite import Suite

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUNDLE = f"{FOLDER}/bundle/egpu-gpu-test"


def result_path(folder, node, settings):
    """Returns the file of the results: DATE-DRIVER-CARDS, and what was asked for."""
    driver = node.read("/sys/module/nvidia/version").strip() or "none"
    model = nvidia_smi("--query-gpu=name", "--format=csv,noheader").split("\n")[0]
    model = "".join(one if one.isascii() and one.isalnum() else "-" for one in model) or "none"
    name = f"{time.strftime('%Y-%m-%d')}-{driver}-{len(node.uuids)}x-{model}"
    parts = [name, "dry" if settings.dry else "", settings.only]
    return f"{folder}/{'-'.join(part for part in parts if part)}.txt"


def show_machine(report):
    report.title("machine")
    commit = f"cat {FOLDER}/commit 2>/dev/null || git -C {FOLDER} describe --always --dirty"
    for command in ("date", "uname -r", "head -n 2 /etc/os-release",
                    "stat -f -c 'cgroups: %T' /sys/fs/cgroup"):
        print(call(["sh", "-c", command]).text)
    print(nvidia_smi())
    print(call(["containerd", "--version"]).text, call(["egpu", "--version"]).text, sep="\n")
    print(f"built from {call(['sh', '-c', commit]).text}")


def show_egpu(node, report):
    report.title("egpu doctor")
    doctor = node.call_egpu("doctor")
    print(doctor.text, f"exit {doctor.code}", sep="\n")
    report.title("egpu cards")
    print(node.egpu("cards"))
    cards = uuids_in(node.egpu("cards", "--output", "json"))
    if node.dry:
        node.uuids = cards
    report.equal("egpu lists the cards that nvidia-smi lists", cards, node.uuids)


def show_logs(node, report):
    report.title("decision log")
    print(node.read(node.log), end="")
    if report.failed:
        report.title("containerd's log, its end")
        print(*node.read(f"{node.work}/containerd.log").splitlines()[-80:], sep="\n")


def check_nothing_left(node, report):
    report.title("nothing left")
    node.sleep(1)
    print(node.egpu("ps"))
    report.equal("no grants", node.json("ps"), [])
    report.equal("no records", node.records(), 0)
    report.equal("no shims", len(node.shims()), 0)


def run_all(suite):
    basics.run(suite)
    memory.run(suite)
    compute.run(suite)
    programs.run(suite)
    has_suite = os.access(f"{suite.node.programs}/it", os.X_OK)
    if has_suite:
        attacks.run(suite)
    check_nothing_left(suite.node, suite.report)
    show_logs(suite.node, suite.report)
    if has_suite and not suite.settings.quick:
        attacks.on_simulated_cards(suite)


def run(node, report, settings):
    suite = Suite(node, report, settings)
    show_egpu(node, report)
    parts = {"memory": memory, "cost": memory, "floor": memory, "attacks": attacks,
             "programs": programs, "latency": latency}
    if settings.only == "mixes":
        suite.run(mixes.mixes)
        show_logs(node, report)
    elif settings.only:
        parts.get(settings.only, compute).run(suite)
        show_logs(node, report)
    else:
        run_all(suite)
    return report.summary()


def end(number, _):
    """Ends the run and cleans up, which another signal is not to interrupt."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main(results):
    settings = Settings(os.environ)
    binaries = next((one for one in (f"{FOLDER}/bin", f"{BUNDLE}/bin") if os.path.isdir(one)), None)
    if not binaries:
        sys.exit("no programs: start bundle.sh first, or unpack the bundle")
    path = f"{binaries}:{os.environ['PATH']}:/usr/sbin:/sbin:{DRIVER}/bin"
    os.environ.update(PATH=path, EGPU_CONFIG=f"{settings.work}/egpu.toml")
    node = Node(FOLDER, binaries, settings)
    if os.geteuid() != 0:
        sys.exit("must be root")
    if not node.uuids and not settings.dry:
        sys.exit("no NVIDIA card is visible to nvidia-smi")
    os.makedirs(results, exist_ok=True)
    report = Report(result_path(results, node, settings))
    signal.signal(signal.SIGTERM, end)
    with kept_in(report.path):
        show_machine(report)
        with node:
            return 0 if run(node, report, settings) else 1


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else f"{FOLDER}/results")))
