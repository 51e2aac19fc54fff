#!/bin/bash
# Builds a program from its Go module into target/go-tools, once, and prints its path. Nothing is installed.
# usage: scripts/go-tool.sh helm|promtool     exit status 77: there is no Go, and none that was built before
set -euo pipefail
cd "$(dirname "$0")/.."
tags=none
case ${1-} in
helm) module=helm.sh/helm/v4 version=v4.3.1 package=cmd/helm ;;
# Prometheus 3.16, without its ways to discover what to scrape.
promtool) module=github.com/prometheus/prometheus version=v0.316.0 package=cmd/promtool tags=remove_all_sd ;;
*)
    echo "usage: scripts/go-tool.sh helm|promtool" >&2
    exit 2
    ;;
esac
tool=$(realpath -m "${CARGO_TARGET_DIR:-target}")/go-tools/$1-$version
if [ ! -x "$tool" ]; then
    command -v go >/dev/null || {
        echo "skipped: $1: no go in the PATH: install Go 1.26 or newer" >&2
        exit 77
    }
    mkdir -p "${tool%/*}"
    work=$(mktemp --directory)
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    printf 'module tool\n\ngo 1.26.0\n\nrequire %s %s\n' "$module" "$version" >go.mod
    GOFLAGS=-mod=mod CGO_ENABLED=0 nice -n 10 go build -p 2 -trimpath -tags "$tags" -ldflags '-s -w' -o "$tool.new" "$module/$package" >&2
    mv "$tool.new" "$tool"
fi
echo "$tool"
