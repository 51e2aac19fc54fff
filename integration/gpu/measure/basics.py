"""Cards of a container: none, a share, a whole one, several; limits of cgroups."""

import re

from measure.node import uuids_in


def no_request(suite):
    report = suite.report
    report.title("a container without a request")
    script = """ls /dev/nvidia* 2>&1; nvidia-smi 2>&1; for minor in 0 255; do
    mknod /tmp/n$minor c 195 $minor
    (exec 3<>/tmp/n$minor) 2>&1 && echo "opened $minor"; done; echo end"""
    said = suite.node.run("none", [], "sh", "-c", script).text
    print(said)
    report.contains("it runs", said, "end")
    report.contains("it has no device nodes", said, "No such file")
    report.lacks("a node that it makes cannot be opened", said, "opened")
    report.contains("the refusal is the device filter's", said, "Operation not permitted")


OTHER_NODES = """for minor in 0 1 2 3 4 5 6 7; do
    [ -e /dev/nvidia$minor ] || { mknod /tmp/n$minor c 195 $minor
    (exec 3<>/tmp/n$minor) && echo opened; }; done"""
VIEW = """ls -l /dev/nvidia*; cat /proc/driver/nvidia/params | head -n 40
    ls -l /usr/bin/nvidia-smi; ldconfig -p | grep -c -i nvidia"""


def share(suite):
    node, report = suite.node, suite.report
    report.title("a share of one card: nvidia-smi")
    node.launch("share", ["EGPU_MEMORY=4GiB", "EGPU_COMPUTE=30%"])
    print(node.egpu("ps"), node.egpu("inspect", "share"), sep="\n")
    granted = node.granted("share")
    report.check("one card is granted", len(granted) == 1)
    said = node.exec("share", "nvidia-smi", "-L")
    print(said)
    report.equal("nvidia-smi sees exactly that card", uuids_in(said), granted)
    print(node.exec("share", "sh", "-c", VIEW))
    nodes = node.exec("share", "sh", "-c", 'ls /dev | grep -cE "^nvidia[0-9]+$"')
    report.equal("exactly one card's node", nodes, "1")
    if len(node.uuids) > 1:
        said = node.exec("share", "sh", "-c", OTHER_NODES)
        report.lacks("another card's node cannot be opened", said, "opened")
    torch(suite, granted)
    exclusive(suite, granted)


def torch(suite, granted):
    node, report = suite.node, suite.report
    report.title("a share of one card: PyTorch")
    if not node.has_torch:
        return report.skip("PyTorch: python3 has no torch")
    said = node.exec("share", "python3", "/tmp/torch_check.py")
    print(said)
    report.contains("PyTorch computes", said, "computed")
    report.equal("PyTorch sees exactly that card", uuids_in(said), granted)
    settings = ["EGPU_DEVICES=0", "EGPU_MEMORY=25%"]
    said = node.run("torch", settings, "python3", "/tmp/torch_check.py").text
    print(said)
    return report.contains("PyTorch computes as init", said, "computed")


def refused(suite, name, settings, what, part):
    """Checks that a container is refused, and that the reason names something."""
    done = suite.node.run(name, settings, "true")
    print(done.text)
    if done.code == 0:
        suite.report.check(f"{what}: not refused", False)
    suite.report.contains(what, done.text, part)


def exclusive(suite, granted):
    node, report = suite.node, suite.report
    report.title("exclusive and shared")
    refused(suite, "whole", [f"NVIDIA_VISIBLE_DEVICES={','.join(granted)}"],
            "a whole card beside a share is refused with the reason", ",".join(granted))
    node.stop("share")
    said = node.run("whole2", ["NVIDIA_VISIBLE_DEVICES=0"], "nvidia-smi", "-L").text
    print(said)
    report.equal("a whole card alone is granted", len(uuids_in(said)), 1)
    node.launch("whole3", ["NVIDIA_VISIBLE_DEVICES=0"])
    print(node.egpu("ps"))
    refused(suite, "beside", ["EGPU_DEVICES=0", "EGPU_MEMORY=1GiB"],
            "a share beside a whole card is refused", "whole card")
    node.stop("whole3")
    said = node.run("all", ["NVIDIA_VISIBLE_DEVICES=all"], "nvidia-smi", "-L").text
    report.equal("all means all", uuids_in(said), node.uuids)
    script = "ls /dev/nvidia[0-9]* 2>&1; ls /usr/bin/nvidia-smi"
    said = node.run("look", ["NVIDIA_VISIBLE_DEVICES=none"], "sh", "-c", script).text
    print(said)
    name = "none means driver files without a card"
    report.contains(name, said, "/usr/bin/nvidia-smi")
    report.title("more than a card has")
    refused(suite, "toomuch", ["EGPU_MEMORY=4000GiB"], "it is refused", "GiB")


def placement(suite):
    node, report = suite.node, suite.report
    report.title("placement on real cards")
    if len(node.uuids) < 2:
        return report.skip("placement: one card only")
    node.launch("b1", ["EGPU_MEMORY=4GiB"])
    node.launch("b2", ["EGPU_MEMORY=4GiB"])
    first = node.granted("b1")
    report.check("binpack: one card for both", first and first == node.granted("b2"))
    node.launch("s1", ["EGPU_MEMORY=4GiB", "EGPU_PLACEMENT=spread"])
    spread = node.granted("s1")
    report.check("spread: another card", spread and first and spread != first)
    node.launch("two", ["EGPU_CARDS=2", "EGPU_MEMORY=2GiB"])
    print(node.egpu("ps"))
    seen = uuids_in(node.exec("two", "nvidia-smi", "-L"))
    report.equal("two cards for one container", len(seen), 2)
    return node.stop("b1", "b2", "s1", "two")


def cgroup_limits(suite):
    node, report = suite.node, suite.report
    report.title("cgroup limits")
    node.launch("limited", ["EGPU_MEMORY=4GiB"], options=["--memory-limit", "4294967296"])
    cgroup = re.search("^0::(.*)$", node.read(f"/proc/{node.pid('limited')}/cgroup"), re.MULTILINE)
    path = f"/sys/fs/cgroup{cgroup[1] if cgroup else ''}/memory.max"
    if node.exists(path):
        report.equal("memory.max is honoured", node.read(path).strip(), "4294967296")
        print(node.metrics("limited"))
    else:
        report.skip("memory.max: no cgroup v2 memory controller")
    said = node.exec("limited", "nvidia-smi", "-L")
    report.contains("the GPU works under limits", said, "GPU-")
    node.stop("limited")


def run(suite):
    for part in (no_request, share, placement, cgroup_limits):
        suite.run(part)
