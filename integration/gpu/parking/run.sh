#!/bin/sh
# Runs every section on a card, each in a process of its own, with what the kernel's log gained. Under a minute.
# usage: run.sh [FOLDER for remap.txt, else $OUT, else here]; needs gcc.
here=$(cd "$(dirname "$0")" && pwd)
cd "$here" || exit 1
out=${1:-${OUT:-$here}}
program=/tmp/remap.$$
gcc -O2 -rdynamic -o "$program" remap.c -ldl -lpthread || exit 1
one() { # one [VARIABLE=VALUE] SECTION KIND MIB
    lines=$(dmesg 2>/dev/null | wc -l)
    timeout -k 5 "${LIMIT:-90}" env "$@" 2>&1 || echo "FAILED: exit $? of $*"
    dmesg 2>/dev/null | tail -n +$((lines + 1)) | grep -i 'nvrm\|xid\|uvm\|nvidia' | head -20 | sed 's/^/  kernel log: /'
}
{
    uname -r
    cat /proc/driver/nvidia/version 2>/dev/null
    nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current,memory.used --format=csv,noheader
    cat /proc/meminfo | head -3
    for kind in 4k default big huge contiguous; do one "$program" block $kind 2; done
    one "$program" running 4k 2
    one "$program" running huge 64
    one "$program" part 4k 64
    one "$program" part huge 64
    one "$program" dup 4k 2
    one "$program" window 4k 2
    one "$program" window 4k 32
    one "$program" own 4k 64
    one "$program" own huge 64
    for kind in 4k big huge; do one "$program" alias $kind 512; done
    for kind in 4k big huge; do one "$program" block $kind 1024; done
    one KEEP_503C=1 "$program" block 4k 2
    one FAULT_REPAIR=1 "$program" fault 4k 2
    one "$program" fault 4k 2
    nvidia-smi --query-gpu=memory.used --format=csv,noheader
    echo "==== in short"
} >"$out/remap.txt" 2>&1
grep -a '^PASSED\|^FAILED' "$out/remap.txt" >"$out/remap.short" || true
cat "$out/remap.short" >>"$out/remap.txt"
cat "$out/remap.txt"
rm -f "$program"
