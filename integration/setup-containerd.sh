#!/bin/sh
# Unpacks newer containerds than the machine's own into target/containerd/, for the integration tests.
# Debian's packages of newer releases are statically linked but for libc, so they run on older ones too.
# Nothing is installed. usage: integration/setup-containerd.sh [SUITE...]   (default: forky, which has 2.x)
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- forky
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# Where this machine gets Debian from, if it is Debian; its mirrors carry every release.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m1 '/debian/*$' || true)
mirror=${EGPU_DEBIAN_MIRROR:-${mirror:-http://deb.debian.org/debian}}
target=${CARGO_TARGET_DIR:-target}/containerd
mkdir -p "$target"

for suite in "$@"; do
    if [ -x "$target/$suite/usr/bin/containerd" ]; then
        continue
    fi
    [ -e "$keyring" ] || apt-get install --yes --no-install-recommends debian-archive-keyring
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/unpacked"
    echo "deb [signed-by=$keyring] $mirror $suite main" >"$work/sources.list"
    apt="apt-get -qq -o Dir::State::Lists=$work/lists -o Dir::Cache=$work/cache -o APT::Sandbox::User=root
        -o Dir::Etc::SourceList=$work/sources.list -o Dir::Etc::SourceParts=/dev/null
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::Languages=none"
    $apt update
    (cd "$work" && $apt download containerd)
    dpkg -x "$work"/containerd_*.deb "$work/unpacked"
    "$work/unpacked/usr/bin/containerd" --version
    rm -rf "${target:?}/$suite"
    mv "$work/unpacked" "$target/$suite"
    rm -rf "$work"
    trap - EXIT
done
