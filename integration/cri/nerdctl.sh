#!/bin/bash
# nerdctl --gpus with egpu, on a private containerd and simulated cards: with the CDI specification of examples/nerdctl, and with
# one of the kind that nvidia-ctk writes.
#
# usage: integration/cri/nerdctl.sh DIRECTORY_OF_EGPU_BINARIES NERDCTL [DIRECTORY_OF_CONTAINERD]     (as root)
set -euo pipefail
binaries=$(realpath "$1") nerdctl=$(realpath "$2") containerd=$(realpath "${3:-/usr/bin}")
cd "$(dirname "$0")"
for needed in "$binaries/containerd-shim-egpu-v1" "$nerdctl" "$containerd/containerd"; do
    [ -x "$needed" ] || { echo "$needed is not there: see README.md" >&2; exit 2; }
done
work=$(mktemp --directory --tmpdir egpu-nerdctl-XXXXXX)
daemon=
nerdctl() {
    "$nerdctl" --address "$work/containerd.sock" --data-root "$work/nerdctl" --cgroup-manager cgroupfs --cdi-spec-dirs "$work/cdi" "$@"
}
cleanup() {
    if [ -n "$daemon" ]; then
        nerdctl ps --all --quiet | while read -r id; do nerdctl rm --force "$id" >/dev/null || true; done
        kill "$daemon" && wait "$daemon" || true
    fi
    if grep --quiet " $work/" /proc/self/mountinfo; then
        echo "mounts are left below $work: look there" >&2
    else
        rm --recursive --force "$work"
    fi
}
trap cleanup EXIT

gcc -O1 -static -o "$work/tools" tools.c
mkdir "$work/images" "$work/cdi"
./images.py "$work/images" "$(command -v busybox)" "$work/tools" "$work/images.tar"
cat >"$work/egpu.toml" <<EOF
state_dir = "$work/egpu"
log_file = "$work/decisions.log"
accept_nvidia_visible_devices_as_volume_mounts = true
[driver]
kind = "simulated"
[[driver.simulated]]
model = "Tesla V100-PCIE-32GB"
memory = "32768MiB"
count = 4
EOF
cat >"$work/containerd.toml" <<EOF
version = 2
root = "$work/root"
state = "$work/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "$work/containerd.sock"
[ttrpc]
address = "$work/containerd.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
path = "$work/opt"
EOF
export EGPU_CONFIG=$work/egpu.toml
PATH=$binaries:$containerd:$PATH "$containerd/containerd" --config "$work/containerd.toml" >"$work/containerd.log" 2>&1 &
daemon=$!
for ((tries = 0; ; tries++)); do
    "$containerd/ctr" --address "$work/containerd.sock" version >/dev/null 2>&1 && break
    [ "$tries" -lt 300 ] || { echo "containerd did not answer:" >&2; tail "$work/containerd.log" >&2; exit 2; }
    sleep 0.1
done
"$containerd/ctr" --address "$work/containerd.sock" --namespace default images import "$work/images.tar" >/dev/null

failures=0
# Which cards a container has, and its limit of memory on the first. usage: expect WHAT 'CARDS MEMORY' ARGUMENT...
expect() {
    local what=$1 expected=$2 found id
    shift 2
    if ! id=$(nerdctl run --detach --net none --runtime io.containerd.egpu.v1 "$@" egpu.test/pause:latest 2>"$work/error"); then
        found="refused: $(tail -n 1 "$work/error")"
    else
        found=$("$binaries/egpu" inspect --output json "$id" |
            python3 -c 'import json, sys
cards = json.load(sys.stdin)["cards"]
memory = "whole" if cards[0]["exclusive"] else "%dMiB" % (cards[0]["memory"] >> 20)
print(",".join(str(card["index"]) for card in cards), memory)')
        nerdctl rm --force "$id" >/dev/null
    fi
    if [[ $found == $expected ]]; then
        echo "ok: $what: $found"
    else
        echo "FAILED: $what: $found, not $expected"
        failures=$((failures + 1))
    fi
}

expect "no specification" "refused:*no known GPU vendor*" --gpus all
echo "= examples/nerdctl/nvidia-cdi.json"
cp ../../examples/nerdctl/nvidia-cdi.json "$work/cdi/"
expect "all" "0,1,2,3 whole" --gpus all
expect "two" "0,1 whole" --gpus 2
expect "named" "0,2 whole" --gpus '"device=0,2"'
expect "a share of one" "3 1024MiB" --gpus device=3 --env EGPU_MEMORY=1GiB
expect "a share of all" "0,1,2,3 1024MiB" --gpus all --env EGPU_MEMORY=1GiB --env EGPU_COMPUTE=25%
expect "a device" "1 whole" --device nvidia.com/gpu=1
expect "a card that is not there" "refused:*" --gpus device=9
expect "egpu chooses" "0,1 2048MiB" --env EGPU_CARDS=2 --env EGPU_MEMORY=2GiB
rm "$work/cdi/nvidia-cdi.json"
echo "= as of nvidia-ctk cdi generate"
python3 - >"$work/cdi/nvidia.json" <<'EOF'
import json
node = lambda minor: {"path": f"/dev/nvidia{minor}", "type": "c", "major": 195, "minor": minor, "permissions": "rwm"}
names = [(str(minor), [minor]) for minor in range(4)] + [("all", range(4))]
hook = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "update-ldcache"]}
print(json.dumps({
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": name, "containerEdits": {"deviceNodes": [node(minor) for minor in minors]}} for name, minors in names],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "hooks": [hook],
        "deviceNodes": [{"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255}],
    },
}))
EOF
expect "all" "0,1,2,3 whole" --gpus all
expect "named" "0,2 whole" --gpus '"device=0,2"'
expect "a share" "0,2 1024MiB" --gpus '"device=0,2"' --env EGPU_MEMORY=1GiB
[ "$failures" = 0 ] || { tail -n 20 "$work/decisions.log" >&2; exit 1; }
