#!/bin/sh
# Packs everything that run.py needs on a bare GPU machine, in two archives: programs.tar.xz, the control plane,
# containerd and the network's plugins, made once; egpu.tar.xz, the rest. Both are unpacked in one folder.
# usage: integration/kube/gpu/bundle.sh   -> integration/kube/gpu/bundle
# Then, there, as root: egpu-kube/run.sh RESULT_FOLDER
set -eu
cd "$(dirname "$0")/../../.."
target=${CARGO_TARGET_DIR:-target}
out=integration/kube/gpu/bundle
root=$out/egpu-kube

nice -n 5 cargo build --release --locked -p egpu-shim -p egpu-cli -p egpu-kubelet-plugin
CARGO_TARGET_DIR=$target integration/setup-containerd.sh
CARGO_TARGET_DIR=$target integration/setup-cri.sh plugins
CARGO_TARGET_DIR=$target integration/kube/build.sh

rm -rf "$root"
if [ ! -e "$out/programs.tar.xz" ] || [ "$target/kube/versions" -nt "$out/programs.tar.xz" ]; then
    mkdir -p "$root/target/kube" "$root/target/cri" "$root/target/containerd/forky/usr/bin"
    cp -a "$target/kube/bin" "$root/target/kube/"
    for name in host-local loopback ptp; do cp "$target/cri/$name" "$root/target/cri/"; done
    for name in containerd ctr; do cp "$target/containerd/forky/usr/bin/$name" "$root/target/containerd/forky/usr/bin/"; done
    strip "$root"/target/cri/*
    # One dictionary for all: Go's programs have much in common.
    tar -C "$out" -cf - egpu-kube | nice xz --x86 --lzma2=preset=9,dict=256MiB,nice=64 >"$out/programs.tar.xz.new"
    mv "$out/programs.tar.xz.new" "$out/programs.tar.xz"
    rm -rf "$root/target"
fi

mkdir -p "$root/bin" "$root/target" "$root/openssl"
cp "$target/release/containerd-shim-egpu-v1" "$target/release/egpu" "$target/release/egpu-kubelet-plugin" "$(command -v busybox)" "$root/bin/"
strip "$root"/bin/*
for load in compute cuda; do ${CC:-cc} -O2 -o "$root/bin/$load-load" "integration/gpu/${load}_load.c" -ldl; done
# Where the machine has none.
cp "$(command -v openssl)" /etc/ssl/openssl.cnf "$root/openssl/"
ldd "$(command -v openssl)" | awk '/lib(ssl|crypto)/ { print $3 }' | xargs -I '{}' cp '{}' "$root/openssl/"

# The image: what the driver's programs and the loads ask of an image is glibc.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root/etc" "$work/root/lib64" "$work/root/lib/x86_64-linux-gnu" "$work/root/tmp"
echo 12 >"$work/root/etc/debian_version"
cp -L /lib64/ld-linux-x86-64.so.2 "$work/root/lib64/"
for name in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1; do cp -L "/lib/x86_64-linux-gnu/$name" "$work/root/lib/x86_64-linux-gnu/"; done
cp "$root/bin/compute-load" "$root/bin/cuda-load" "$work/root/tmp/"
${CC:-cc} -O1 -static -o "$work/tools" integration/cri/tools.c
python3 integration/cri/images.py "$work/images" "$(command -v busybox)" "$work/tools" "$root/target/images.tar" "$work/root"

git ls-files -z packaging/kubernetes examples/kubernetes examples/containerd integration/kube integration/cri integration/gpu/measure |
    tar --null -T - -cf - | tar -C "$root" -xf -
# The commit that results are of.
git describe --always --dirty >"$root/integration/gpu/commit"
cp integration/kube/gpu/run.sh "$root/"
tar -C "$out" -cf - egpu-kube | xz -T0 -9 >"$out/egpu.tar.xz"
ls -l "$out"/*.xz
