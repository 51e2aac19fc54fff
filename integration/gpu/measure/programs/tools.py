"""CUDA's tools in a share: sanitizers, profilers, a debugger, the server of MPS."""

import os
import re
import shutil
import subprocess

from measure.node import DRIVER, call, host_environment, tool
from measure.programs.compare import outcome
from measure.programs.places import SIDES, TIME_IS_OVER

CHECKS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND = re.compile("(?:ERROR SUMMARY: |RACECHECK SUMMARY: )([0-9]+) ")
BUILT = ("planted_faults", "memory_pools")


def build(node, folder):
    """Builds the programs in CUDA C++ for this machine's cards; returns those that were built."""
    nvcc = tool("nvcc")
    if not nvcc:
        return []
    started = {name: subprocess.Popen(
        [nvcc, "-arch=native", "-lineinfo", "-o", f"{folder}/{name}", f"{node.folder}/{name}.cu"],
        env=host_environment(), stdin=subprocess.DEVNULL) for name in BUILT}
    return [name for name, one in started.items() if one.wait() == 0]


def version_of(program):
    """Reads what a tool says of its version."""
    said = call([program, "--version"], env=host_environment()).text
    found = re.findall(r"[0-9]+\.[0-9]+(?:\.[0-9]+)*", said)
    return found[-1] if found else ""


def last_lines(output, most=12):
    return "\n".join(output.text.splitlines()[-most:])


def show(ends):
    """Prints the last lines of what a program said in each place."""
    for side in SIDES:
        print(f"{side} (exit {ends[side].code}):", last_lines(ends[side]), sep="\n")


def sanitizer(places, rows, _):
    program, name = tool("compute-sanitizer"), "compute-sanitizer"
    if not program:
        return rows.skip(name, 1, "it is not installed")
    found = {side: {} for side in SIDES}
    said = ""
    for check in CHECKS:
        for fault in (check, "none"):
            ends = places.both([program, "--tool", check, "@planted_faults", fault])
            for side in SIDES:
                right = judge_check(fault, ends[side])
                found[side][f"{check}: {'planted' if fault == check else 'no'} fault"] = \
                    outcome(right)
            if not judge_check(fault, ends["inside"]):
                said += f"{check}, {fault}, inside:\n{last_lines(ends['inside'])}\n"
    return rows.judge(name, version_of(program), 1, *found.values(), said=said)


def judge_check(fault, end):
    """A planted fault is to be told, and nothing else."""
    told = [int(count) for count in FOUND.findall(end.text)]
    if fault != "none":
        return any(told)
    return bool(told) and not any(told) and "program: cudaSuccess" in end.text


def debugger(places, rows, _):
    program = tool("cuda-gdb")
    if not program:
        return rows.skip("cuda-gdb", 1, "it is not installed")
    orders = ("set pagination off", "break good", "run none", "bt", "continue")
    command = [program, "-batch", *(part for one in orders for part in ("-ex", one))]
    ends = places.both([*command, "@planted_faults"], seconds=40)
    show(ends)
    found = {side: {"stops in a kernel": outcome(
        re.search("hit Breakpoint 1.*good", ends[side].text) and "cudaSuccess" in ends[side].text)}
        for side in SIDES}
    return rows.judge("cuda-gdb", version_of(program), 1, *found.values())


def ncu(places, rows, _):
    program = tool("ncu")
    if not program:
        return rows.skip("ncu", 1, "it is not installed")
    command = [program, "--clock-control", "none", "--section", "SpeedOfLight",
               "@planted_faults", "none"]
    ends = places.both(command, seconds=40)
    show(ends)
    found = {side: {"profiles a kernel": outcome(
        ends[side].code == 0 and "Duration" in ends[side].text)} for side in SIDES}
    return rows.judge("ncu", version_of(program), 1, *found.values())


# Two clients hold 64 MiB each for five seconds; the server is asked for them meanwhile.
MPS = """folder=$(mktemp -d /tmp/mps.XXXXXX); mkdir $folder/pipe $folder/log
export CUDA_MPS_PIPE_DIRECTORY=$folder/pipe CUDA_MPS_LOG_DIRECTORY=$folder/log
PATH=$PATH:{driver}/bin
nvidia-cuda-mps-control -d </dev/null >$folder/daemon 2>&1 || echo no daemon
for client in 1 2; do
    ( timeout 40 {load} hold 65536 5 >$folder/$client 2>&1; echo "client exit $?" ) &
    clients="$clients $!"
done
sleep 4
for server in $(echo get_server_list | timeout 5 nvidia-cuda-mps-control); do
    echo "server $server"
    echo get_client_list $server | timeout 5 nvidia-cuda-mps-control | sed "s/^/served /"
done
wait $clients
echo quit -t 5 | timeout 20 nvidia-cuda-mps-control
cat $folder/daemon $folder/1 $folder/2; tail -n 20 $folder/log/*; rm -rf $folder"""


def mps(places, rows, _):
    path = f"{os.environ['PATH']}:{DRIVER}/bin"
    if not shutil.which("nvidia-cuda-mps-control", path=path):
        return rows.skip("MPS", 1, "nvidia-cuda-mps-control is not installed")
    script = MPS.format(driver=DRIVER, load=f"{places.shared}/cuda-load")
    ends = {side: places.run(side, ["sh", "-c", script], seconds=90) for side in SIDES}
    found = {side: mps_outcomes(ends[side]) for side in SIDES}
    if found["outside"] != found["inside"]:
        show(ends)
    return rows.judge("MPS", "", 1, *found.values())


def mps_outcomes(end):
    said = end.text
    return {"the daemon starts": outcome("no daemon" not in said and end.code not in TIME_IS_OVER),
            "the server starts": outcome(re.search("^server [0-9]+", said, re.MULTILINE)),
            "two clients are served": outcome(
                len(re.findall("^served [0-9]+", said, re.MULTILINE)) == 2),
            "both clients end well": outcome(said.count("client exit 0") == 2)}
