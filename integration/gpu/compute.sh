# Compute quotas on a real card, as tables; sourced by run.sh, whose functions it uses. Each table has its baseline in the same run.
# EGPU_GPU_COMPUTE: which parts (caps together case3 weights lending priority edges flood preemption migrate utilization achieved errors groups two); default: all that the machine has cards for.
# EGPU_GPU_LOADS: which loads the caps are tried with (short long graph cooperative training), EGPU_GPU_CAPS: which caps. EGPU_GPU_PEER: a library that limits by LD_PRELOAD
# and CUDA_DEVICE_SM_LIMIT (HAMi-core's interface), with which the same is done beside; it is no part of the bundle. EGPU_GPU_BATCHES: of which sizes the weights are (16 32 64 128).
# Rows for the picture are added to RESULT.tsv.

parts=${EGPU_GPU_COMPUTE:-caps together weights lending priority edges flood preemption migrate utilization achieved errors groups case3 two}
caps_asked=${EGPU_GPU_CAPS:-90 75 50 33 25 10 5}
loads_of_caps=${EGPU_GPU_LOADS:-short long graph cooperative training}
has_torch=$(python3 -c 'import torch; print("yes")' 2>/dev/null)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:/usr/local/nvidia/lib64:/usr/local/nvidia/lib
rows=${result%.txt}.tsv
: >"$rows"

mkdir -p "$work/tools" "$work/told"
cp "$bin/compute-load" "$here"/{torch_load,nccl_load,train}.py "$work/tools/"
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
    groups | migrate | achieved) kinds=short ;;
    *) kinds="short long graph cooperative" ;;
esac
for kind in $kinds; do
    length_of[$kind]=$("$work/tools/compute-load" calibrate $kind)
done
# The same kernels.
length_of[streams]=${length_of[short]:-}
# Of a size that is fixed.
length_of[copy]=1 length_of[migrate]=1
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

caps() {
    title "compute: a hard cap, alone on the card"
    local kind cap achieved seconds all worst
    printf '%-12s %s\n' load "achieved percent of the same outside, for each percent asked"
    for kind in $loads_of_caps; do
        [ $kind != training ] || [ -n "$has_torch" ] || { skip "training: no PyTorch"; continue; }
        alone $kind
        share caps --env EGPU_COMPUTE=90%
        begin caps caps $(load $kind caps 90)
        begun caps
        all= worst=0
        for cap in $caps_asked; do
            pass_of caps $cap || continue
            sleep 0.4
            seconds=3; [ $cap -le 10 ] && seconds=5
            achieved=$(percent "$(measured $seconds caps)" "${solo_of[$kind]}")
            all="$all $cap: $achieved "
            row "cap, alone" "$kind" one $cap "$achieved"
            worst=$(awk -v w=$worst -v a="$achieved" -v c=$cap 'BEGIN { d = a - c; if (d < 0) d = -d; if (a == "nan") d = 100; printf "%.2f", (d > w ? d : w) }')
        done
        printf '%-12s %s\n' "$kind" "$all"
        check "$kind: each cap within 1 point (worst $worst)" at_most "$worst" 1
        egpu top -n 1 2>&1 | tail -n 2
        stop caps
        settle
        [ -z "${EGPU_GPU_PEER:-}" ] || peer_caps $kind
    done
}

# The same load on the same card under the other library, outside.
peer_caps() { # KIND
    local kind=$1 cap achieved all=
    for cap in $caps_asked; do
        begin peer - env "LD_PRELOAD=$EGPU_GPU_PEER" CUDA_DEVICE_SM_LIMIT=$cap CUDA_DEVICE_MEMORY_LIMIT=16g GPU_CORE_UTILIZATION_POLICY=force \
            "CUDA_DEVICE_MEMORY_SHARED_CACHE=$work/peer$RANDOM$RANDOM" LIBCUDA_LOG_LEVEL=1 $(load "$kind" - 60)
        begun peer
        # It takes some seconds to find its way.
        sleep 3
        # It may hold a launch up for long.
        achieved=$(percent "$(tail=3 measured 5 peer)" "${solo_of[$kind]}")
        [ "$achieved" != 0.00 ] || { achieved=failed; tail -n 3 "$work/told/peer"; }
        all="$all $cap: $achieved "
        [ "$achieved" = failed ] || row "$(basename "$EGPU_GPU_PEER")" "$kind" one $cap "$achieved"
        kill $loads 2>/dev/null
        settle
    done
    printf '%-12s %s\n' "$kind" "with $(basename "$EGPU_GPU_PEER"): $all"
}

