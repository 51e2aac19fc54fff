#!/bin/sh
# Builds a control plane and a kubelet into target/kube/bin, from their Go modules: one static
# program with a link for each of its names (some ten minutes, once). Nothing is installed.
# usage: integration/kube/build.sh
set -eu
cd "$(dirname "$0")/../.."
. integration/kubernetes.sh
etcd=3.7.0
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/kube
source=$(realpath integration/kube/control-plane/main.go)
stamp="kubernetes $kubernetes, etcd $etcd, $(sha256sum <"$source")"
if [ "$(cat "$target/versions" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi
command -v go >/dev/null || { echo "build.sh: no go in the PATH: install Go 1.26 or newer" >&2; exit 1; }
work=$(mktemp -d)
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT
cd "$work"
cp "$source" .
kubernetes_module control-plane
echo "require go.etcd.io/etcd/server/v3 v$etcd" >>go.mod
version=version.gitVersion=v$kubernetes
mkdir -p "$target/bin"
GOFLAGS=-mod=mod CGO_ENABLED=0 nice -n 10 go build -p 2 -trimpath -o "$target/bin/control-plane" \
    -ldflags "-s -w -X k8s.io/component-base/$version -X k8s.io/client-go/pkg/$version"
for name in etcd kube-apiserver kube-scheduler kube-controller-manager kubelet kubectl; do
    ln -sf control-plane "$target/bin/$name"
done
echo "$stamp" >"$target/versions"
