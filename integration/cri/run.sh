#!/bin/bash
# All of this folder: critest, the pods of pods/, and nerdctl, each beside runc or by what it was
# asked. README.md says what was seen.
#
# usage: integration/cri/run.sh DIRECTORY_OF_EGPU_BINARIES TARGET RM_CLIENT     (as root; TARGET is where setup-*.sh put their work)
set -euo pipefail
binaries=$(realpath "$1") target=$(realpath "$2") rm_client=$(realpath "$3")
containerd=$target/containerd/forky/usr/bin
cd "$(dirname "$0")"
status=0
./critest.py "$binaries" "$target/cri" "$containerd" "$target/runc/runc" || status=1
./pods.py "$binaries" "$target/cri" "$containerd" "$target/runc/runc" "$rm_client" || status=1
./nerdctl.py "$binaries" "$target/cri" "$containerd" || status=1
exit $status
