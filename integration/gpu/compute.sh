# Compute quotas on a real card, as tables; sourced by run.sh, whose functions it uses. Each table has its baseline in the same run.
# EGPU_GPU_COMPUTE: which parts (caps together periods case3 weights lending priority edges flood preemption migrate scrub firmware churn endless utilization achieved errors groups two); default: all but endless that the machine has cards for.
# EGPU_GPU_LOADS: which loads the caps are tried with (short long graph cooperative training), EGPU_GPU_CAPS: which caps. EGPU_GPU_PEER: a library that limits by LD_PRELOAD
# and CUDA_DEVICE_SM_LIMIT (HAMi-core's interface), with which the same is done beside; it is no part of the bundle. EGPU_GPU_BATCHES: of which sizes the weights are (16 32 64 128).
# Rows for the picture are added to RESULT.tsv.

parts=${EGPU_GPU_COMPUTE:-caps together periods weights lending priority edges flood preemption migrate scrub firmware churn utilization achieved errors groups case3 two}
caps_asked=${EGPU_GPU_CAPS:-90 75 50 33 25 10 5}
loads_of_caps=${EGPU_GPU_LOADS:-short long graph cooperative training}
has_torch=$(python3 -c 'import torch; print("yes")' 2>/dev/null)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:/usr/local/nvidia/lib64:/usr/local/nvidia/lib
rows=${result%.txt}.tsv
: >"$rows"

mkdir -p "$work/tools" "$work/told"
cp "$bin/compute-load" "$bin/no-preemption.so" "$here"/{torch_load,nccl_load,train}.py "$work/tools/"
compute_tools() {
    rootfs "$1"
    mkdir -p "$work/roots/$1/merged/tmp"
    cp "$work/tools"/* "$work/roots/$1/merged/tmp/"
}
monotonic_us() { python3 -c 'import time; print(time.monotonic_ns() // 1000)'; }
# rate FILE FROM TO: work done a second between two instants.
rate() {
    awk -v from="$2" -v to="$3" '
        function cross(at, time, before, work, old) { return old + (work - old) * (at - before) / (time - before) }
        /^[0-9]+ [0-9.]+$/ {
            if (seen) {
                if (before <= from && $1 > from) start = cross(from, $1, before, $2, old)
                if (before <= to && $1 > to) { end = cross(to, $1, before, $2, old); good = 1 }
            }
            before = $1; old = $2; seen = 1
        }
        END { if (good) printf "%.3f", (end - start) / (to - from) * 1e6 }' "$1"
}
percent() { awk -v a="${1:-0}" -v b="${2:-0}" 'BEGIN { if (b > 0) printf "%.2f", 100 * a / b; else print "nan" }'; }
within() { awk -v have="$1" -v want="$2" -v by="$3" 'BEGIN { d = have - want; if (d < 0) d = -d; exit !(have ~ /^-?[0-9.]+(e-?[0-9]+)?$/ && d <= by) }'; }
# farther WORST HAVE WANT: by how much the worst is off, this one included; what is no figure is 100 off.
farther() { awk -v w="$1" -v a="$2" -v c="$3" 'BEGIN { d = a - c; if (d < 0) d = -d; if (a == "nan") d = 100; printf "%.2f", (d > w ? d : w) }'; }
# row TABLE LOAD WHO ASKED ACHIEVED
row() { printf '%s\t%s\t%s\t%s\t%s\n' "$@" >>"$rows"; }
power() { host_smi --query-gpu=clocks.sm,power.draw --format=csv,noheader | head -n 1; }
# begin NAME CONTAINER COMMAND...: starts a load in a container ("-": outside); what it tells goes to told/NAME.
begin() {
    local name=$1 container=$2
    shift 2
    if [ "$container" = - ]; then
        "$@" >"$work/told/$name" 2>&1 &
    else
        ctr_ tasks exec --exec-id "load$RANDOM$RANDOM" "$container" "$@" >"$work/told/$name" 2>&1 &
    fi
    loads="${loads:-} $!"
}
# Waits until each of the loads told something.
begun() {
    local name
    for name in "$@"; do
        for _ in $(seq 600); do
            [ "$(grep -cE '^[0-9]+ [1-9]' "$work/told/$name")" -ge 3 ] && break
            # All have ended.
            kill -0 $loads 2>/dev/null || break
            sleep 0.1
        done
    done
}
settle() { wait $loads 2>/dev/null; loads=; }
# measured SECONDS NAME...: prints one rate for each. tail: how much longer to wait for what is told (0.8 s).
measured() {
    local from to name duration=$1
    shift
    from=$(monotonic_us)
    sleep "$duration"
    to=$(monotonic_us)
    sleep "${tail:-0.8}"
    for name in "$@"; do rate "$work/told/$name" "$from" "$to"; echo; done
}
pass_of() { "$bin/egpu" set "$1" --compute "$2%" --wait >"$work/set.out" 2>&1 || { echo "egpu set $1 --compute $2%:"; cat "$work/set.out"; return 1; }; }
share() { # ID COMPUTE...: a container that waits
    local id=$1
    shift
    compute_tools "$id"
    [[ "$*" = *EGPU_MEMORY* ]] || set -- --env EGPU_MEMORY=16GiB "$@"
    launch "$id" --env EGPU_DEVICES=0 "$@" -- sleep infinity
}
tmp() { [ "$1" = - ] && echo "$work/tools" || echo /tmp; }

declare -A length_of
# NCCL's load has no length.
case $parts in
    two) kinds= ;;
    groups | migrate | achieved | scrub | firmware | churn) kinds=short ;;
    *) kinds="short long graph cooperative" ;;
esac
for kind in $kinds; do
    length_of[$kind]=$("$work/tools/compute-load" calibrate $kind)
done
# The same kernels.
length_of[streams]=${length_of[short]:-}
# Of a size that is fixed.
length_of[copy]=1 length_of[memory]=1 length_of[migrate]=1
[ "$parts" = two ] || echo "iterations: $(for kind in "${!length_of[@]}"; do printf '%s %s; ' "$kind" "${length_of[$kind]}"; done)"
# load KIND WHERE SECONDS: the command line.
load() {
    case $1 in
        training) echo "python3 $(tmp "$2")/torch_load.py $3 small" ;;
        *) echo "$(tmp "$2")/compute-load run $1 ${length_of[$1]} $3" ;;
    esac
}
# alone KIND [MEASURED] [SECONDS] [PROCESSES]: what it does outside, unmanaged.
declare -A solo_of
alone() {
    local name=$1${4:+ x $4}
    begin "solo-$1" - $(load "$1" - "${3:-8}") ${4:-}
    begun "solo-$1"
    sleep 0.5
    solo_of[$name]=$(measured "${2:-2.5}" "solo-$1")
    echo "alone, outside: $name ${solo_of[$name]}/s, clock and power $(power)"
    settle
}

for kind in shares disturbed told; do . "$here/compute_$kind.sh"; done
for part in $parts; do $part; done
python3 "$here/compute_plot.py" "$rows" >"${result%.txt}.svg" || rm -f "${result%.txt}.svg"
title "compute: the kernel's log"
dmesg 2>/dev/null | grep 'NVRM\|nvidia' | tail -n 10
# One for each time that the driver was too busy to read the log of context switches before it was full.
full=$(dmesg 2>/dev/null | grep -c 'FECS Exception: Logging error')
check "the log of context switches was never full ($full lines)" [ "$full" = 0 ]
