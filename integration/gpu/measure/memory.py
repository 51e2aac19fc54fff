"""Quotas of memory: each table with its baseline in the same run."""

import re
from collections import Counter

from measure import cost, floor, managed
from measure.figures import at_least, at_most
from measure.node import NCCL, NCCL_OPTIONS
from measure.settings import select

MIB, GIB = 1 << 20, 1 << 30
QUOTA_MIB = 4096
TORCH_FILL = """import torch
blocks = []
try:
    while True: blocks.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError as error:
    print(len(blocks), "blocks of 64 MiB, then:", str(error)[:200])
"""
NVML_MEMORY = """import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1"); nvml.nvmlInit_v2()
class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]
device, memory = ctypes.c_void_p(), Memory()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
status = nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
print(status, memory.total, memory.used, memory.free)
"""
FILLED = re.compile(r"^allocated ([0-9]+) .* free ([0-9]+) total ([0-9]+)$", re.MULTILINE)


def filled(text):
    """Reads what `cuda-load fill` prints: bytes allocated, free, in all."""
    found = FILLED.search(text)
    return tuple(map(int, found.groups())) if found else None


def count_lines(lines):
    for line, times in sorted(Counter(lines).items()):
        print(f"{times:7} {line}")


def card(number, memory, *settings):
    return [f"EGPU_DEVICES={number}", f"EGPU_MEMORY={memory}", *settings]


def quota(suite):
    node, report = suite.node, suite.report
    report.title("memory: 4 GiB of a card")
    node.launch("quota", card(0, "4GiB"))
    said = node.exec("quota", "/tmp/cuda-load", "fill", "2048")
    print(f"cuda-load fill: {said}")
    report.contains("libcuda is refused in the end, not before", said, "then refused")
    left = (filled(said) or [None] * 2)[1]
    name = "the last allocation that fits, fits: less than 2 MiB are left"
    report.check(name, at_most(left, 2 * MIB - 1))
    rdma = node.on_host(f"{node.tools}/cuda-load", "attribute", "116")
    report.equal(f"programs are told that there is no GPUDirect RDMA (here: {rdma})",
                 node.exec("quota", "/tmp/cuda-load", "attribute", "116"), "0")
    said = node.exec("quota", "/tmp/rm-client", "alloc", "64MiB", "--count", "100")
    print("rm-client alloc 64MiB --count 100:", *said.splitlines()[-2:])
    report.contains("a static client is refused", said, "out of memory")
    if node.has_torch:
        said = node.exec("quota", "python3", "-c", TORCH_FILL)
        print(f"PyTorch: {said}")
        name = "PyTorch raises its out-of-memory error and names the quota"
        report.contains(name, said, "total capacity of 4.00 GiB")
    report.check("all of it is free again", suite.is_drained("quota"))
    quota_view(suite)
    node.stop("quota")


def quota_view(suite):
    node, report = suite.node, suite.report
    report.title("memory: what programs in the container see")
    view = node.exec("quota", "nvidia-smi", "--query-gpu=memory.total,memory.used,memory.free",
                     "--format=csv,noheader,nounits")
    print(f"nvidia-smi (total, used, free MiB): {view}")
    report.equal("nvidia-smi sees the quota", view.split(",")[0], str(QUOTA_MIB))
    view = node.exec("quota", "/tmp/cuda-load", "info")
    print(f"cuMemGetInfo: {view}")
    total = re.findall(r"total ([0-9]+)", view)
    report.equal("cuMemGetInfo sees the quota", total, [str(QUOTA_MIB * MIB)])
    view = node.exec("quota", "python3", "-c", NVML_MEMORY)
    print(f"NVML (status, total, used, free): {view}")
    report.equal("NVML sees the quota", view.split()[1:2], [str(QUOTA_MIB * MIB)])
    holder = node.spawn("quota", ["/tmp/cuda-load", "hold", "1048576", "4"], f"{node.work}/hold")
    node.sleep(2)
    inner = node.exec("quota", "nvidia-smi")
    print(inner)
    report.check("nvidia-smi shows what is used of the quota",
                 re.search(f"[1-9][0-9]*MiB / +{QUOTA_MIB}MiB", inner))
    print(node.egpu("ps"))
    report.check("egpu ps shows it too", at_least(node.used_mib("quota"), 1024))
    holder.wait()