together_() { # NAME CAP...
    local name=$1 cap index achieved sum=0 all= worst=0 names=()
    shift
    index=0
    for cap in "$@"; do
        share "t$index" --env "EGPU_COMPUTE=$cap%"
        begin "t$index" "t$index" $(load short t 60)
        names+=("t$index")
        index=$((index + 1))
    done
    begun "${names[@]}"
    sleep 1
    mapfile -t measured_rates < <(measured 6 "${names[@]}")
    index=0
    for cap in "$@"; do
        achieved=$(percent "${measured_rates[$index]}" "${solo_of[short]}")
        row "$name" short "t$index" "$cap" "$achieved"
        all="$all $cap: $achieved "
        sum=$(awk -v s=$sum -v a="$achieved" 'BEGIN { printf "%.2f", s + a }')
        worst=$(awk -v w=$worst -v a="$achieved" -v c="$cap" 'BEGIN { d = a - c; if (d < 0) d = -d; if (a == "nan") d = 100; printf "%.2f", (d > w ? d : w) }')
        index=$((index + 1))
    done
    echo "$name: $all sum $sum"
    check "$name: each within 1 point (worst $worst)" at_most "$worst" 1
    check "$name: the sum is at least 1 - 0.6 ms x containers / 100 ms" at_least "$sum" "$(awk -v n=$# 'BEGIN { print 100 - 0.6 * n }')"
    egpu top -n 1 2>&1
    stop "${names[@]}"
    settle
}
together() {
    title "compute: caps of busy containers together"
    alone short
    together_ "10/30/60" 10 30 60
    together_ "25 x 4" 25 25 25 25
    together_ "20/80" 20 80
}

case3() {
    [ -n "$has_torch" ] || { skip "case 3: no PyTorch"; return; }
    title "compute: CTYun's case 3: 10240 MiB at 10, 50 and 100 percent, the same training job"
    local weight line base achieved
    base=$(python3 "$work/tools/train.py" 6 7250 | sed -n 's/.*examples\/s \([0-9.]*\).*/\1/p')
    echo "outside: $base examples/s"
    for weight in 100 50 10; do
        compute_tools "case$weight"
        line=$(run "case$weight" --env NVIDIA_VISIBLE_DEVICES=0 \
            --env "EGPU=POLICY=0,ONLINE=0,TYPE=CONTAINERD:PGPU=0,MEM=10240,WEIGHT=$weight" -- python3 /tmp/train.py 8 7250 2>&1 | tail -n 1)
        achieved=$(percent "$(sed -n 's/.*examples\/s \([0-9.]*\).*/\1/p' <<<"$line")" "$base")
        printf '%-4s %s: %s percent\n' "$weight" "$line" "$achieved"
        row "vendor case 3" training one $weight "$achieved"
        check "case 3 at $weight percent is within 1 point" within "$achieved" $weight 1
    done
}

# Seven neighbours in a flood of driver calls: the driver's locks and the firmware are shared, and an edge waits there for its turn.
flood() {
    [ -x "$bin/hostile" ] || { skip "a flood: no $bin/hostile"; return; }
    title "compute: a busy container beside seven that flood the driver with calls"
    cp "$bin/hostile" "$work/tools/"
    local index names=() quiet beside
    alone short
    share v --env EGPU_COMPUTE=50%
    for index in $(seq 7); do
        share "f$index" --env EGPU_COMPUTE=5% --env EGPU_MEMORY=2GiB
        names+=("f$index")
    done
    begin v v $(load short v 90)
    begun v
    sleep 1
    quiet=$(percent "$(measured 4 v)" "${solo_of[short]}")
    for index in $(seq 7); do begin "f$index" "f$index" /tmp/hostile flood 30 4; done
    sleep 2
    beside=$(percent "$(measured 6 v)" "${solo_of[short]}")
    edges_ "in the flood"
    for index in $(seq 7); do echo "f$index: $(tr '\n' ' ' <"$work/told/f$index")"; done
    row "in a flood" short v 50 "$beside"
    echo "50 percent: $quiet beside idle neighbours, $beside in the flood"
    check "its share holds within 1 point in a flood" within "$beside" 50 1
    stop v "${names[@]}"
    settle
}

