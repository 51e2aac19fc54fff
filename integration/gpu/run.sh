#!/bin/sh
# Runs egpu on a real GPU: a private containerd, containers whose root file system is an overlay of
# this machine's own.
# usage: sudo run.sh [RESULT_FOLDER]   (from the unpacked bundle, or from the repository after bundle.sh)
# Needs root, cgroups, an NVIDIA driver, python3 (with PyTorch for what trains). Changes nothing
# outside EGPU_GPU_WORK and /run. measure/settings.py says what can be asked for. Exit status: 0
# when every check passed. Everything printed is kept in RESULT_FOLDER/DATE-DRIVER-CARD.txt.
set -eu
results=$(realpath -m "${1:-$(dirname "$0")/results}")
cd "$(dirname "$0")"
exec python3 -u -m measure "$results"
