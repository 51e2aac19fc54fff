#!/bin/bash
# critest against a private containerd: with runc, with egpu, and with egpu in runc's place (examples/containerd/drop-in-*).
# What fails under egpu and not under runc is named at the end, and makes the exit status 1; two tests that want no seccomp filter at
# all are expected to.
#
# usage: integration/cri/critest.sh DIRECTORY_OF_EGPU_BINARIES CRI_TOOLS DIRECTORY_OF_CONTAINERD RUNC     (as root)
set -euo pipefail
binaries=$(realpath "$1") tools=$(realpath "$2") containerd=$(realpath "$3") runc=$(realpath "$4")
critest=$tools/critest plugins=$tools
cd "$(dirname "$0")"
for needed in "$binaries/containerd-shim-egpu-v1" "$critest" "$containerd/containerd" "$plugins/ptp" "$runc"; do
    [ -x "$needed" ] || { echo "$needed is not there: see README.md" >&2; exit 2; }
done
work=$(mktemp --directory --tmpdir egpu-cri-XXXXXX)
daemon=
cleanup() {
    if [ -n "$daemon" ]; then kill "$daemon" && wait "$daemon" || true; fi
    # critest removes its pods. What a broken run left is shown, not guessed at.
    if grep --quiet " $work/" /proc/self/mountinfo; then
        echo "mounts are left below $work: look there" >&2
    else
        rm --recursive --force "$work"
    fi
}
trap cleanup EXIT

gcc -O1 -static -o "$work/tools" tools.c
mkdir "$work/images" "$work/net.d"
./images.py "$work/images" "$(command -v busybox)" "$work/tools" "$work/images.tar"
cat >"$work/net.d/10-ptp.conflist" <<EOF
{"cniVersion": "0.4.0", "name": "egpu-cri", "plugins": [{"type": "ptp", "ipam":
 {"type": "host-local", "subnet": "10.213.0.0/16", "dataDir": "$work/ipam", "routes": [{"dst": "0.0.0.0/0"}]}}]}
EOF
cat >"$work/egpu.toml" <<EOF
state_dir = "$work/egpu"
log_file = "$work/decisions.log"
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
[grpc]
address = "$work/containerd.sock"
[ttrpc]
address = "$work/containerd.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
path = "$work/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "egpu.test/pause:latest"
disable_apparmor = true
restrict_oom_score_adj = true
disable_hugetlb_controller = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "$plugins"
conf_dir = "$work/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "$runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.egpu]
runtime_type = "io.containerd.egpu.v1"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.drop-in]
runtime_type = "io.containerd.runc.v2"
runtime_path = "$binaries/containerd-shim-egpu-v1"
EOF
EGPU_CONFIG=$work/egpu.toml PATH=$binaries:$containerd:$PATH \
    "$containerd/containerd" --config "$work/containerd.toml" >"$work/containerd.log" 2>&1 &
daemon=$!
ctr() { "$containerd/ctr" --address "$work/containerd.sock" --namespace k8s.io "$@"; }
for ((tries = 0; ; tries++)); do
    ctr version >/dev/null 2>&1 && break
    [ "$tries" -lt 300 ] || { echo "containerd did not answer:" >&2; tail "$work/containerd.log" >&2; exit 2; }
    sleep 0.1
done
ctr images import "$work/images.tar" >/dev/null

# Not run: what wants a registry, iptables for host ports, NRI; MaskedPaths wants an /bin/ls that is a file of its own.
skip='Image Manager|Image Consistency|Image Identifier Consistency|Image Volume|NRI|HostPort|port mapping|MaskedPaths'
for handler in runc egpu drop-in; do
    "$critest" --config /dev/null --runtime-endpoint "unix://$work/containerd.sock" --runtime-handler "$handler" \
        --ginkgo.no-color --ginkgo.skip "$skip" >"$work/$handler.log" 2>&1 || true
    grep --text --only-matching --perl-regexp '^ *\[FAIL\] \K.*' "$work/$handler.log" | sort --unique >"$work/$handler.failed" || true
    printf '%s: %s\n' "$handler" "$(grep --text --only-matching --perl-regexp '\d+ Passed \| \d+ Failed.*' "$work/$handler.log" || echo "did not end")"
done
status=0
for handler in egpu drop-in; do
    if comm -13 "$work/runc.failed" "$work/$handler.failed" |
        grep --invert-match --extended-regexp 'nil profile, which is unconfined|seccomp unconfined on the container' |
        sed "s/^/fails under $handler alone: /" | grep .; then
        status=1
    fi
done
exit $status