# Kernels of 300 ms of a program that does not ask for preemption at any instruction, which CUDA does (no_preemption.c).
preemption() {
    [ -f "$bin/no-preemption.so" ] || { skip "preemption: no $bin/no-preemption.so"; return; }
    title "compute: kernels of 300 ms that do not ask to be preemptible, beside short ones"
    cp "$bin/no-preemption.so" "$work/tools/"
    alone long 4
    alone short
    share p1 --env EGPU_COMPUTE=25%
    share p2 --env EGPU_COMPUTE=50%
    begin p1 p1 env LD_PRELOAD=/tmp/no-preemption.so $(load long p1 20)
    begin p2 p2 $(load short p2 20)
    begun p2
    sleep 3
    mapfile -t both < <(measured 8 p1 p2)
    local long short
    long=$(percent "${both[0]}" "${solo_of[long]}") short=$(percent "${both[1]}" "${solo_of[short]}")
    echo "25 percent: $long; beside it 50 percent: $short"
    check "the long ones keep to their share" within "$long" 25 1.5
    check "the short ones have theirs" within "$short" 50 1
    egpu top -n 1 2>&1
    settle
    check "what it asked for was held back" grep -q 'held back' "$work/told/p1"
    stop p1 p2
}

# Copies that the kernel makes for a program run on channels of the kernel's own, outside the program's turns: what they take from a neighbour.
migrate() {
    title "compute: managed memory that is moved all the time (10 percent) beside copies (50 percent) and kernels (40 percent)"
    local quiet beside
    alone copy 2 5
    alone migrate 2 5
    alone short 2 5
    share mc --env EGPU_COMPUTE=50%
    share mk --env EGPU_COMPUTE=40%
    share mm --env EGPU_COMPUTE=10%
    begin mc mc $(load copy m 60)
    begin mk mk $(load short m 60)
    begun mc mk
    sleep 1
    mapfile -t quiet < <(measured 3 mc mk)
    begin mm mm $(load migrate m 60)
    begun mm
    sleep 1
    mapfile -t beside < <(measured 4 mc mk mm)
    echo "copies: $(percent "${quiet[0]}" "${solo_of[copy]}") percent, beside the moves $(percent "${beside[0]}" "${solo_of[copy]}")"
    echo "kernels: $(percent "${quiet[1]}" "${solo_of[short]}") percent, beside the moves $(percent "${beside[1]}" "${solo_of[short]}")"
    echo "the moves: $(percent "${beside[2]}" "${solo_of[migrate]}") percent of alone"
    row "beside moves of managed memory" copy mc 50 "$(percent "${beside[0]}" "${solo_of[copy]}")"
    row "beside moves of managed memory" short mk 40 "$(percent "${beside[1]}" "${solo_of[short]}")"
    check "kernels keep to their share within 1 point" within "$(percent "${beside[1]}" "${solo_of[short]}")" 40 1
    egpu top -n 1 2>&1
    stop mc mk mm
    settle
}

