#!/bin/sh
# Unpacks newer containerds than the machine's own into target/containerd/, for the integration
# tests. Debian's packages of newer releases are statically linked but for libc, so they run on
# older ones too. Nothing is installed.
# usage: integration/setup-containerd.sh [SUITE...] (default: forky, which has 2.x)
#   EGPU_CONTAINERD_FOLDER: another folder in target, for releases that few tests run on
set -eu
cd "$(dirname "$0")/.."
. integration/debian.sh
[ $# -gt 0 ] || set -- forky
for suite in "$@"; do
    provide "${CARGO_TARGET_DIR:-target}/${EGPU_CONTAINERD_FOLDER:-containerd}/$suite" usr/bin/containerd "$suite" containerd
done