def unusable_mib(node):
    """Memory that is free after a program on the host has all that it can in frames of 2 MiB."""
    found = filled(node.on_host(f"{node.tools}/cuda-load", "fill", "2048"))
    return found[1] // MIB if found else None


# A program leaves 256 KiB in each frame of 2 MiB, in which the driver puts what it makes for
# itself (the buffers of 16 contexts); then it frees all that is its own.
FRAMES = """mkfifo /tmp/go
    /tmp/rm-client fragment holes --hold stdin </tmp/go >/tmp/holes & exec 3>/tmp/go
    until grep -q holding /tmp/holes; do sleep 0.1; done
    for context in $(seq 16); do /tmp/cuda-load hold 4 75 >/dev/null 2>&1 3>&- & done
    sleep 25; touch /tmp/full; until [ -e /tmp/free ]; do sleep 0.1; done
    exec 3>&-; touch /tmp/freed; wait"""


def frames(suite):
    node, report = suite.node, suite.report
    report.title("memory: frames of 2 MiB that are held open by what the driver makes for itself")
    before = unusable_mib(node)
    node.launch("frames", card(0, "16GiB"))
    root = f"{node.root('frames')}/tmp"
    holder = node.spawn("frames", ["sh", "-c", FRAMES], f"{node.work}/frames")
    wait_for(node, f"{root}/full")
    holes = " ".join(node.read(f"{root}/holes").split("\n"))
    print(f"with 256 KiB free in each frame, and 16 contexts: {holes}, "
          f"{node.used_mib('frames')} MiB charged, of the card {suite.card_memory()}")
    node.touch(f"{root}/free")
    wait_for(node, f"{root}/freed")
    node.sleep(5)
    print(f"with the contexts alone: {node.used_mib('frames')} MiB charged, of the card "
          f"{suite.card_memory()}")
    during = unusable_mib(node)
    holder.wait()
    after = unusable_mib(node)
    print(f"free, but not in whole frames: {before} MiB without the container, {during} MiB "
          f"beside the contexts, {after} MiB after them")
    held = None if before is None or during is None else during - before
    name = "what contexts hold open beyond what they are charged is less than 512 MiB"
    report.check(name, at_most(held, 512))
    node.stop("frames")


def wait_for(node, path):
    for _ in range(3000):
        if node.exists(path):
            return
        node.sleep(0.2)
    raise RuntimeError(f"{path} did not come in ten minutes")


def vendor(suite):
    node, report = suite.node, suite.report
    if not node.has_torch:
        return
    report.title("memory: CTYun's cases 1 and 2 on one card, a training step that needs about "
                 "7.6 GB, at 10 percent of the card's time")
    print(f"{'MEM':<9} result")
    train = ("3", "7250")
    print(f"{'outside':<9} " + node.on_host("python3", f"{node.tools}/train.py", *train))
    for memory in (3276, 8192):
        request = f"EGPU=POLICY=0,ONLINE=0,TYPE=CONTAINERD:PGPU=0,MEM={memory},WEIGHT=10"
        said = node.run(f"case{memory}", ["NVIDIA_VISIBLE_DEVICES=0", request],
                        "python3", "/tmp/train.py", *train).text
        print(f"{memory:<9} {said.splitlines()[-1] if said else ''}")
        if memory == 3276:
            report.contains("3276 MiB: out of memory", said, "out of memory")
        else:
            report.contains("8192 MiB: the same job runs", said, "examples/s")


# Ten programs at once, every third of them without libcuda. The output of one that fails is shown.
RANDOM = """for seed in $(seq {first} {last}); do
    if [ $((seed % 3)) = 0 ]; then timeout 60 /tmp/rm-client random $seed 200 --max 512MiB
    else timeout 60 /tmp/cuda-load random $seed 60 786432; fi >/tmp/out.$seed 2>&1
    code=$?; [ $code = 0 ] || [ $code = 2 ] || tail -n 1 /tmp/out.$seed >&2
    echo "$seed exit $code" & done; wait"""


