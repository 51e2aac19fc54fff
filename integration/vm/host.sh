#!/bin/bash
# Installs, renews and removes egpu on a clean Debian host with containerd, from the packages alone,
# as a new user does, and prints what was typed, what came of it, and how long it took.
#
# usage: integration/vm/host.sh [-a none|kvm|tcg] [-s RELEASE] [-c v1|v2] [-n DIR] [-o FILE]
#   -n  folder of the programs of a newer build (make next-build); without it, the newer package is
#       newer by its number only
#   the others are those of run.sh; without -a, systemd runs in namespaces of this machine
# Needs what `make dist` makes, and EGPU_TEST_RM_CLIENT or the client in target/rm-client.
set -euo pipefail
cd "$(dirname "$0")/../.."

passed=() accelerator=none release=bookworm cgroup= next=
while getopts a:s:c:n:o: option; do
    case $option in
    a) accelerator=$OPTARG ;;
    s) release=$OPTARG ;;
    c) cgroup=$OPTARG ;;
    o) passed+=(-o "$OPTARG") ;;
    n) next=$OPTARG ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
    esac
done
# As Debian has it, v2, unless its controllers are bound to v1 here.
if [ -z "$cgroup" ]; then
    cgroup=v2
    [ "$accelerator" != none ] || awk '$3 == "cgroup2" { print $2 "/cgroup.controllers" }' /proc/mounts | xargs grep -qw memory || cgroup=v1
fi
target=${CARGO_TARGET_DIR:-$PWD/target}
client=${EGPU_TEST_RM_CLIENT:-$target/rm-client/x86_64-unknown-linux-gnu/debug/rm-client}
mkdir -p "$target/vm"
payload=$(mktemp -d "$target/vm/host.XXXXXX")
trap 'rm -rf "$payload"' EXIT

cp "$target"/dist/egpu{_*_amd64.deb,-*-x86_64-linux-gnu.tar.xz,-*-x86_64.oci.tar} "$payload"
cp examples/node/simulated.toml "$payload"
cp integration/vm/host-guest.sh "$payload/guest.sh"
# A root file system for containers.
mkdir -p "$payload"/rootfs/{bin,dev,proc,sys,etc,tmp,run}
busybox=$(command -v busybox)
cp "$busybox" "$client" "$payload/rootfs/bin/"
for name in sh sleep cat env; do ln -s busybox "$payload/rootfs/bin/$name"; done
# The same package with a higher number.
dpkg-deb --raw-extract "$payload"/egpu_*.deb "$payload/newer"
version=$(dpkg-deb --field "$payload"/egpu_*.deb Version)
sed -i "s/^Version: .*/Version: $version+next/" "$payload/newer/DEBIAN/control"
if [ -n "$next" ]; then
    install --strip --mode=755 "$next"/{egpu,containerd-shim-egpu-v1} "$payload/newer/usr/bin"
    (cd "$payload/newer" && find usr -type f -print0 | sort --zero-terminated | xargs --null md5sum >DEBIAN/md5sums)
fi
dpkg-deb --root-owner-group -Znone --build "$payload/newer" "$payload/newer.deb" >/dev/null
rm -rf "$payload/newer"
mkdir "$payload/newer"
mv "$payload/newer.deb" "$payload/newer/egpu_${version}+next_amd64.deb"

integration/vm/run.sh -a "$accelerator" -s "$release" -c "$cgroup" -p "$payload" "${passed[@]}"
