# Shares beside what disturbs them, and what keeping them costs; sourced by compute.sh, whose functions these use.

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

# beside NAME SECONDS COMMAND...: what kernels of 50 percent and writes of memory of 40 lose by a container of 10 percent that runs this, so many seconds
# after it began: what may be asked for at once is used up by then.
beside() {
    local name=$1 after=$2 quiet loud
    shift 2
    cp "$bin/hostile" "$bin/rm-client" "$bin/cuda-load" "$work/tools/"
    alone short 2 5
    alone memory 2 5
    share bk --env EGPU_COMPUTE=50%
    share bm --env EGPU_COMPUTE=40%
    share bb --env EGPU_COMPUTE=10%
    begin bk bk $(load short b $((after + 25)))
    begin bm bm $(load memory b $((after + 25)))
    begun bk bm
    sleep 1
    mapfile -t quiet < <(measured 4 bk bm)
    egpu top -n 1 2>&1
    begin bb bb "$@"
    sleep "$after"
    mapfile -t loud < <(measured 6 bk bm)
    egpu top -n 1 2>&1
    echo "kernels, 50 percent: $(percent "${quiet[0]}" "${solo_of[short]}"), beside $name $(percent "${loud[0]}" "${solo_of[short]}")"
    echo "writes of memory, 40 percent: $(percent "${quiet[1]}" "${solo_of[memory]}"), beside $name $(percent "${loud[1]}" "${solo_of[memory]}")"
    row "beside $name" short bk 50 "$(percent "${loud[0]}" "${solo_of[short]}")"
    row "beside $name" memory bm 40 "$(percent "${loud[1]}" "${solo_of[memory]}")"
    check "kernels keep what they had within 1 point" within "$(percent "${loud[0]}" "${solo_of[short]}")" "$(percent "${quiet[0]}" "${solo_of[short]}")" 1
    check "writes keep what they had within 1 point" within "$(percent "${loud[1]}" "${solo_of[memory]}")" "$(percent "${quiet[1]}" "${solo_of[memory]}")" 1
    # It ends by itself, and tells how much it did.
    for _ in $(seq 150); do [ -s "$work/told/bb" ] && grep -qE 'calls|contexts' "$work/told/bb" && break; sleep 0.1; done
    stop bk bm bb
    settle
    echo "what it told: $(tail -n 3 "$work/told/bb" | tr '\n' ' ')"
}

# The driver writes over freed memory on channels of its own, in everybody's time.
scrub() {
    title "compute: beside memory that is taken and freed, 14 GiB at a time"
    beside "freed memory" 8 /tmp/hostile flood 16 4 3584
}

# Calls that succeed and that only the firmware can answer.
firmware() {
    title "compute: beside eight threads of calls to the firmware that succeed"
    beside "calls to the firmware" 1 /tmp/hostile flood-firmware 10 8
}

# Contexts: the driver makes and frees each in a tenth of a second, under the locks that edges need.
churn() {
    title "compute: beside contexts that are made and freed without end"
    beside "contexts" 30 sh -c 'for n in 1 2 3 4; do (until=$(($(date +%s) + 38)); count=0
        while [ $(date +%s) -lt $until ]; do /tmp/cuda-load init >/dev/null; count=$((count + 1)); done; echo "contexts $count") & done; wait'
}

# A block of 20 s that cannot be preempted, outside egpu: how long the firmware waits for it, and what comes of it.
endless() {
    title "compute: channels taken off the card in the middle of a block of 20 s that cannot be preempted (outside egpu)"
    local log
    log=$(dmesg 2>/dev/null | grep -c NVRM)
    alone short 2 5
    share e50 --env EGPU_COMPUTE=50%
    begin e50 e50 $(load short e 40)
    begun e50
    begin endless - env LD_PRELOAD="$work/tools/no-preemption.so" TAKE_OFF_AFTER=4 "$work/tools/compute-load" run long $((length_of[long] * 66)) 30
    sleep 20
    egpu top -n 1 2>&1
    egpu inspect e50 2>&1 | tail -n 20
    echo "what it was told:"
    grep -v '^[0-9]' "$work/told/endless"
    echo "the 50 percent: $(percent "$(rate "$work/told/e50" $(($(monotonic_us) - 16000000)) $(($(monotonic_us) - 1000000)))" "${solo_of[short]}") in these 15 s"
    settle
    stop e50
    echo "the driver's new lines in the kernel's log:"
    dmesg 2>/dev/null | grep NVRM | tail -n +$((log + 1)) | head -n 20
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
