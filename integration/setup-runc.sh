#!/bin/sh
# Builds a current runc into target/runc/, which the integration tests compare egpu with: from its
# Go module, static, nothing is installed. Needs Go and libseccomp's headers.
# usage: integration/setup-runc.sh
set -eu
cd "$(dirname "$0")/.."
version=1.5.2
target=${CARGO_TARGET_DIR:-target}/runc
if [ -x "$target/runc" ] && "$target/runc" --version | grep -q "^runc version $version$"; then
    exit 0
fi
command -v go >/dev/null || { echo "setup-runc.sh: no go in the PATH: install Go 1.25 or newer" >&2; exit 1; }
[ -e /usr/include/seccomp.h ] || { echo "setup-runc.sh: no seccomp.h: apt-get install libseccomp-dev" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf 'module runc\n\ngo 1.25.0\n\nrequire github.com/opencontainers/runc v%s\n' "$version" >"$work/go.mod"
(cd "$work" && GOFLAGS=-mod=mod go build -buildvcs=false -o runc \
    -tags "seccomp netgo osusergo urfave_cli_no_docs" \
    -ldflags "-s -w -X main.version=$version -linkmode external -extldflags -static" github.com/opencontainers/runc)
"$work/runc" --version
mkdir -p "$target"
mv "$work/runc" "$target/runc"