def random(suite):
    node, report, programs = suite.node, suite.report, suite.settings.programs
    report.title(f"memory: {programs} random programs against NVML's account")
    node.launch("random", card(0, "8GiB"))
    sampler = node.spawn(None, ["python3", "-m", "measure.nvml", "0", str(8 * GIB)],
                         f"{node.work}/samples", read_input=True)
    started, lines = node.now_us(), []
    for first in range(0, programs, 10):
        script = RANDOM.format(first=first, last=min(first + 10, programs) - 1)
        lines += node.exec("random", "sh", "-c", script).splitlines()
    sampler.stdin.close()
    within = sampler.wait() == 0
    print(node.read(f"{node.work}/samples"), end="")
    codes = [found[1] for line in lines if (found := re.search(r"^[0-9]+ exit ([0-9]+)$", line))]
    seconds = (node.now_us() - started) // 1_000_000
    print(f"{len(codes)} programs in {seconds} s, by exit code (2 is out of memory):")
    count_lines(line for line in lines if " exit " not in line)
    for code, count in sorted(Counter(codes).items()):
        print(f"  exit {code}: {count}")
    report.check("at no sample is NVML's account above the grant", within)
    report.check("all ended by themselves", sum(code in "02" for code in codes) == programs)
    suite.check_drained("random")
    node.stop("random")


def pinned(suite):
    node, report = suite.node, suite.report
    if not suite.needs_torch("pinned"):
        return
    report.title("memory: what a program pins of its own, in 9 threads")
    drifts = suite.drifts()
    outside = node.on_host("python3", f"{node.tools}/pin_load.py", errors=True).splitlines()[-2:]
    inside = node.run("pinned", card(0, "16GiB"), "python3", "/tmp/pin_load.py").text
    inside = inside.splitlines()[-5:]
    print("outside (copies checked; microseconds to register and unregister 1 MiB):", *outside,
          "inside:", *inside, sep="\n")
    name = "all that was pinned reaches the card and comes back"
    report.contains(name, "\n".join(inside), "checked ")
    report.equal("nothing drifts", suite.drifts(), drifts)
    node.stop("pinned")


def large(suite):
    """Blocks of 1 GiB, on one card or two: they have addresses on an NVLink fabric, if any."""
    node, report = suite.node, suite.report
    if not suite.needs_torch("large"):
        return
    devices = "0,1" if len(node.uuids) > 1 else "0"
    report.title(f"memory: blocks of 1 GiB, on card {devices}")
    drifts = suite.drifts()
    run = ["timeout", "120", "python3"]
    outside = node.on_host("env", *NCCL, f"CUDA_VISIBLE_DEVICES={devices}", *run,
                           f"{node.tools}/large_load.py", errors=True)
    node.launch("large", card(devices, "16GiB", *NCCL), options=NCCL_OPTIONS)
    said = node.exec("large", *run, "/tmp/large_load.py")
    outside, inside = (
        [line for line in text.splitlines() if re.match("(ok|failed|peers) ", line)]
        for text in (outside, said))
    print("outside:", *outside, "inside:", *inside, sep="\n")
    report.contains("a block is written and read", "\n".join(inside), "ok written on card 0")
    if not report.equal("what works outside works inside", inside, outside):
        print(*said.splitlines()[-40:], sep="\n")
        show_refused_calls(node)
    suite.check_drained("large")
    report.equal("nothing drifts", suite.drifts(), drifts)
    node.stop("large")


def show_refused_calls(node):
    """Counts the driver calls that fail in the container, by `egpu trace`."""
    traced = node.exec("large", "timeout", "120", "/tmp/egpu", "trace", "--", "python3",
                       "/tmp/large_load.py")
    calls = Counter(re.sub(r"^ *[0-9.]+ [0-9/]+ ", "", line) for line in traced.splitlines()
                    if re.search("-> (0x|E)", line))
    for line, times in calls.most_common(30):
        print(f"{times:7} {line}")


