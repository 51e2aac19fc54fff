#!/bin/sh
# Unpacks a Docker of Debian's into target/docker/, for the integration tests: dockerd and its
# client, no daemon is started and nothing is installed.
# usage: integration/setup-docker.sh [SUITE] (default: forky)
set -eu
cd "$(dirname "$0")/.."
. integration/debian.sh
provide "${CARGO_TARGET_DIR:-target}/docker" usr/sbin/dockerd "${1:-forky}" docker.io docker-cli
