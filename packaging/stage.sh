#!/bin/bash
# Lays out what egpu consists of on a node: for packages, and for `make install`.
# usage: packaging/stage.sh RELEASE GENERATED ROOT PREFIX
#   RELEASE    the folder of the two programs
#   GENERATED  the folder with `manual` and `licences`
#   ROOT       a folder that is laid out as `/`
#   PREFIX     /usr for packages of a distribution, else /usr/local
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
release=$1 generated=$2 prefix=$4 to=$3$4
documents=$to/share/doc/egpu

mkdir -p "$to"/{bin,share/man/man{1,5},share/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d},lib/systemd/system} \
    "$documents"
install --mode=755 "$release"/{containerd-shim-egpu-v1,egpu} "$to/bin"
for page in "$generated"/manual/*.[15]; do
    gzip --best --no-name --stdout "$page" >"$to/share/man/man${page##*.}/${page##*/}.gz"
done
install --mode=644 "$generated/manual/egpu.bash" "$to/share/bash-completion/completions/egpu"
install --mode=644 "$generated/manual/_egpu" "$to/share/zsh/site-functions/_egpu"
install --mode=644 "$generated/manual/egpu.fish" "$to/share/fish/vendor_completions.d/egpu.fish"
for unit in examples/metrics/*.{service,timer}; do
    sed "s|/usr/local/bin/|$prefix/bin/|" "$unit" >"$to/lib/systemd/system/${unit##*/}"
done
install --mode=644 "$generated"/licences/* ./*.md LICENSE "$documents"
# Without what the documents cite as evidence, and the examples' own tests.
find docs examples \( -path docs/results -o -name driver-calls.md -o -path examples/src -o -path examples/tests -o -name Cargo.toml \) \
    -prune -o -type f -print |
    while read -r file; do install -D --mode=644 "$file" "$documents/$file"; done
