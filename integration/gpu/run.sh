#!/bin/bash
# Runs egpu on a real GPU: private containerd, containers whose root file system is an overlay of this machine's own.
# usage: sudo run.sh [RESULT_FOLDER]   (from the unpacked bundle, or from the repository after bundle.sh)
# Needs root, cgroups, an NVIDIA driver; python3 with PyTorch for the compute checks. Changes nothing outside WORK and /run.
# EGPU_GPU_ONLY=PART runs one part (into DATE-DRIVER-CARD-PART.txt): memory (memory.sh), compute (compute.sh), attacks (attacks.sh: the test
# suites of memory and attacks, 8 minutes at most), cost (CUDA initialisation, malloc and free, training beside the same outside egpu:
# 5 minutes at most), two (NCCL on two cards), utilization (what programs are told of it), errors (kernels that fail).
# EGPU_GPU_DRY=1 tries the script itself where there is no card: simulated ones; of use with EGPU_GPU_ONLY=attacks alone.
# Exit status: 0 when every check passed. Everything printed is kept in RESULT_FOLDER/DATE-DRIVER-CARD.txt.
set -u
here=$(cd "$(dirname "$0")" && pwd)
bin=$here/bin
[ -d "$bin" ] || bin=$here/bundle/egpu-gpu-test/bin
results=${1:-$here/results}
work=${EGPU_GPU_WORK:-/tmp/egpu-gpu}
socket=$work/containerd.sock
namespace=egpu-gpu-$$
export EGPU_CONFIG=$work/egpu.toml
export PATH=$bin:$PATH:/usr/sbin:/sbin:/usr/local/nvidia/bin
passed=0 failed=0 skipped=0
only=${EGPU_GPU_ONLY:-}
# As it was called before.
[ -z "${EGPU_GPU_ONLY_MEMORY:-}" ] || only=memory
[ -z "${EGPU_GPU_ONLY_COMPUTE:-}" ] || only=compute
dry=${EGPU_GPU_DRY:-}
case $only in
    '' | memory | compute | attacks | cost | two | utilization | achieved | errors) ;;
    *) echo "EGPU_GPU_ONLY=$only: memory, compute, attacks, cost, two, utilization, achieved or errors" >&2; exit 1 ;;
esac