def many(suite):
    node, report = suite.node, suite.report
    report.title("memory: 32 processes of one container at once")
    drifts = suite.drifts()
    node.launch("many", card(0, "32GiB"))
    script = ("for seed in $(seq 32); do timeout 90 /tmp/cuda-load random $seed 150 262144 "
              '>/dev/null 2>&1; echo "exit $?" & done; wait')
    lines = node.exec("many", "sh", "-c", script, timeout=120).splitlines()
    count_lines(lines)
    ended = sum(line in ("exit 0", "exit 2") for line in lines)
    report.equal("all 32 end, none hangs", ended, 32)
    suite.check_drained("many")
    report.equal("nothing drifts", suite.drifts(), drifts)
    node.stop("many")


def sixteen(suite):
    node, report = suite.node, suite.report
    report.title("memory: 16 containers on one card at once")
    drifts = suite.drifts()
    with node.setting("device_split_count = 32"):
        node.rootfs("many")
        names = [f"c{number}" for number in range(1, 17)]
        for name in names:
            node.share_root(name, "many")
            node.launch(name, card(0, "2GiB"))
        print(*node.egpu("ps").splitlines()[-4:], sep="\n")
        script = "timeout 90 /tmp/cuda-load random {} 150 131072; echo exit $?"
        lines = in_each(node, names, lambda name: ["sh", "-c", script.format(name[1:])])
        lines = [(text.splitlines() or [""])[-1] for text in lines]
        count_lines(lines)
        ended = sum(line in ("exit 0", "exit 2") for line in lines)
        report.equal("all 16 end, none hangs", ended, 16)
        # A context has to fit beside 64 MiB; one step beyond 2 GiB is refused whatever the
        # neighbours do.
        texts = in_each(node, names, lambda name: ["/tmp/cuda-load", "fill", "2048"])
        found = [one for one in map(filled, texts) if one]
        right = sum(total == 2 * GIB and free < 2 * MIB and allocated >= 1300 * MIB
                    for allocated, free, total in found)
        print(f"{len(found)} containers filled their 2 GiB at once, {right} of them as they should")
        report.equal("each gets its 2 GiB and no more", right, 16)
        suite.check_drained(*names)
        report.equal("nothing drifts", suite.drifts(), drifts)
        node.stop(*names)


def in_each(node, containers, command):
    """Runs a program in each container at once, for 100 s at most; returns what each printed."""
    started = [node.spawn(name, command(name), f"{node.work}/{name}.out", timeout=100)
               for name in containers]
    for one in started:
        one.wait()
    return [node.read(f"{node.work}/{name}.out") for name in containers]


def whole(suite):
    node, report = suite.node, suite.report
    report.title('memory: a whole card with whole_cards = "mediated"')
    with node.setting('whole_cards = "mediated"'):
        node.launch("whole", ["EGPU_DEVICES=0"])
        print(node.egpu("ps"))
        query = ["--query-gpu=memory.total", "--format=csv,noheader"]
        report.equal("nvidia-smi sees all of it", node.exec("whole", "nvidia-smi", *query),
                     node.nvidia_smi("-i", "0", *query))
        said = node.exec("whole", "/tmp/cuda-load", "fill", "2048")
        print(f"cuda-load fill: {said}")
        total = int(node.nvidia_smi("-i", "0", query[0], "--format=csv,noheader,nounits"))
        allocated = (filled(said) or [None])[0]
        report.check("all of it can be had", at_least(allocated, total * MIB * 97 // 100))
        suite.check_drained("whole")
        if node.has_torch:
            said = node.exec("whole", "python3", "/tmp/train.py", "2")
            print(said)
            report.contains("PyTorch trains on it", said, "examples/s")
        node.stop("whole")


PARTS = [quota, frames, vendor, random, managed.managed, cost.launches, cost.initialisation, cost.allocation,
         cost.training, floor.floor, pinned, large, many, sixteen, whole]


def run(suite):
    parts = select(PARTS, suite.settings.memory, without=[floor.floor])
    before = suite.node.kernel_log()
    for part in parts:
        suite.run(part)
    suite.kernel_log_since(before)
