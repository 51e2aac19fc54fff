#!/bin/bash
# Runs the integration suite in virtual machines that have what a container or an old host has not:
# systemd as process 1, the unified cgroup hierarchy (v2), Debian's kernels. For cgroup v2, the
# systemd cgroup driver and newer kernels.
#
# usage: integration/vm/run.sh [-a kvm|tcg|none] [-s RELEASE] [-c v1|v2] [-b DIR] [-o FILE] [-p DIR] [FILTER...]
#   -a  accelerator: kvm (default); tcg, which emulates: any machine can, several times slower; or none: no virtual machine, but
#       systemd in namespaces of this one, on its kernel and with the controllers that its own cgroups have (namespaces.sh)
#   -s  Debian release of the guest: bookworm (default; kernel 6.1, systemd 252, containerd 1.6, runc 1.1) or a newer one
#   -c  cgroup version of the guest: v2 (default), or v1, which systemd has up to release 257
#   -b  folder of the shim's and egpu's binaries (default: target/release, else target/debug)
#   -o  a file for what the suite prints (default: target/vm/RELEASE-cgroup-VERSION-ACCELERATOR.txt)
#   -p  a folder that becomes the guest's /egpu, whose guest.sh runs in place of the suite
#   FILTER: runs the tests whose names contain it, once for each; without one, all
# EGPU_TEST_RUNTIME, EGPU_TEST_CONTAINERD, EGPU_TEST_SEED, EGPU_TEST_ROUNDS, EGPU_TEST_SPECS and
# EGPU_TEST_FIRST_SPEC go into the guest.
#
# Needs /dev/kvm (for kvm), 3 GiB of memory, 2 GiB of disk below target/vm, and as root (on Debian
# or Ubuntu) mmdebstrap and qemu, which it installs. The guest's packages come from where this
# machine's come from. It is built once per release (three minutes), and never written to: each run
# starts from the same disk. Exit status: 0 passed, 1 failed, 77 nothing could run.
set -euo pipefail
cd "$(dirname "$0")/../.."

accelerator=kvm release=bookworm cgroup=v2 binaries= results= payload=
while getopts a:s:c:b:o:p: option; do
    case $option in
    a) accelerator=$OPTARG ;;
    s) release=$OPTARG ;;
    c) cgroup=$OPTARG ;;
    b) binaries=$OPTARG ;;
    o) results=$OPTARG ;;
    p) payload=$OPTARG ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
    esac
done
shift $((OPTIND - 1))

skip() {
    echo "skipped: $*"
    exit 77
}
[ "$(uname -m)" = x86_64 ] || skip "the guest is an x86_64 one, this machine is $(uname -m)"
[ "$accelerator" != kvm ] || { [ -r /dev/kvm ] && [ -w /dev/kvm ]; } || skip "no /dev/kvm that may be used; -a tcg emulates, slowly"
[ "$(id -u)" = 0 ] || skip "the guest's file system is built by root"

root=$PWD
target=${CARGO_TARGET_DIR:-$root/target}
vm=$target/vm
results=${results:-$vm/$release-cgroup-$cgroup-$accelerator.txt}
mkdir -p "$vm"
work=$(mktemp -d "$vm/run.XXXXXX")
qemu=
trap '[ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true; rm -rf "$work"' EXIT
export TMPDIR=$work

