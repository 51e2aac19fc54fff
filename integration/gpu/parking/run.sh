#!/bin/sh
# Runs every section of both programs on a card, each in a process of its own, with what the kernel's log gained. About two minutes.
# usage: run.sh [remap|park]   writes remap.txt and park.txt into $OUT, else here, and prints them; needs gcc and root.
set -u
cd "$(dirname "$0")" || exit 1
out=${OUT:-.}
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
huge=$(cat /proc/sys/vm/nr_hugepages)
one() { # one [VARIABLE=VALUE] PROGRAM SECTION KIND...
    lines=$(dmesg 2>/dev/null | wc -l)
    timeout -k 5 "${LIMIT:-90}" env "$@" 2>&1 || echo "FAILED: exit $? of $*"
    echo "$huge" >/proc/sys/vm/nr_hugepages
    dmesg 2>/dev/null | tail -n +$((lines + 1)) | grep -i 'nvrm\|xid\|uvm\|nvidia' | head -20 | sed 's/^/  kernel log: /'
}
remap() {
    for kind in 4k default big huge contiguous; do one "$1" block $kind 2; done
    one "$1" running 4k 2
    one "$1" running huge 64
    one "$1" part 4k 64
    one "$1" part huge 64
    one "$1" dup 4k 2
    one "$1" window 4k 2
    one "$1" window 4k 32
    one "$1" own 4k 64
    one "$1" own huge 64
    for kind in 4k big huge; do one "$1" alias $kind 512; done
    for kind in 4k big huge; do one "$1" block $kind 1024; done
    one KEEP_503C=1 "$1" block 4k 2
    one FAULT_REPAIR=1 "$1" fault 4k 2
    one "$1" fault 4k 2
}
park() {
    export CYCLE_SECONDS="${CYCLE_SECONDS:-3}"
    one "$1" share own4k 1 1024
    one "$1" cycle ownhuge 1 1024
    one "$1" cycle ownhuge 8 1024
    one "$1" demand ownhuge 2 1024
    one "$1" scrub ownhuge 8 1024
    one "$1" kill ownhuge 4 512
    one "$1" cycle duphuge 8 1024
    one "$1" cycle own4k 8 1024
}
for name in ${1:-remap park}; do
    gcc -O2 -rdynamic -o "$programs/$name" "$name.c" -ldl -lpthread || exit 1
    {
        uname -r
        cat /proc/driver/nvidia/version
        nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current,memory.used --format=csv,noheader
        head -3 /proc/meminfo
        "$name" "$programs/$name"
        nvidia-smi --query-gpu=memory.used --format=csv,noheader
    } >"$out/$name.txt" 2>&1
    short=$(grep -a '^PASSED\|^FAILED\|WRONG' "$out/$name.txt")
    printf '==== in short\n%s\n' "$short" >>"$out/$name.txt"
    cat "$out/$name.txt"
done
