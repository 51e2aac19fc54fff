#!/bin/bash
# Builds what the cluster is made of, where that has not been done, and runs a program on it: run.py, which says what else it
# takes, or the one that EGPU_KUBE_PROGRAM names.
#
# usage: integration/kube/run.sh DIRECTORY_OF_EGPU_BINARIES TARGET RM_CLIENT [OPTION|FILTER...]     (as root)
set -euo pipefail
binaries=$(realpath "$1") target=$(realpath -m "$2") rm_client=$(realpath "$3")
shift 3
here=$(realpath "$(dirname "$0")")
export CARGO_TARGET_DIR=$target
SECONDS=0
"$here"/../setup-containerd.sh
"$here"/../setup-runc.sh
"$here"/../setup-cri.sh plugins
"$here"/build.sh
echo "programs of the cluster there after $SECONDS s"
python3 -B "${EGPU_KUBE_PROGRAM:-$here/run.py}" "$binaries" "$target" "$rm_client" "$@"
echo "done after $SECONDS s"