mkdir -p "$results"
driver=$(cat /sys/module/nvidia/version 2>/dev/null || echo none)
host_smi() { LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:/usr/local/nvidia/lib64:/usr/local/nvidia/lib nvidia-smi "$@"; }
mapfile -t host_uuids < <(host_smi --query-gpu=uuid --format=csv,noheader 2>/dev/null)
model=$(host_smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 | tr -c 'A-Za-z0-9\n' '-')
result=$results/$(date +%Y-%m-%d)-$driver-${#host_uuids[@]}x-${model:-none}${dry:+-dry}${only:+-$only}.txt
exec > >(tee "$result") 2>&1

title() { printf '\n=== %s\n' "$*"; }
pass() { passed=$((passed + 1)); echo "PASS $*"; }
fail() { failed=$((failed + 1)); echo "FAIL $*"; }
skip() { skipped=$((skipped + 1)); echo "skipped: $*"; }
# check NAME COMMAND...: passes when the command does; what it prints is shown.
check() {
    local name=$1
    shift
    if "$@"; then pass "$name"; else fail "$name (exit $?)"; return 1; fi
}
contains() { grep -qF -- "$2" <<<"$1" || { echo "no '$2' in:"; echo "$1"; return 1; }; }
lacks() { ! grep -qF -- "$2" <<<"$1" || { echo "'$2' is in:"; echo "$1"; return 1; }; }
same_lines() { diff <(printf '%s\n' "$1") <(printf '%s\n' "$2"); }
at_least() { awk -v have="$1" -v want="$2" 'BEGIN { exit !(have != "" && have + 0 >= want + 0) }'; }
at_most() { awk -v have="$1" -v want="$2" 'BEGIN { exit !(have != "" && have + 0 <= want + 0) }'; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { if (a != "" && b > 0) printf "%.4f", a / b }'; }

# How many lines the driver has written into the kernel's log.
kernel_log() { dmesg 2>/dev/null | grep -c 'NVRM\|nvidia'; }
# no_log [MOST]: no more than that (0) since log_before was set to how many there were.
no_log() {
    local most=${1:-0}
    title "the kernel's log"
    dmesg >/dev/null 2>&1 || { skip "mediation fills no log: it cannot be read"; return; }
    log_after=$(kernel_log)
    echo "$((log_after - log_before)) new lines of the driver"
    dmesg | grep 'NVRM\|nvidia' | tail -n $((log_after - log_before)) | head -n 20
    check "mediation fills no log" [ $((log_after - log_before)) -le "$most" ]
}

ctr_() { ctr --address "$socket" --namespace "$namespace" "$@"; }
# run ID [ctr run options...] -- COMMAND...: in the foreground, on a root file system of its own.
run() { start_with "" "$@"; }
# launch: the same, detached.
launch() { start_with --detach "$@"; }
start_with() {
    local mode=$1 id=$2 options=()
    shift 2
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    rootfs "$id"
    ctr_ run $mode ${mode:---rm} --runtime io.containerd.egpu.v1 --env "PATH=$container_path" --env HOME=/root \
        --env TORCH_HOME=/tmp "${options[@]}" --rootfs "$work/roots/$id/merged" "$id" "$@"
}
# What NCCL is told, outside and inside: multicast is off on machines that lend single cards; both ends are on this machine. In a container it has
# the host's network, where an interface is up, and a larger /dev/shm than 64 MiB: its buffers are there where cards do not reach each other.
nccl=(NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=WARN)
nccl_options=(--net-host --mount type=tmpfs,src=shm,dst=/dev/shm,options=nosuid:nodev:mode=1777:size=1073741824)
for setting in "${nccl[@]}"; do nccl_options+=(--env "$setting"); done
stop() {
    for id in "$@"; do
        ctr_ tasks kill --all --signal KILL "$id" >/dev/null 2>&1
        for _ in $(seq 100); do ctr_ tasks delete "$id" >/dev/null 2>&1 && break; sleep 0.1; done
        ctr_ containers delete "$id" >/dev/null 2>&1
    done
}
container_path=$(dirname "$(command -v python3)"):/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# An overlay of this machine's root file system.
overlay() {
    local root=$work/roots/$1
    mkdir -p "$root/upper" "$root/work" "$root/merged"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/merged" && mkdir -p "$root/merged/tmp"
}
# The same without its driver: what works inside was injected.
rootfs() {
    local root=$work/roots/$1
    [ -d "$root/merged" ] && return
    overlay "$1" || return
    rm -rf "$root/merged/usr/local/nvidia"
    find "$root/merged"/{usr/lib,usr/lib64,lib,lib64,usr/bin} -maxdepth 2 -xdev \( -name 'libcuda.so*' -o -name 'libnvidia-*' \
        -o -name 'nvidia-smi' -o -name 'libcudadebugger*' \) -delete 2>/dev/null
}
same_cards() { [ -n "$1" ] && [ "$1" = "$2" ]; }
other_cards() { [ -n "$1" ] && [ -n "$2" ] && [ "$1" != "$2" ]; }
uuids_in() { grep -o 'GPU-[0-9a-f-]*' | sort -u; }
granted_uuids() { egpu ps --output json | python3 -c '
import json, sys
for container in json.load(sys.stdin):
    if container["id"] == sys.argv[1]:
        print("\n".join(sorted(card["uuid"] for card in container["cards"])))' "$1"; }

logs() {
    title "decision log"
    cat "$work/egpu.log"
    if [ "$failed" -gt 0 ]; then
        title "containerd's log, its end"
        tail -n 80 "$work/containerd.log"
    fi
}
summary() {
    title "summary"
    echo "$passed passed, $failed failed, $skipped skipped; kept in $result"
    [ "$failed" = 0 ]
}

cleanup() {
    title "cleaning up"
    for id in $(ctr_ containers list --quiet 2>/dev/null); do stop "$id"; done
    echo "records left: $(ls "$work/state/ledger" 2>/dev/null | grep -c '\.json$')"
    echo "shims left: $(pgrep -fc -- "-address $socket")"
    [ -n "${containerd_pid:-}" ] && kill "$containerd_pid" && wait "$containerd_pid"
    pgrep -f -- "-address $socket" | xargs -r kill -KILL
    awk -v work="$work/" 'index($5, work) == 1 { print $5 }' /proc/self/mountinfo | sort -r | xargs -r umount -l
    umount -l "$work"
    rm -rf "$work"
}

title "machine"
date
uname -r
cat /etc/os-release | head -n 2
stat -f -c 'cgroups: %T' /sys/fs/cgroup
host_smi
containerd --version
egpu --version
echo "built from $(cat "$here/commit" 2>/dev/null || git -C "$here" describe --always --dirty)"

[ "$(id -u)" = 0 ] || { echo "must be root"; exit 1; }
[ -n "$dry" ] || [ ${#host_uuids[@]} -gt 0 ] || { echo "no NVIDIA card is visible to nvidia-smi"; exit 1; }
mkdir -p "$work"
mount -t tmpfs -o mode=755 tmpfs "$work" || exit 1
trap cleanup EXIT
cat >"$work/egpu.toml" <<TOML
state_dir = "$work/state"
log_file = "$work/egpu.log"
[driver]
kind = "nvidia"
TOML
[ -z "$dry" ] || cat >"$work/egpu.toml" <<TOML
state_dir = "$work/state"
log_file = "$work/egpu.log"
[driver]
kind = "simulated"
[[driver.simulated]]
model = "NVIDIA H200"
memory = "140GiB"
count = 2
TOML
cat >"$work/containerd.toml" <<TOML
version = 2
root = "$work/root"
state = "$work/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images",
    "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.aufs", "io.containerd.internal.v1.tracing", "io.containerd.nri.v1.nri"]
[grpc]
address = "$socket"
[ttrpc]
address = "$socket.ttrpc"
[debug]
level = "debug"
[plugins."io.containerd.internal.v1.opt"]
path = "$work/opt"
TOML
containerd --config "$work/containerd.toml" >"$work/containerd.log" 2>&1 &
containerd_pid=$!
for _ in $(seq 100); do ctr_ version >/dev/null 2>&1 && break; sleep 0.1; done

title "egpu doctor"
egpu doctor
echo "exit $?"
title "egpu cards"
egpu cards
cards=$(egpu cards --output json)
[ -z "$dry" ] || mapfile -t host_uuids < <(uuids_in <<<"$cards")
check "egpu lists the cards that nvidia-smi lists" diff <(printf '%s\n' "${host_uuids[@]}" | sort) <(uuids_in <<<"$cards")

if [ -n "$only" ]; then
    case $only in
        cost) EGPU_GPU_MEMORY="initialisation allocation training" . "$here/memory.sh" ;;
        two | utilization | achieved | errors) EGPU_GPU_COMPUTE=$only . "$here/compute.sh" ;;
        *) . "$here/$only.sh" ;;
    esac
    logs
    summary
    exit
fi

title "a container without a request"
none=$(run none -- sh -c 'ls /dev/nvidia* 2>&1; nvidia-smi 2>&1; for minor in 0 255; do
    mknod /tmp/n$minor c 195 $minor; (exec 3<>/tmp/n$minor) 2>&1 && echo "opened $minor"; done; echo end' 2>&1)
echo "$none"
check "it runs" contains "$none" end
check "it has no device nodes" contains "$none" "No such file"
check "a node that it makes cannot be opened" lacks "$none" "opened"
check "the refusal is the device filter's" contains "$none" "Operation not permitted"

title "a share of one card: nvidia-smi"
launch share --env EGPU_MEMORY=4GiB --env EGPU_COMPUTE=30% -- sleep infinity
egpu ps
egpu inspect share
share=$(granted_uuids share)
check "one card is granted" [ "$(wc -l <<<"$share")" = 1 -a -n "$share" ]
inside() { ctr_ tasks exec --exec-id "x$RANDOM" "$@" 2>&1; }
smi=$(inside share nvidia-smi -L)
echo "$smi"
check "nvidia-smi sees exactly that card" diff <(echo "$share") <(uuids_in <<<"$smi")
inside share sh -c 'ls -l /dev/nvidia*; cat /proc/driver/nvidia/params | head -n 40; ls -l /usr/bin/nvidia-smi; ldconfig -p | grep -c -i nvidia'
nodes=$(inside share sh -c 'ls /dev | grep -cE "^nvidia[0-9]+$"')
check "exactly one card's node" [ "$nodes" = 1 ]
if [ ${#host_uuids[@]} -gt 1 ]; then
    other=$(inside share sh -c 'for minor in 0 1 2 3 4 5 6 7; do [ -e /dev/nvidia$minor ] || { mknod /tmp/n$minor c 195 $minor;
        (exec 3<>/tmp/n$minor) && echo opened; }; done')
    check "another card's node cannot be opened" lacks "$other" opened
fi

title "a share of one card: PyTorch"
if python3 -c 'import torch' 2>/dev/null; then
    cp "$here/torch_check.py" "$work/roots/share/upper/tmp/" 2>/dev/null || cp "$here/torch_check.py" "$work/roots/share/merged/tmp/"
    torch=$(inside share python3 /tmp/torch_check.py)
    echo "$torch"
    check "PyTorch computes" contains "$torch" computed
    check "PyTorch sees exactly that card" diff <(echo "$share") <(uuids_in <<<"$torch")
    rootfs torch
    cp "$here/torch_check.py" "$work/roots/torch/merged/tmp/"
    torch=$(run torch --env EGPU_DEVICES=0 --env EGPU_MEMORY=25% -- python3 /tmp/torch_check.py 2>&1)
    echo "$torch"
    check "PyTorch computes as init" contains "$torch" computed
else
    skip "PyTorch: python3 has no torch"
fi

title "exclusive and shared"
refused=$(run whole --env NVIDIA_VISIBLE_DEVICES="$share" -- true 2>&1) && fail "a whole card beside a share was granted"
echo "$refused"
check "a whole card beside a share is refused with the reason" contains "$refused" "$share"
stop share
whole=$(run whole2 --env NVIDIA_VISIBLE_DEVICES=0 -- nvidia-smi -L 2>&1)
echo "$whole"
check "a whole card alone is granted" [ "$(uuids_in <<<"$whole" | wc -l)" = 1 ]
launch whole3 --env NVIDIA_VISIBLE_DEVICES=0 -- sleep infinity
egpu ps
refused=$(run beside --env EGPU_DEVICES=0 --env EGPU_MEMORY=1GiB -- true 2>&1) && fail "a share beside a whole card was granted"
echo "$refused"
check "a share beside a whole card is refused" contains "$refused" "whole card"
stop whole3
all=$(run all --env NVIDIA_VISIBLE_DEVICES=all -- nvidia-smi -L 2>&1)
check "all means all" diff <(printf '%s\n' "${host_uuids[@]}" | sort) <(uuids_in <<<"$all")
look=$(run look --env NVIDIA_VISIBLE_DEVICES=none -- sh -c 'ls /dev/nvidia[0-9]* 2>&1; ls /usr/bin/nvidia-smi' 2>&1)
echo "$look"
check "none means driver files without a card" contains "$look" /usr/bin/nvidia-smi

title "more than a card has"
refused=$(run toomuch --env EGPU_MEMORY=4000GiB -- true 2>&1) && fail "4000 GiB were granted"
echo "$refused"
check "it is refused" contains "$refused" "GiB"

title "placement on real cards"
if [ ${#host_uuids[@]} -gt 1 ]; then
    launch b1 --env EGPU_MEMORY=4GiB -- sleep infinity
    launch b2 --env EGPU_MEMORY=4GiB -- sleep infinity
    check "binpack: one card for both" same_cards "$(granted_uuids b1)" "$(granted_uuids b2)"
    launch s1 --env EGPU_MEMORY=4GiB --env EGPU_PLACEMENT=spread -- sleep infinity
    check "spread: another card" other_cards "$(granted_uuids s1)" "$(granted_uuids b1)"
    launch two --env EGPU_CARDS=2 --env EGPU_MEMORY=2GiB -- sleep infinity
    egpu ps
    check "two cards for one container" [ "$(inside two nvidia-smi -L | uuids_in | wc -l)" = 2 ]
    stop b1 b2 s1 two
else
    skip "placement: one card only"
fi

title "cgroup limits"
launch limited --env EGPU_MEMORY=4GiB --memory-limit 4294967296 -- sleep infinity
cgroup=$(sed -n 's/^0:://p' "/proc/$(ctr_ tasks list | awk '$1 == "limited" { print $2 }')/cgroup")
if [ -e "/sys/fs/cgroup$cgroup/memory.max" ]; then
    check "memory.max is honoured" [ "$(cat "/sys/fs/cgroup$cgroup/memory.max")" = 4294967296 ]
    ctr_ tasks metrics limited
else
    skip "memory.max: no cgroup v2 memory controller"
fi
check "the GPU works under limits" contains "$(inside limited nvidia-smi -L)" GPU-
stop limited

. "$here/memory.sh"
. "$here/compute.sh"
[ ! -x "$bin/it" ] || . "$here/attacks.sh"

title "nothing left"
sleep 1
egpu ps
check "no grants" [ "$(egpu ps --output json | tr -d ' \n')" = "[]" ]
check "no records" [ "$(ls "$work/state/ledger" 2>/dev/null | grep -c '\.json$')" = 0 ]
check "no shims" [ "$(pgrep -fc -- "-address $socket")" = 0 ]
logs

if [ -x "$bin/it" ] && [ -z "${EGPU_GPU_QUICK:-}" ]; then
    title "the integration tests on this machine, with simulated cards"
    mkdir -p "$work/it"
    TMPDIR=$work/it EGPU_TEST_BIN=$bin EGPU_TEST_CONTAINERD_BIN=$bin EGPU_TEST_HOSTILE=$bin/hostile EGPU_TEST_RM_CLIENT=$bin/rm-client timeout 400 "$bin/it" --test-threads 4 >"$work/it.txt" 2>&1
    status=$?
    grep -E '^(test |skipped)' "$work/it.txt"
    [ "$status" = 0 ] || sed -n '/^failures:/,$p' "$work/it.txt" | tail -n 150
    check "the integration tests pass" [ "$status" = 0 ]
fi

summary
