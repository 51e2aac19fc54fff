#!/bin/sh
# Unpacks a Docker of Debian's into target/docker/, for the integration tests: dockerd and its client, no daemon is started and
# nothing is installed. usage: integration/setup-docker.sh [SUITE]   (default: forky)
set -eu
cd "$(dirname "$0")/.."
. integration/debian.sh
target=${CARGO_TARGET_DIR:-target}/docker
[ ! -x "$target/usr/sbin/dockerd" ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unpack "$work" "${1:-forky}" docker.io docker-cli
"$work/unpacked/usr/sbin/dockerd" --version
rm -rf "$target"
mkdir -p "$(dirname "$target")"
mv "$work/unpacked" "$target"
