#!/bin/sh
# Unpacks newer containerds than the machine's own into target/containerd/, for the integration tests.
# Debian's packages of newer releases are statically linked but for libc, so they run on older ones too.
# Nothing is installed. usage: integration/setup-containerd.sh [SUITE...]   (default: forky, which has 2.x)
set -eu
cd "$(dirname "$0")/.."
. integration/debian.sh
[ $# -gt 0 ] || set -- forky
target=${CARGO_TARGET_DIR:-target}/containerd
mkdir -p "$target"

for suite in "$@"; do
    if [ -x "$target/$suite/usr/bin/containerd" ]; then
        continue
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    unpack "$work" "$suite" containerd
    "$work/unpacked/usr/bin/containerd" --version
    rm -rf "${target:?}/$suite"
    mv "$work/unpacked" "$target/$suite"
    rm -rf "$work"
    trap - EXIT
done
