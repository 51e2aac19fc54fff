#!/usr/bin/env python3
"""Four claims of a quarter each on one real card, under a control plane of this machine's own. As root.

The Deployment of examples/kubernetes: what nvidia-smi, libcuda and a load have in each pod, all at once, then with the
plugin killed. Everything printed is kept in RESULTS/DATE-DRIVER-CARDS-kubernetes.txt; RESULTS may not be in /run or /var.

usage: run.py [--dry RM_CLIENT] BINARIES TARGET RESULTS     (from what bundle.sh packs, or with --dry from the repository)
    --dry    on simulated cards, without loads
"""

import argparse
import os
import re
import signal
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, f"{HERE}/..")
from api import until  # noqa: E402
from cluster import EXAMPLES, Cluster  # noqa: E402
from host import in_namespaces  # noqa: E402
from measure import __main__ as suite_of_cards  # noqa: E402
from measure.figures import at_least  # noqa: E402
from measure.loads import Compute  # noqa: E402
from measure.memory import filled  # noqa: E402
from measure.node import DRIVER, Node, call, nvidia_smi, uuids_in  # noqa: E402
from measure.report import Report, kept_in  # noqa: E402
from measure.settings import Settings  # noqa: E402
from measure.shares import caps_together  # noqa: E402

NAME, LABEL, CAP, REPLICAS = "claim-deployment", "app=claim-deployment", 25, 4
MIB, SUFFIXES = 1 << 20, {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}


def number(quantity):
    """The bytes that a published capacity is."""
    digits, suffix = re.fullmatch("([0-9]+)(.*)", quantity).groups()
    return int(digits) << (SUFFIXES[suffix] if suffix else 0)


class Pods(Node):
    """The node of measurements, whose containers are a cluster's pods."""

    def __init__(self, cluster, settings, tools):
        super().__init__(suite_of_cards.FOLDER, cluster.binaries, settings)
        self.cluster, self.tools, self.pods = cluster, tools, {}

    def exec_command(self, container, command):
        kubectl = [f"{self.cluster.programs}/kubectl", "--kubeconfig", self.cluster.kubeconfigs["admin"]]
        return [*kubectl, "exec", self.pods[container], "--", *command]


class Quarters(Compute):
    """Loads in pods that are there already, t0 and on."""

    def share(self, container, *settings):
        pass

    def end(self, *containers):
        self.signal_load(signal.SIGKILL, 60)
        self.settle()


def has_links_between_namespaces():
    made = call(["busybox", "ip", "link", "add", "egpu-probe", "type", "veth"]).code == 0
    call(["busybox", "ip", "link", "del", "egpu-probe"])
    return made


def manifest(memory):
    with open(f"{EXAMPLES}/claims-deployment.yaml", encoding="utf-8") as file:
        text = file.read().replace("memory: 8Gi", f'memory: "{memory}"')
    if has_links_between_namespaces():
        return text
    print("this kernel has no veth: pods are in the node's network namespace")
    return text.replace("runtimeClassName: egpu\n", "runtimeClassName: egpu\n      hostNetwork: true\n")


def published(cluster, report, node):
    """Shows and checks the slices; returns the first card's device."""
    report.title("what the plugin publishes")
    devices = [device for one in cluster.slices() for device in one["spec"]["devices"]]
    for device in devices:
        attributes = {name: list(value.values())[0] for name, value in device["attributes"].items()}
        capacity = {name: value["value"] for name, value in device["capacity"].items()}
        print(device["name"], attributes, capacity, device.get("taints", "no taints"), sep="\n  ")
    uuids = [device["attributes"]["uuid"]["string"] for device in devices]
    if not node.dry:
        report.equal("the plugin publishes the cards that nvidia-smi lists", sorted(uuids), node.uuids)
    return devices[0]


def running(cluster):
    pods = cluster.api.items(f"/api/v1/namespaces/default/pods?labelSelector={LABEL}")
    return sorted(one["metadata"]["name"] for one in pods if one["status"].get("phase") == "Running")


