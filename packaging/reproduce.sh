#!/bin/bash
# Makes the packages of the commit twice, from clones in two folders, and compares their bytes.
# usage: packaging/reproduce.sh    (CARGO_BUILD_TARGET as for make dist)
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
for clone in first/one second/of/another/name; do
    git clone --quiet . "$work/$clone"
    env --unset=CARGO_TARGET_DIR make --directory "$work/$clone" dist
    sums+=("$work/$clone/target/dist/SHA256SUMS")
done
diff "${sums[@]}"
cat "${sums[0]}"
