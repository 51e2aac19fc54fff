#!/bin/bash
# The main job, end to end: three containers share GPUs through a containerd of their own, and each
# gets its share of the time; a fourth is refused, and a fifth is told "out of memory" at its quota.
#
# Starts a private containerd beside whatever runs on the machine, and takes everything away again
# at the end. Without an NVIDIA driver, four Tesla V100 of 32 GB are simulated. Every statement that
# is printed is checked: the exit status is 0 only if what was to happen did happen, and nothing was
# left behind.
#
# usage: integration/demo/demo.sh DIRECTORY_OF_RELEASE_BINARIES       (as root; EGPU_TEST_RM_CLIENT names the static program
# that uses a card's memory without CUDA: make rm-client)
set -euo pipefail

release=$(realpath "${1:?give the directory of the release binaries}")
rm_client=${EGPU_TEST_RM_CLIENT:?the static program that uses a card: make rm-client}
[ -x "$rm_client" ] || {
    echo "$rm_client is not there: make rm-client" >&2
    exit 1
}
[ "$(id -u)" -eq 0 ] || {
    echo "the demo starts containers: run it as root" >&2
    exit 1
}

work=$(mktemp --directory --tmpdir egpu-demo-XXXXXX)
namespace=${work##*/}
export EGPU_CONFIG=$work/egpu.toml
export PATH=$release:$PATH
daemon=

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
# show COMMAND...: prints the command as a user would type it, then runs it.
show() {
    printf '$ %s\n' "$*"
    "$@"
}
fail() {
    echo "demo: $*" >&2
    exit 1
}
ctr() { command ctr --address "$work/containerd.sock" --namespace "$namespace" "$@"; }

# --- Cleaning up: also after a failure or Ctrl-C -----------------------------------------------------------------------

# The shims and the daemon: containerd tells each shim its address, which lies in our directory.
our_processes() { grep --files-with-matches --text --fixed-strings -e "$work" /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3 || true; }
our_mounts() { awk -v work="$work/" 'index($5, work) == 1 { print $5 }' /proc/self/mountinfo | sort --reverse; }
our_cgroups() { find /sys/fs/cgroup -depth -type d -path "*/$namespace*" 2>/dev/null || true; }

# left_behind: names what containers left, one thing a line; the daemon's own files do not count.
left_behind() {
    our_mounts
    our_cgroups | grep "/$namespace/" || true
    local process
    for process in $(our_processes); do
        if [ "$process" != "$daemon" ] && [ -e "/proc/$process/exe" ]; then
            tr '\0' ' ' <"/proc/$process/cmdline" 2>/dev/null || true
            echo
        fi
    done
}

stop_containers() {
    local id
    for id in $(ctr tasks list --quiet 2>/dev/null); do
        # ctr reports the exit code of the killed program, 137, as an error.
        ctr tasks delete --force "$id" >>"$work/ctr.log" 2>&1 || true
    done
    for id in $(ctr containers list --quiet 2>/dev/null); do
        ctr containers delete "$id" >>"$work/ctr.log" 2>&1 || true
    done
}

cleanup() {
    local status=$?
    trap - EXIT INT TERM
    set +e
    if [ -n "$daemon" ]; then
        [ $status -eq 0 ] || stop_containers
        kill "$daemon"
        wait "$daemon" 2>/dev/null
    fi
    # What is left only after a failure: shims first, then what they held.
    local process path
    for process in $(our_processes); do kill -KILL "$process" 2>/dev/null; done
    for path in $(our_mounts); do umount --lazy "$path"; done
    for path in $(our_cgroups); do
        [ ! -e "$path/cgroup.procs" ] || xargs --no-run-if-empty kill -KILL <"$path/cgroup.procs" 2>/dev/null
        rmdir "$path" 2>/dev/null || { sleep 0.2; rmdir "$path"; }
    done
    # 130 and 143: somebody ended it.
    if [ $status -ne 0 ] && [ $status -lt 128 ]; then
        echo "demo: failed. The end of containerd's log:" >&2
        grep --invert-match 'loading plugin' "$work/containerd.log" 2>/dev/null | tail -n 15 >&2
    fi
    rm --recursive --force "$work"
    exit $status
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- A node ------------------------------------------------------------------------------------------------------------

cat >"$EGPU_CONFIG" <<EOF
state_dir = "$work/egpu"
log_file = "$work/egpu.log"

[driver]
# The NVIDIA driver where there is one, else:
kind = "auto"

[[driver.simulated]]
model = "Tesla V100-PCIE-32GB"
memory = "32768MiB"
count = 4
EOF

cat >"$work/containerd.toml" <<EOF
version = 2
root = "$work/root"
state = "$work/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]
[grpc]
address = "$work/containerd.sock"
[ttrpc]
address = "$work/containerd.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
path = "$work/opt"
EOF

# In a session of its own: Ctrl-C is for this script, which ends the containers first.
setsid containerd --config "$work/containerd.toml" >"$work/containerd.log" 2>&1 &
daemon=$!
for ((tries = 0; ; tries++)); do
    ctr version >/dev/null 2>&1 && break
    kill -0 "$daemon" 2>/dev/null || fail "containerd ended at once"
    [ "$tries" -lt 1200 ] || fail "containerd did not answer within two minutes"
    sleep 0.1
done
say "$(containerd --version | cut -d' ' -f1,3) with the runtime io.containerd.egpu.v1; the node's cards:"
show egpu cards

# --- Three containers on one card, each asking in another language -------------------------------------------------------

# make_rootfs DIRECTORY: a root file system with nothing but busybox.
make_rootfs() {
    mkdir --parents "$1"/{bin,dev,proc,sys,etc,tmp,usr/bin,usr/lib,var,run}
    cp "$(command -v busybox)" "$1/bin/busybox"
    ln --symbolic --force busybox "$1/bin/sleep"
    # Static and without NVIDIA's libraries: nothing in the container helps to hold the quota.
    cp "$rm_client" "$1/bin/rm-client"
}

# run ID VARIABLE=VALUE...: a container that sleeps, with these variables in its environment.
run() {
    local id=$1 rootfs=$work/rootfs/$1 variable arguments=(--env PATH=/bin)
    shift
    make_rootfs "$rootfs"
    for variable in "$@"; do arguments+=(--env "$variable"); done
    echo "$id: $*"
    ctr run --runtime io.containerd.egpu.v1 --detach "${arguments[@]}" --rootfs "$rootfs" "$id" sleep infinity
}

# in_container ID COMMAND...: runs it in a running container, as `docker exec` does.
in_container() {
    local id=$1
    shift
    ctr tasks exec --exec-id "e$RANDOM$RANDOM" "$id" "$@"
}

say "Three containers share card 0, each asking in the language that its manifest was written for:"
# egpu's own: a third of the memory, 30 % of the time.
run training EGPU_DEVICES=0 EGPU_MEMORY=30% EGPU_COMPUTE=30%
# HAMi.
run inference NVIDIA_VISIBLE_DEVICES=0 CUDA_DEVICE_MEMORY_LIMIT=4096m CUDA_DEVICE_SM_LIMIT=20
# Alibaba eGPU.
run notebook AMP_VGPU_ENABLE=1 NVIDIA_VISIBLE_DEVICES=0 GPU_MEM_PER_DEVICE=2147483648 GPU_UTIL_PER_DEVICE=10

echo
show egpu ps
for id in training inference notebook; do
    egpu ps --output json | grep "\"$id\"" >/dev/null || fail "$id has no grant"
    ctr tasks list | grep "^$id .*RUNNING" >/dev/null || fail "$id does not run"
done
echo "(notebook: 10 MB of its 2 GiB are reserved, as that dialect wants it.)"

# --- Shares of time ------------------------------------------------------------------------------------------------------

# What each was granted, in percent.
declare -A granted=([training]=30 [inference]=20 [notebook]=10)

# spin_all: a program in each container that works for five seconds; what they got of the card's
# time goes to $work/spin-ID.
spin_all() {
    local id process spinning=()
    for id in "${!granted[@]}"; do
        ctr tasks exec --exec-id "spin$RANDOM$RANDOM" "$id" rm-client spin 5s >"$work/spin-$id" &
        spinning+=($!)
    done
    for process in "${spinning[@]}"; do wait "$process" || fail "a program that works on the card failed"; done
}

# permille_of ID: what its program got.
permille_of() { sed --quiet 's/^share_permille=//p' "$work/spin-$1"; }

# shares_are_near: whether each got what it was granted, within five points.
shares_are_near() {
    local id off
    for id in "${!granted[@]}"; do
        off=$(($(permille_of "$id") - granted[$id] * 10))
        [ "${off#-}" -le 50 ] || return 1
    done
}

# Simulated cards have engines with a time of their own; for a real card's, see integration/gpu.
if egpu cards --output json | grep '"simulated": true' >/dev/null; then
    say "Each now runs a program that would keep the whole card busy, for five seconds. What each gets of the card's time:"
    echo '$ rm-client spin 5s        (in each container, at the same time)'
    for ((tries = 1; ; tries++)); do
        spin_all
        printf '%-12s %10s  %10s\n' CONTAINER GRANTED GOT
        for id in training inference notebook; do
            permille=$(permille_of "$id")
            printf '%-12s %8d %%  %6d.%d %%\n' "$id" "${granted[$id]}" $((permille / 10)) $((permille % 10))
        done
        ! shares_are_near || break
        # Whoever has no processor is late with a window. A share that nobody holds is never near.
        [ "$tries" -lt 5 ] || fail "what they got is more than 5 points off, five times"
        echo "(This machine is busy with something else: again.)"
    done
fi

# --- One that does not fit -----------------------------------------------------------------------------------------------

say "A fourth wants 90 % of the same card's memory. It must not start:"
if run greedy EGPU_DEVICES=0 EGPU_MEMORY=90% 2>"$work/refusal"; then
    fail "greedy was started, although the card has not that much left"
fi
sed 's/^/  /' "$work/refusal"
grep --quiet --ignore-case memory "$work/refusal" || fail "the refusal does not say that it is about memory"
! ctr tasks list | grep '^greedy ' >/dev/null || fail "greedy runs"
! egpu ps --output json | grep '"greedy"' >/dev/null || fail "greedy holds a grant"
ctr containers delete greedy
echo "Nobody else noticed:"
[ "$(ctr tasks list | grep --count RUNNING)" -eq 3 ] || fail "a neighbour of the refused container ended"
show egpu cards

# --- A program that wants more than its quota ----------------------------------------------------------------------------

say "One more, with 3276 MiB of the card, sees a card of exactly that size, and no other:"
# CTYun eGPU.
run job "EGPU=POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10" NVIDIA_VISIBLE_DEVICES=0
echo '$ rm-client smi        (in the container; nvidia-smi shows the same on a real card)'
in_container job rm-client smi | tee "$work/table"
grep --quiet ' 0MiB / 3276MiB' "$work/table" || fail "the container does not see a card of 3276 MiB"
[ "$(grep --count 'MiB / ' "$work/table")" -eq 1 ] || fail "the container sees other cards"

say "A job in it takes memory, 512 MiB at a time, until it is told that there is no more:"
status=0
in_container job rm-client alloc 512M --count 10 | tee "$work/job" || status=$?
[ "$status" -ne 0 ] || fail "a job of 5 GiB fitted into 3276 MiB"
[ "$(grep --count '^allocated' "$work/job")" -eq 6 ] || fail "six pieces of 512 MiB fit into 3276 MiB, and not a seventh"
grep --quiet 'out of memory' "$work/job" || fail "the job was not told that it is out of memory"
echo "Its neighbours, and the container itself, go on:"
[ "$(ctr tasks list | grep --count RUNNING)" -eq 4 ] || fail "a container ended"
in_container job rm-client alloc 3000M || fail "what the job held was not given back"

say "What was decided, in the node's log:"
sed 's/^/  /' "$work/egpu.log"

# --- The end ---------------------------------------------------------------------------------------------------------------

say "The containers end; their grants end with them:"
stop_containers
for ((tries = 0; ; tries++)); do
    left=$(left_behind)
    [ -n "$left" ] || break
    [ "$tries" -lt 600 ] || fail "left behind: $left"
    sleep 0.1
done
! egpu ps --output json | grep '"id"' >/dev/null || fail "a grant outlived its container"
show egpu cards
say "Done: grants were made, held and given back; no process, mount or cgroup was left behind."