def deploy(cluster, report, node, quarter):
    report.title(f"a Deployment of {REPLICAS}: memory {quarter} bytes, compute {CAP}")
    began = time.monotonic()
    print(cluster.apply(manifest(quarter)), end="")
    try:
        pods = until("all replicas to run", lambda: len(found := running(cluster)) == REPLICAS and found, 90)
    except TimeoutError:
        print(cluster.kubectl("describe", "pods,resourceclaims"))
        raise
    print(f"all run {time.monotonic() - began:.1f} s after kubectl apply")
    node.pods = {f"t{place}": pod for place, pod in enumerate(pods)}
    print(cluster.kubectl("get", "pods,resourceclaims", "-o", "wide"), node.egpu("ps"), sep="\n")
    grants = [(card["uuid"], card["memory_limit_bytes"]) for one in node.json("ps") for card in one["cards"]]
    report.equal("egpu granted four times a quarter, to the byte", [bytes_ for _, bytes_ in grants], [quarter] * REPLICAS)
    report.equal("all of one card", len({uuid for uuid, _ in grants}), 1)
    for pod in pods:
        print(f"{pod}: {'; '.join(cluster.events(pod))}")


def one_more(cluster, report):
    report.title("one more")
    cluster.kubectl("scale", "deployment", NAME, f"--replicas={REPLICAS + 1}")

    def refusals():
        pods = cluster.api.items(f"/api/v1/namespaces/default/pods?labelSelector={LABEL}")
        pending = [one for one in pods if one["status"].get("phase") == "Pending"]
        conditions = [each for one in pending for each in one["status"].get("conditions", [])]
        return [each["message"] for each in conditions if each.get("reason") == "Unschedulable"]
    print(*until("the scheduler to refuse it", refusals, 30), sep="\n")
    report.equal("a fifth quarter has no place", len(running(cluster)), REPLICAS)
    cluster.kubectl("scale", "deployment", NAME, f"--replicas={REPLICAS}")
    until("it to be gone", lambda: not refusals(), 30)


def inside(report, node, quarter):
    """What nvidia-smi says in each pod."""
    report.title("nvidia-smi in each pod")
    for pod in node.pods.values():
        print(f"{pod}, as it began:", node.cluster.kubectl("logs", pod), sep="\n")
    query = ["nvidia-smi", "--query-gpu=uuid,memory.total,memory.used", "--format=csv,noheader,nounits"]
    for name, pod in node.pods.items():
        if node.dry:
            report.contains(f"{pod} sees its quarter", node.exec(name, "nvidia-smi"), f"/ {quarter // MIB}MiB")
            continue
        said = node.exec(name, *query)
        print(f"{pod}: {said}")
        total = said.split(",")[1:2]
        report.equal(f"{pod} sees one card", len(uuids_in(said)), 1)
        report.check(f"{pod} sees its quarter", total and abs(int(total[0]) - quarter / MIB) <= 1)


def fill(report, node, quarter, outside):
    """Every pod takes all that it can have, at once."""
    report.title("memory: all four full at once")
    programs = {name: node.spawn(name, ["/tmp/cuda-load", "fill", "2048"], f"{node.work}/{name}.fill") for name in node.pods}
    have = 0
    for name, program in programs.items():
        program.wait(120)
        said = node.read(f"{node.work}/{name}.fill")
        print(f"{node.pods[name]}: {said}", end="")
        allocated, left, total = filled(said) or [0] * 3
        report.equal(f"{node.pods[name]}: libcuda sees its quarter", total, quarter)
        report.check(f"{node.pods[name]}: it has no more than that", 0 < allocated <= quarter)
        have += total - left
    # The quarters are of what NVML calls the card's memory, of which the driver keeps a part.
    print(f"together: {have} of {REPLICAS * quarter}; a program outside can have {outside}")
    report.check("together they have all that the card gives", at_least(have, outside))


def caps(cluster, report, suite):
    report.title("compute: all four busy")
    asked = [CAP] * REPLICAS
    caps_together(suite, f"{CAP} x {REPLICAS}", *asked)
    report.title("compute: the same, with the plugin killed")
    cluster.part("plugin").kill()
    caps_together(suite, f"{CAP} x {REPLICAS}, no plugin", *asked)
    before = suite.node.json("ps")
    cluster.part("plugin").start()
    report.equal("the next plugin finds four grants", len(before), len(suite.node.json("ps")))


