#!/bin/sh
# Builds the clients of containerd that Kubernetes and nerdctl's users have into target/cri/, from
# their Go modules: critest, crictl, nerdctl, the CNI plugins that they need, and kubelet (some
# minutes). Nothing is installed.
# usage: integration/setup-cri.sh [plugins]     (these alone)
set -eu
cd "$(dirname "$0")/.."
. integration/kubernetes.sh
cri_tools=1.36.0 nerdctl=2.3.5 plugins=1.9.1
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/cri
versions="kubernetes $kubernetes, cri-tools $cri_tools, nerdctl $nerdctl, plugins $plugins"
if [ "$(cat "$target/versions" 2>/dev/null)" = "$versions" ]; then
    exit 0
fi
if [ "${1-}" = plugins ] && [ "$(cat "$target/plugins" 2>/dev/null)" = "$plugins" ]; then
    exit 0
fi
command -v go >/dev/null || { echo "setup-cri.sh: no go in the PATH: install Go 1.26 or newer" >&2; exit 1; }
work=$(mktemp -d)
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT
export GOFLAGS=-mod=mod CGO_ENABLED=0
mkdir -p "$target"

module() {
    mkdir "$work/$1"
    cd "$work/$1"
    printf 'module %s\n\ngo 1.26.0\n\nrequire %s v%s\n' "$1" "$2" "$3" >go.mod
}

module plugins github.com/containernetworking/plugins "$plugins"
go build -ldflags "-s -w" -o "$target/" github.com/containernetworking/plugins/plugins/main/ptp \
    github.com/containernetworking/plugins/plugins/main/loopback github.com/containernetworking/plugins/plugins/ipam/host-local
echo "$plugins" >"$target/plugins"
[ "${1-}" != plugins ] || exit 0

module cri-tools sigs.k8s.io/cri-tools "$cri_tools"
go test -c -o "$target/critest" sigs.k8s.io/cri-tools/cmd/critest
go build -ldflags "-s -w" -o "$target/" sigs.k8s.io/cri-tools/cmd/crictl

# One file of nerdctl's program is for its tests alone, and needs a module that is not published.
module nerdctl github.com/containerd/nerdctl/v2 "$nerdctl"
cp -r "$(go list -m -f '{{.Dir}}' github.com/containerd/nerdctl/v2)" source
chmod -R u+w source
rm source/cmd/nerdctl/helpers/testing_linux.go
go mod edit -replace github.com/containerd/nerdctl/v2=./source
go build -ldflags "-s -w" -o "$target/" github.com/containerd/nerdctl/v2/cmd/nerdctl

mkdir "$work/kubelet"
cd "$work/kubelet"
kubernetes_module kubelet
go build -p 1 -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$kubernetes" -o "$target/" k8s.io/kubernetes/cmd/kubelet

echo "$versions" >"$target/versions"