missing=()
[ "$accelerator" = none ] || command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
if [ ${#missing[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || skip "${missing[*]} cannot be installed without apt"
    apt-get update --quiet --quiet
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --quiet --no-install-recommends "${missing[@]}"
fi

# The guest: from Debian's packages alone, as a disk that boots with its own kernel.
build_image() {
    local tree=$work/tree mirror packages
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m1 '/debian/*$' || true)
    mirror=${EGPU_DEBIAN_MIRROR:-${mirror:-http://deb.debian.org/debian}}
    packages=linux-image-cloud-amd64,initramfs-tools,systemd-sysv,udev,dbus,kmod,procps,iproute2,containerd,runc,busybox-static,fuse3,xz-utils
    # The machine's own sources, updates included, where they are of this release.
    local sources=("deb $mirror $release main")
    if grep -qs "\\b$release\\b" /etc/apt/sources.list.d/debian.sources; then
        sources=(/etc/apt/sources.list.d/debian.sources)
    fi
    mmdebstrap --quiet --variant=minbase --format=dir --include="$packages" "$release" "$tree" "${sources[@]}"
    install -m 644 integration/vm/egpu-suite.service "$tree/etc/systemd/system/"
    ln -s ../egpu-suite.service "$tree/etc/systemd/system/multi-user.target.wants/egpu-suite.service"
    # The suite starts containerds of its own.
    ln -sf /dev/null "$tree/etc/systemd/system/containerd.service"
    echo egpu-test >"$tree/etc/hostname"
    # CRI gives pods a copy.
    echo "127.0.0.1 localhost egpu-test" >"$tree/etc/hosts"
    touch "$tree/etc/resolv.conf"
    cp -L "$tree"/vmlinuz "$vm/$release.vmlinuz"
    cp -L "$tree"/initrd.img "$vm/$release.initrd"
    mke2fs -q -t ext4 -d "$tree" "$work/disk" 4G
    mv "$work/disk" "$vm/$release.disk"
    rm -rf "$tree"
}
[ -e "$vm/$release.disk" ] && [ ! integration/vm/egpu-suite.service -nt "$vm/$release.disk" ] || build_image

# What is tested, as a tar archive that the guest finds as a disk.
stage=$work/stage/egpu
stage_suite() {
    local tests
    [ -n "$binaries" ] || { [ -x "$target/release/egpu" ] && binaries=$target/release || binaries=$target/debug; }
    cargo test --locked --package integration --test it --no-run
    tests=$(ls -t "$target"/debug/deps/it-* | grep -v '\.d$' | head -n 1)
    integration/setup-containerd.sh || echo "no second containerd could be had: testing on the guest's own alone" >&2
    integration/setup-runc.sh || echo "no current runc could be had: egpu is not compared with it" >&2
    mkdir -p "$stage/target/debug/deps" "$stage/target/bin" "$work/stage$root"
    cp "$tests" "$stage/target/debug/deps/it"
    cp "$binaries/containerd-shim-egpu-v1" "$binaries/egpu" "$stage/target/bin/"
    strip --strip-debug "$stage/target/debug/deps/it" "$stage"/target/bin/* || true
    [ ! -d "$target/containerd" ] || cp -r "$target/containerd" "$stage/target/"
    [ ! -d "$target/runc" ] || cp -r "$target/runc" "$stage/target/"
    [ ! -x "${EGPU_TEST_RM_CLIENT:-}" ] || cp "$EGPU_TEST_RM_CLIENT" "$stage/target/rm-client"
    ${CC:-cc} -static -O1 -pthread -o "$stage/target/hostile" integration/hostile/hostile.c
    cp integration/vm/guest.sh "$stage/"
    printf '%s\n' "$@" >"$stage/filters"
    env | grep -E '^EGPU_TEST_(RUNTIME|CONTAINERD|SEED|ROUNDS|SPECS|FIRST_SPEC)=' >"$stage/environment" || true
    # Where the suite looks for the examples that it runs.
    cp -r examples "$work/stage$root/"
}
if [ -n "$payload" ]; then mkdir -p "$stage" && cp -r "$payload/." "$stage"; else stage_suite "$@"; fi
tar -C "$work/stage" -cf "$work/payload" .
truncate -s %512 "$work/payload"
rm -rf "$work/stage"

options="root=/dev/vda rw console=ttyS0 panic=-1 quiet"
[ "$cgroup" = v2 ] || options+=" systemd.unified_cgroup_hierarchy=0 SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"
: >"$work/results"
if [ "$accelerator" = none ]; then
    integration/vm/namespaces.sh "$vm/$release.disk" "$work/payload" "$work/results" "$work" "$cgroup" >"$vm/$release-console.txt" 2>&1 </dev/null
    cp "$work/results" "$results"
    cat "$results"
    tail -n 1 "$results" | grep -qx "exit status: 0" && exit
    exit 1
fi
case $accelerator in
kvm) how=(-accel kvm -cpu host) ;;
*) how=(-accel "tcg,thread=multi" -cpu max) ;;
esac
qemu-system-x86_64 "${how[@]}" -smp 2 -m 3G -nodefaults -nographic -no-reboot \
    -kernel "$vm/$release.vmlinuz" -initrd "$vm/$release.initrd" -append "$options" \
    -drive "file=$vm/$release.disk,format=raw,if=virtio,snapshot=on" \
    -drive "file=$work/payload,format=raw,if=virtio,readonly=on" \
    -device virtio-rng-pci \
    -device virtio-serial -chardev "file,id=results,path=$work/results" -device virtserialport,chardev=results,name=results \
    -serial "file:$vm/$release-console.txt" </dev/null &
qemu=$!
if [ "$accelerator" = kvm ]; then
    # A /dev/kvm within a virtual machine may not run every kernel.
    for ((second = 0; second < 180; second++)); do
        [ ! -s "$work/results" ] && kill -0 "$qemu" 2>/dev/null || break
        sleep 1
    done
    [ -s "$work/results" ] || skip "the guest did not come up with this machine's KVM ($vm/$release-console.txt); -a tcg emulates"
fi
# Shown as it comes.
tail --pid="$qemu" -n +1 -f "$work/results" || true
wait "$qemu" || true
qemu=
cp "$work/results" "$results"
tail -n 1 "$results" | grep -qx "exit status: 0"
