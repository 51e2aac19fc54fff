#!/bin/sh
# Packs everything that run.sh needs on a bare GPU machine: release binaries, the integration tests,
# containerd, busybox.
# usage: integration/gpu/bundle.sh   -> integration/gpu/bundle/egpu-gpu-test.tar.xz
# EGPU_BUNDLE_CONTAINERD names another folder than /usr/bin that holds containerd and ctr.
set -eu
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
containerd=${EGPU_BUNDLE_CONTAINERD:-/usr/bin}
out=integration/gpu/bundle

make build
# The tests themselves need no optimisation; the newest binary of that name is the one just built.
cargo test --locked -p integration --test it --no-run
tests=$(ls -t "$target"/debug/deps/it-* | grep -v '\.d$' | head -n 1)

make rm-client

rm -rf "$out"
mkdir -p "$out/egpu-gpu-test/bin"
cp "$target/release/containerd-shim-egpu-v1" "$target/release/egpu" "$out/egpu-gpu-test/bin/"
cp "$containerd/containerd" "$containerd/ctr" /bin/busybox "$out/egpu-gpu-test/bin/"
# egpu's cost is compared with theirs (measure/cost.py), where they are installed.
cp "$(command -v containerd-shim-runc-v2)" "$(command -v runc)" "$out/egpu-gpu-test/bin/" || echo "costs are not compared with runc's" >&2
# Another one, static and current, that egpu's containers are compared with: EGPU_TEST_RUNC names
# it.
integration/setup-runc.sh && cp "$target/runc/runc" "$out/egpu-gpu-test/bin/current-runc" || echo "no current runc could be had: egpu is not compared with it" >&2
cp "$tests" "$out/egpu-gpu-test/bin/it"
strip "$out"/egpu-gpu-test/bin/it "$out"/egpu-gpu-test/bin/egpu 2>/dev/null || true
cp "$target"/rm-client/*/debug/rm-client "$out/egpu-gpu-test/bin/"
# run.sh names it with EGPU_TEST_HOSTILE, and the other with EGPU_TEST_RM_CLIENT: without them the
# suites of memory and attacks are skipped.
${CC:-cc} -static -O1 -pthread -o "$out/egpu-gpu-test/bin/hostile" integration/hostile/hostile.c
${CC:-cc} -O2 -o "$out/egpu-gpu-test/bin/cuda-load" integration/gpu/cuda_load.c -ldl
${CC:-cc} -O2 -o "$out/egpu-gpu-test/bin/notify-floor" integration/gpu/notify_floor.c
${CC:-cc} -O2 -o "$out/egpu-gpu-test/bin/compute-load" integration/gpu/compute_load.c -ldl
${CC:-cc} -O2 -o "$out/egpu-gpu-test/bin/latency-load" integration/gpu/latency_load.c -ldl -lm
${CC:-cc} -O2 -shared -fPIC -o "$out/egpu-gpu-test/bin/no-preemption.so" integration/gpu/no_preemption.c -ldl
strip "$out/egpu-gpu-test/bin/rm-client" 2>/dev/null || true
cp integration/gpu/run.sh integration/gpu/*.py integration/gpu/*.cu integration/gpu/*.cpp "$out/egpu-gpu-test/"
mkdir -p "$out/egpu-gpu-test/measure/programs"
cp integration/gpu/measure/*.py "$out/egpu-gpu-test/measure/"
cp integration/gpu/measure/programs/*.py "$out/egpu-gpu-test/measure/programs/"
# The commit that results are of.
git describe --always --dirty >"$out/egpu-gpu-test/commit"
XZ_OPT='-T0 -6' tar -C "$out" -cJf "$out/egpu-gpu-test.tar.xz" egpu-gpu-test
ls -l "$out/egpu-gpu-test.tar.xz"