# What each of two trainings does for each batch: weights POLICY FIRST SECOND.
batches=${EGPU_GPU_BATCHES:-16 32 64 128}
weights_() {
    local policy=$1 seconds=6 at who batch from to first second ratio wrong total
    [ "$policy" = native ] || egpu policy 0 "$policy" --wait
    for who in w1 w2; do share $who --env EGPU_MEMORY=40GiB --env "EGPU_WEIGHT=${who#w}" ${policy:+--env EGPU_POLICY=$policy}; done
    at=$(($(monotonic_us) + 25000000))
    for who in w1 w2; do begin $who $who env AT=$at python3 /tmp/torch_load.py $seconds $batches; done
    settle
    printf '%-10s %6s %12s %12s %8s %8s\n' "$policy" batch "weight 1" "weight 2" ratio total
    from=$((at + 1500000))
    for batch in $batches; do
        to=$((from + seconds * 1000000 - 2500000))
        first=$(rate "$work/told/w1" $from $to) second=$(rate "$work/told/w2" $from $to)
        ratio=$(ratio "$second" "$first")
        total=$(awk -v a="$first" -v b="$second" 'BEGIN { printf "%.1f", a + b }')
        printf '%-10s %6s %12s %12s %8s %8s\n' "" $batch "$first" "$second" "$ratio" "$total"
        row "weights 1:2, $policy" "batch $batch" w1 33.33 "$(percent "$first" "$total")"
        row "weights 1:2, $policy" "batch $batch" w2 66.67 "$(percent "$second" "$total")"
        wrong=$(awk -v r="${ratio:-0}" 'BEGIN { d = r / 2 - 1; printf "%.2f", (d < 0 ? -100 * d : 100 * d) }')
        case $policy in
            weighted) check "weighted, batch $batch: 1:2 within 2.5 percent ($wrong)" at_most "$wrong" 2.5 ;;
            soft) check "soft, batch $batch: 1:2 within 5 percent ($wrong)" at_most "$wrong" 5 ;;
        esac
        [ "$policy" = native ] && unmanaged_of[$batch]=$total ||
            check "$policy, batch $batch: the total is that of two unmanaged processes (${unmanaged_of[$batch]})" at_least "$total" "$(awk -v u="${unmanaged_of[$batch]:-0}" 'BEGIN { print (u > 0 ? u : 1e30) }')"
        from=$((from + seconds * 1000000))
    done
    egpu top -n 1 2>&1 | tail -n 3
    stop w1 w2
}
# lent_ SIGNAL: what s1 does in half a second from 100 ms on after s2's program has got the signal. It has 11 ms of work queued by then.
lent_() {
    local at
    pkill "-$1" -f '^/tmp/compute-load run short .* 57$'
    at=$(monotonic_us)
    sleep 1.5
    percent "$(rate "$work/told/s1" $((at + 100000)) $((at + 600000)))" "${solo_of[short]}"
}

declare -A unmanaged_of
weights() {
    [ -n "$has_torch" ] || { skip "weights: no PyTorch"; return; }
    title "compute: weights 1:2, training ResNet-50 (float16)"
    local seconds=6 at who batch from
    at=$(($(monotonic_us) + 25000000))
    for who in n1 n2; do begin $who - env AT=$at python3 "$work/tools/torch_load.py" $seconds $batches; done
    settle
    from=$((at + 1500000))
    printf '%-10s %6s %12s %12s\n' unmanaged batch first second
    for batch in $batches; do
        local to=$((from + seconds * 1000000 - 2500000)) first second
        first=$(rate "$work/told/n1" $from $to) second=$(rate "$work/told/n2" $from $to)
        unmanaged_of[$batch]=$(awk -v a="$first" -v b="$second" 'BEGIN { printf "%.1f", a + b }')
        printf '%-10s %6s %12s %12s total %s\n' "" $batch "$first" "$second" "${unmanaged_of[$batch]}"
        from=$((from + seconds * 1000000))
    done
    weights_ weighted
    weights_ soft
    egpu policy 0 fixed --wait
}

# What an idle neighbour leaves, under soft.
lending() {
    title "compute: soft, with kernels of 0.7 ms, and lending"
    alone short
    egpu policy 0 soft --wait
    share s1 --env EGPU_WEIGHT=1 --env EGPU_POLICY=soft
    share s2 --env EGPU_WEIGHT=3 --env EGPU_POLICY=soft
    begin s1 s1 $(load short s 40)
    begun s1
    sleep 1
    echo "beside an idle neighbour of weight 3: $(percent "$(measured 2 s1)" "${solo_of[short]}") percent"
    begin s2 s2 $(load short s 57)
    begun s2
    sleep 3
    mapfile -t both < <(measured 4 s1 s2)
    echo "weights 1:3, both busy: $(percent "${both[0]}" "${solo_of[short]}") and $(percent "${both[1]}" "${solo_of[short]}") percent, ratio $(ratio "${both[1]}" "${both[0]}")"
    check "soft 1:3 within 5 percent" within "$(ratio "${both[1]}" "${both[0]}")" 3 0.15
    row "soft 1:3" short s1 25 "$(percent "${both[0]}" "${solo_of[short]}")"
    row "soft 1:3" short s2 75 "$(percent "${both[1]}" "${solo_of[short]}")"
    # A neighbour that lives on and launches no more; then one that ends.
    local still after
    for still in 1 2 3; do
        after=$(lent_ STOP)
        echo "from 100 ms after the neighbour has launched its last: $after percent"
        check "an idle neighbour's time is used within 100 ms" at_least "$after" 95
        pkill -CONT -f '^/tmp/compute-load run short .* 57$'
        sleep 2
    done
    after=$(lent_ KILL)
    echo "from 100 ms after the neighbour's end: $after percent"
    check "the time of a neighbour that has ended is used within 100 ms" at_least "$after" 95
    stop s1 s2
    settle
    egpu policy 0 fixed --wait
}