def delete(cluster, report, node):
    report.title("all deleted")
    began = time.monotonic()
    cluster.kubectl("delete", "deployment", NAME, "--cascade=foreground", "--timeout=60s")
    until("the claims to be gone", lambda: not cluster.api.items("/apis/resource.k8s.io/v1/resourceclaims"), 60)
    print(f"gone after {time.monotonic() - began:.1f} s")
    try:
        until("the node to be empty", lambda: not cluster.leftovers(), 10)
    except TimeoutError as error:
        print(error)
    report.equal("nothing of it is on the node", cluster.leftovers(), [])
    report.equal("no grants", node.json("ps"), [])
    report.equal("the ledger is empty", node.records(), 0)


def starts(cluster, report):
    """How long kubelet waited for the plugin, by its own metrics."""
    text = cluster.kubectl("get", "--raw", "/api/v1/nodes/node/proxy/metrics", check=False)
    lines = [line for line in text.splitlines() if line.startswith("dra_grpc_") and "_bucket" not in line]
    report.title("kubelet's metrics of the plugin")
    print(*lines, sep="\n")


def show(cluster, node, report):
    print(f"Kubernetes {cluster.api.get('/version')['gitVersion']}, plugin {call([cluster.plugin, '--version']).text}")
    for memory in re.findall(r"^VmRSS.*$", node.read(f"/proc/{cluster.part('plugin').process.pid}/status"), re.MULTILINE):
        print(f"the plugin's {memory}")
    suite_of_cards.show_egpu(node, report)


def run(cluster, node, report, settings):
    suite = Quarters(node, report, settings)
    show(cluster, node, report)
    quarter = number(published(cluster, report, node)["capacity"]["memory"]["value"]) // 4
    if not node.dry:
        report.title("the load alone, outside")
        suite.calibrate(["short"])
        suite.measure_alone("short")
        said = node.on_host(f"{node.tools}/cuda-load", "fill", "2048")
        print(f"cuda-load fill, outside: {said}")
        allocated, *_ = filled(said)
    deploy(cluster, report, node, quarter)
    inside(report, node, quarter)
    if not node.dry:
        one_more(cluster, report)
        fill(report, node, quarter, allocated)
        caps(cluster, report, suite)
    starts(cluster, report)
    delete(cluster, report, node)
    report.title("the driver's lines in the kernel's log, the last")
    print(*(node.kernel_log("NVRM|Xid") or ["none"])[-5:], sep="\n")
    suite_of_cards.show_logs(node, report)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", metavar="RM_CLIENT", type=os.path.realpath)
    for path in ("binaries", "target", "results"):
        parser.add_argument(path, type=os.path.realpath)
    return parser.parse_args()


def main():
    options = parse_arguments()
    path = [options.binaries, f"{options.target}/containerd/forky/usr/bin", os.environ["PATH"], "/usr/sbin", "/sbin", f"{DRIVER}/bin"]
    os.environ.update(PATH=":".join(path), EGPU_CONFIG="/run/node/egpu.toml", EGPU_GPU_WORK="/run/node",
                      EGPU_GPU_DRY="1" if options.dry else "")
    # The driver tells of processes by the machine's own numbers.
    folder = in_namespaces(processes=bool(options.dry))
    settings, images = Settings(os.environ), None if options.dry else f"{options.target}/images.tar"
    settings.only = "kubernetes"
    cluster = Cluster(options.binaries, options.target, options.dry or "", folder, images=images,
                      plugin=f"{options.binaries}/egpu-kubelet-plugin")
    node = Pods(cluster, settings, options.binaries)
    if not node.uuids and not options.dry:
        sys.exit("no NVIDIA card is visible to nvidia-smi")
    os.makedirs(options.results, exist_ok=True)
    report = Report(suite_of_cards.result_path(options.results, node, settings))
    with kept_in(report.path):
        suite_of_cards.show_machine(report)
        began = time.monotonic()
        with cluster:
            print(f"cluster ready after {time.monotonic() - began:.1f} s")
            try:
                run(cluster, node, report, settings)
            except Exception:
                report.check("it runs to its end", False, traceback.format_exc())
                cluster.keep_objects()
                node.end_programs()
        return 0 if report.summary() else 1


if __name__ == "__main__":
    sys.exit(main())