priority() {
    title "compute: low priority beside high"
    alone short
    share high --env EGPU_PRIORITY=high
    share low --env EGPU_PRIORITY=low
    begin low low $(load short low 60)
    begun low
    echo "low, high idle: $(percent "$(measured 2 low)" "${solo_of[short]}") percent"
    begin high high $(load short high 8)
    begun high
    sleep 0.5
    mapfile -t both < <(measured 3 high low)
    echo "both busy: high $(percent "${both[0]}" "${solo_of[short]}"), low $(percent "${both[1]}" "${solo_of[short]}") percent"
    check "high has at least 90 percent" at_least "$(percent "${both[0]}" "${solo_of[short]}")" 90
    check "low has at most 5 percent" at_most "$(percent "${both[1]}" "${solo_of[short]}")" 5
    sleep 6
    echo "after it: low $(percent "$(measured 2 low)" "${solo_of[short]}") percent"
    stop high low
    settle
}

# threads CONTAINERS...: user and system time of the mediators' threads by name, in clock ticks.
threads() {
    for pid in $(pgrep -x egpu-mediator); do
        for task in /proc/"$pid"/task/*/stat; do sed 's/^[0-9]* (\(.*\)) /\1 /' "$task" | awk '{ print $1, $13, $14 }'; done
    done | awk '{ own[$1] += $2; kernel[$1] += $3 } END { for (name in own) print name, own[name], kernel[name] }' | sort
}
# costs: processor time of all threads that schedule, and of that what went into driver calls; microseconds.
costs() {
    egpu top -n 1 --output json | python3 -c '
import json, sys
cards = [card for one in json.load(sys.stdin)["containers"] for card in one["cards"]]
print(*(sum(card[key] for card in cards) for key in ("scheduler_cpu_us", "scheduler_driver_cpu_us")))'
}
edges_() {
    local before after from to outside inside
    threads >"$work/threads.before"
    before=$(costs)
    from=$(monotonic_us)
    sleep 10
    to=$(monotonic_us)
    after=$(costs)
    threads >"$work/threads.after"
    read -r outside inside < <(awk -v us=$((to - from)) -v before="$before" -v after="$after" 'BEGIN {
        split(before, b, " "); split(after, a, " "); inside = a[2] - b[2]
        printf "%.2f %.2f", 100 * (a[1] - b[1] - inside) / us, 100 * inside / us }')
    echo "$1: the schedulers' processor time is $outside percent of a core outside driver calls, $inside in them"
    check "outside driver calls it is at most 2 percent of a core" at_most "$outside" 2
    echo "$1; thread, percent of a core in user mode and in the kernel:"
    join "$work/threads.before" "$work/threads.after" | awk -v s=$(((to - from) / 1000)) -v hz="$(getconf CLK_TCK)" \
        '{ printf "  %-18s %6.2f %6.2f\n", $1, ($4 - $2) / hz * 1e5 / s, ($5 - $3) / hz * 1e5 / s }'
    egpu top -n 1 --output json | python3 -c '
import json, sys
def walk(value, path=""):
    if isinstance(value, dict):
        if "edges" in value or "late_edges" in value:
            print("  ", {key: item for key, item in value.items() if not isinstance(item, (dict, list))})
        for key, item in value.items(): walk(item, key)
    elif isinstance(value, list):
        for item in value: walk(item)
walk(json.load(sys.stdin))'
}
edges() {
    title "compute: eight containers on a card: the schedulers' own cost and lateness"
    local index names=()
    alone short
    for index in $(seq 8); do
        share "e$index" --env EGPU_COMPUTE=12%
        begin "e$index" "e$index" $(load short e 60)
        names+=("e$index")
    done
    begun "${names[@]}"
    sleep 1
    edges_ "an idle host"
    local sum=0 value
    for value in $(measured 3 "${names[@]}"); do sum=$(awk -v s=$sum -v a="$(percent "$value" "${solo_of[short]}")" 'BEGIN { printf "%.2f", s + a }'); printf '%s ' "$(percent "$value" "${solo_of[short]}")"; done
    echo "sum $sum"
    for _ in $(seq "$(nproc)"); do (while :; do :; done) & busy="${busy:-} $!"; done
    sleep 1
    edges_ "every core of the host busy"
    kill $busy
    wait $busy 2>/dev/null
    stop "${names[@]}"
    settle
}

# told_achieved ID...: percent of the card's time that each achieved in the last second; "nan" where that is not known.
told_achieved() {
    egpu top -n 1 --output json | python3 -c '
import json, sys
told = {one["id"]: one["cards"][0]["achieved_1s_percent"] for one in json.load(sys.stdin)["containers"]}
for id in sys.argv[1:]: print("nan" if told.get(id) is None else round(told[id], 2))' "$@"
}
# still SIGNAL SECONDS...: to loads, known by how long they are to run.
still() { local signal=$1; shift; for seconds in "$@"; do pkill "-$signal" -f "^/tmp/compute-load run short .* $seconds\$"; done; }
achieved() {
    title "compute: what containers achieve, as egpu tells it"
    local told
    share a0
    begin a0 a0 $(load short a0 91)
    begun a0
    sleep 2.5
    told=$(told_achieved a0)
    echo "alone, no limit, busy: $told percent"
    check "who is alone and busy achieves the card's time" within "$told" 99 2
    still STOP 91
    sleep 3
    told=$(told_achieved a0)
    echo "the same, with a context and memory and no work: $told percent"
    check "who is alone and idle achieves nothing" within "$told" 0 1
    stop a0
    settle

    egpu policy 0 soft --wait
    local who
    for who in 1 2; do
        share "a$who" --env EGPU_POLICY=soft --env "EGPU_WEIGHT=$who"
        begin "a$who" "a$who" $(load short a "9$((who + 1))")
    done
    begun a1 a2
    sleep 2
    mapfile -t both < <(measured 3 a1 a2)
    mapfile -t told < <(told_achieved a1 a2)
    echo "soft 1:2, both busy: ${told[0]} and ${told[1]} percent, ratio $(ratio "${told[1]}" "${told[0]}"); throughputs have the ratio $(ratio "${both[1]}" "${both[0]}")"
    check "the sum is at most the card's time" at_most "$(awk -v a="${told[0]}" -v b="${told[1]}" 'BEGIN { print (a == "nan" || b == "nan" || b == "") ? 1e30 : a + b }')" 100.5
    check "it is what they do, within 10 percent" within "$(awk -v told="$(ratio "${told[1]}" "${told[0]}")" -v did="$(ratio "${both[1]}" "${both[0]}")" 'BEGIN { print (did > 0 ? told / did : "nan") }')" 1 0.1
    still STOP 92
    sleep 3
    mapfile -t told < <(told_achieved a1 a2)
    echo "the first one idle: ${told[0]} and ${told[1]} percent"
    check "who is idle beside a busy one achieves nothing" within "${told[0]}" 0 1
    check "and the other one all that it takes" within "${told[1]}" 99 2
    still STOP 93
    sleep 3
    mapfile -t told < <(told_achieved a1 a2)
    echo "both idle: ${told[0]} and ${told[1]} percent"
    check "both idle achieve nothing" within "$(awk -v a="${told[0]}" -v b="${told[1]}" 'BEGIN { print (a == "nan" || b == "nan" || b == "") ? "nan" : a + b }')" 0 1
    stop a1 a2
    settle
    egpu policy 0 fixed --wait
}

two() {
    [ ${#host_uuids[@]} -gt 1 ] || { skip "two cards: one only"; return; }
    [ -n "$has_torch" ] || { skip "two cards: no PyTorch"; return; }
    title "compute: two containers of two cards at 50 percent each, NCCL all-reduce"
    local base who value setting env_options=()
    # The same outside and inside. Multicast is off on machines that lend single cards; both ends are on this machine.
    local settings=(NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 NCCL_IB_DISABLE=1
        NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=WARN)
    for setting in "${settings[@]}"; do env_options+=(--env "$setting"); done
    begin solo - env "${settings[@]}" CUDA_VISIBLE_DEVICES=0,1 timeout 90 python3 "$work/tools/nccl_load.py" 8
    begun solo
    base=$(measured 4 solo)
    settle
    echo "outside: $base rounds/s"
    [ -n "$base" ] || { fail "NCCL works outside"; tail -n 30 "$work/told/solo"; return; }
    for who in d1 d2; do
        compute_tools $who
        # NCCL keeps its buffers in /dev/shm where cards do not reach each other; what is mounted by default is 64 MiB. The host's network has
        # an interface that is up. Both on the same two cards, whatever else the machine has.
        launch $who --env EGPU_DEVICES=0,1 --env EGPU_MEMORY=16GiB --env EGPU_COMPUTE=50% --net-host "${env_options[@]}" \
            --mount type=tmpfs,src=shm,dst=/dev/shm,options=nosuid:nodev:mode=1777:size=1073741824 -- sleep infinity
    done
    check "both are on the same two cards" same_cards "$(granted_uuids d1)" "$(granted_uuids d2)"
    ctr_ tasks exec --exec-id see1 d1 sh -c 'nvidia-smi -L; df -h /dev/shm | tail -n 1' 2>&1
    for who in d1 d2; do begin $who $who timeout 150 python3 /tmp/nccl_load.py 60 $((29520 + ${who#d})); done
    begun d1 d2
    sleep 1
    mapfile -t both < <(measured 8 d1 d2)
    for who in 0 1; do
        value=$(ratio "${both[$who]:-0}" "$base")
        [ -n "${both[$who]:-}" ] || { echo "what container $((who + 1)) told:"; tail -n 30 "$work/told/d$((who + 1))"; }
        echo "container $((who + 1)): ${both[$who]} rounds/s, $value of alone"
        row "two cards, NCCL" all-reduce "d$who" 50 "$(percent "${both[$who]}" "$base")"
        check "it makes at least 0.45 of its progress alone" at_least "$value" 0.45
    done
    egpu top -n 1
    stop d1 d2
    settle
}

# told ID: what nvidia-smi says in a container of the card's utilization, the median of some looks a second apart.
told() {
    for _ in 1 2 3 4 5; do
        ctr_ tasks exec --exec-id "u$RANDOM$RANDOM" "$1" nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits 2>&1 | tr -dc '0-9\n'
        sleep 1
    done | sort -n | sed -n 3p
}
utilization() {
    title "compute: what containers are told of the card's utilization"
    alone short
    share u1 --env EGPU_COMPUTE=25%
    share u2 --env EGPU_COMPUTE=50%
    echo "both idle: $(told u1) and $(told u2) percent"
    begin u1 u1 $(load short u1 60)
    begun u1
    sleep 2
    local busy idle
    busy=$(told u1) idle=$(told u2)
    echo "25 percent busy: it is told $busy, its idle neighbour $idle, the host $(host_smi --query-gpu=utilization.gpu --format=csv,noheader) percent"
    check "a cap that is used up is 100 percent" at_least "$busy" 90
    check "a busy neighbour is not seen" at_most "$idle" 2
    check "egpu ps says the same" at_least "$(egpu ps --output json | python3 -c '
import json, sys
print(next(card["utilization_percent"] for one in json.load(sys.stdin) if one["id"] == "u1" for card in one["cards"]))')" 90
    ctr_ tasks exec --exec-id usmi u1 nvidia-smi 2>&1
    # By the driver's samples, of the card and by process.
    ctr_ tasks exec --exec-id upmon u1 nvidia-smi pmon -c 3 2>&1
    ctr_ tasks exec --exec-id upmon u2 nvidia-smi pmon -c 1 2>&1
    ctr_ tasks exec --exec-id uq u1 nvidia-smi -q -d UTILIZATION 2>&1 | tail -n +8
    stop u1 u2
    settle
}

# A kernel that fails: the program is told what it is told outside, at once; neighbours go on.
errors() {
    [ -n "$has_torch" ] || { skip "errors: no PyTorch"; return; }
    title "compute: kernels that fail"
    local program='import torch
x = torch.zeros(4, device="cuda")
print("begun", flush=True)
try: print(x[torch.tensor([9], device="cuda")]); torch.cuda.synchronize()
except Exception as error: print(str(error).splitlines()[0])'
    local outside inside before after
    outside=$(timeout 60 python3 -c "$program" 2>/dev/null | tail -n 1)
    alone short
    share f1 --env EGPU_COMPUTE=40%
    share f2 --env EGPU_COMPUTE=40%
    begin f2 f2 $(load short f2 60)
    begun f2
    before=$(measured 2 f2)
    inside=$(ctr_ tasks exec --exec-id assert f1 timeout 60 python3 -c "$program" 2>/dev/null | tr -d '\r' | tail -n 1)
    after=$(measured 2 f2)
    echo "outside: $outside"
    echo "inside:  $inside"
    check "an assertion in a kernel is told as it is outside" [ -n "$inside" -a "$inside" = "$outside" ]
    echo "the neighbour: $before rounds/s before, $after after"
    check "the neighbour goes on" at_least "$(ratio "$after" "$before")" 0.95
    stop f1 f2
    settle
}

# Many channel groups in a container, and many channels in a group. CUDA has 4 groups and 20 channels for a context, and a container may have
# 64 groups: so 16 processes.
groups() {
    title "compute: 16 processes (64 channel groups, 320 channels) beside one, and 32 streams"
    local many=16 several one both
    alone short 2 5
    alone streams 2 5
    # They take turns with one another, which costs a part of what one process does.
    alone short 2 8 $many
    egpu policy 0 soft --wait
    share g16 --env EGPU_WEIGHT=1 --env EGPU_POLICY=soft
    share g1 --env EGPU_WEIGHT=1 --env EGPU_POLICY=soft
    begin g16 g16 $(load short g 60) $many
    begin g1 g1 $(load short g 60)
    begun g16 g1
    # Groups that begin all at once have more for a second or two.
    sleep 2
    mapfile -t both < <(measured 5 g16 g1)
    several=$(percent "${both[0]}" "${solo_of[short x $many]}") one=$(percent "${both[1]}" "${solo_of[short]}")
    echo "soft, weights 1:1: 16 processes $several percent of what they do alone, one $one"
    row "soft 1:1, many groups" short g16 50 "$several"
    row "soft 1:1, many groups" short g1 50 "$one"
    # Each loses some of its share by the changes between them.
    check "soft: 16 processes have no more than one share" at_most "$several" 50
    check "soft: the one beside them keeps its share, less what changes cost" at_least "$one" 40
    egpu top -n 1 2>&1
    stop g16 g1
    settle
    grep -h 'ended\|: CUDA' "$work/told/g16"
    egpu policy 0 fixed --wait

    share high --env EGPU_PRIORITY=high
    share low --env EGPU_PRIORITY=low
    begin low low $(load short low 60) $many
    begun low
    begin high high $(load short high 60)
    begun high
    sleep 1
    mapfile -t both < <(measured 3 high low)
    one=$(percent "${both[0]}" "${solo_of[short]}") several=$(percent "${both[1]}" "${solo_of[short x $many]}")
    echo "priority: high $one percent, 16 processes of low priority $several"
    check "high has at least 90 percent beside 16 processes of low priority" at_least "$one" 90
    check "which have at most 5 percent" at_most "$several" 5
    stop high low
    settle

    share c32 --env EGPU_COMPUTE=25%
    share c16 --env EGPU_COMPUTE=25%
    begin c32 c32 $(load streams c 60)
    begin c16 c16 $(load short c 60) $many
    begun c32 c16
    sleep 1
    mapfile -t both < <(measured 5 c32 c16)
    one=$(percent "${both[0]}" "${solo_of[streams]}") several=$(percent "${both[1]}" "${solo_of[short x $many]}")
    echo "25 percent each: 32 streams $one, 16 processes $several"
    row "cap, many channels" streams c32 25 "$one"
    row "cap, many groups" short c16 25 "$several"
    check "32 streams are within 1 point" within "$one" 25 1
    check "16 processes are within 1 point" within "$several" 25 1
    egpu top -n 1 2>&1
    stop c32 c16
    settle
}

for part in $parts; do $part; done
python3 "$here/compute_plot.py" "$rows" >"${result%.txt}.svg" || rm -f "${result%.txt}.svg"
title "compute: the kernel's log"
dmesg 2>/dev/null | grep 'NVRM\|nvidia' | tail -n 10
# One for each time that the driver was too busy to read the log of context switches before it was full.
full=$(dmesg 2>/dev/null | grep -c 'FECS Exception: Logging error')
check "the log of context switches was never full ($full lines)" [ "$full" = 0 ]
