# Memory quotas on a real card, as tables; sourced by run.sh, whose functions it uses. Each table has its baseline in the same run.
# EGPU_GPU_MEMORY: which parts (quota frames vendor random launches initialisation allocation training pinned large many sixteen whole); default: all. EGPU_GPU_PROGRAMS: random programs (300);
# EGPU_GPU_PAIRS: pairs of a comparison (5). EGPU_GPU_SAID=1 shows all that the compared programs say.

parts=${EGPU_GPU_MEMORY:-quota frames vendor random launches initialisation allocation training pinned large many sixteen whole}
programs=${EGPU_GPU_PROGRAMS:-300}
pairs=${EGPU_GPU_PAIRS:-5}
quota_mib=4096
has_torch=$(python3 -c 'import torch; print("yes")' 2>/dev/null)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:/usr/local/nvidia/lib64:/usr/local/nvidia/lib

mkdir -p "$work/tools"
cp "$bin/cuda-load" "$bin/rm-client" "$here/train.py" "$here/pin_load.py" "$here/large_load.py" "$work/tools/"
# tools ID: puts the programs into a container's root file system.
tools() {
    rootfs "$1"
    mkdir -p "$work/roots/$1/merged/tmp"
    cp "$work/tools"/* "$work/roots/$1/merged/tmp/"
}
in_() { local id=$1; shift; ctr_ tasks exec --exec-id "x$RANDOM$RANDOM" "$id" "$@" 2>&1 | tr -d '\r'; }
median() { sort -n | awk '{ value[NR] = $1 } END { if (NR) print NR % 2 ? value[(NR + 1) / 2] : (value[NR / 2] + value[NR / 2 + 1]) / 2 }'; }
# The figure that a program begins with (of the first `lines` lines, 1); nothing of what it says when it fails.
number() { sed -nE 's,^(examples/s )?([0-9]+(\.[0-9]+)?).*,\2,p' | head -n "${lines:-1}"; }
used_mib() { egpu ps --output json | python3 -c '
import json, sys
for container in json.load(sys.stdin):
    if container["id"] == sys.argv[1]:
        used = [card["memory_used_bytes"] for card in container["cards"]]
        print("unknown" if None in used else sum(used) >> 20)' "$1"; }
# Whether a container comes to hold nothing. What was exported stays charged for a minute, as it may be on its way through a
# socket; when that took long, it is said.
drained() {
    local used tries
    for tries in $(seq 0 75); do
        used=$(used_mib "$1")
        if [ "$used" = 0 ]; then
            [ "$tries" -lt 3 ] || echo "$1 was charged for $tries s after its last program"
            return
        fi
        sleep 1
    done
    echo "$1 is still charged with $used MiB; nvidia-smi says of the card, and of processes:"
    host_smi --query-gpu=memory.used --format=csv,noheader
    host_smi --query-compute-apps=pid,used_memory --format=csv,noheader
    return 1
}
# How often accounts and driver were found to disagree, in all containers so far. They are compared every second.
drifts() { egpu events --kind drift --output json | python3 -c 'import json, sys; print(sum(event["count"] for event in json.load(sys.stdin)))'; }
log_before=$(kernel_log)

quota() {
    title "memory: 4 GiB of a card"
    tools quota
    launch quota --env EGPU_DEVICES=0 --env EGPU_MEMORY=4GiB -- sleep infinity
    filled=$(in_ quota /tmp/cuda-load fill 2048)
    echo "cuda-load fill: $filled"
    check "libcuda is refused in the end, not before" contains "$filled" "then refused"
    left=$(sed -n 's/.* free \([0-9]*\) total.*/\1/p' <<<"$filled")
    check "the last allocation that fits, fits: less than 2 MiB are left" at_most "$left" 2097151
    check "programs are told that there is no GPUDirect RDMA (here: $("$work/tools/cuda-load" attribute 116))" \
        [ "$(in_ quota /tmp/cuda-load attribute 116)" = 0 ]
    raw=$(in_ quota /tmp/rm-client alloc 64MiB --count 100)
    echo "rm-client alloc 64MiB --count 100: $(tail -n 2 <<<"$raw" | tr '\n' ' ')"
    check "a static client is refused" contains "$raw" "out of memory"
    if [ -n "$has_torch" ]; then
        torch=$(in_ quota python3 -c 'import torch
blocks = []
try:
    while True: blocks.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError as error: print(len(blocks), "blocks of 64 MiB, then:", str(error)[:200])')
        echo "PyTorch: $torch"
        check "PyTorch raises its out-of-memory error and names the quota" contains "$torch" "total capacity of 4.00 GiB"
    fi
    check "all of it is free again" drained quota

    title "memory: what programs in the container see"
    view=$(in_ quota nvidia-smi --query-gpu=memory.total,memory.used,memory.free --format=csv,noheader,nounits)
    echo "nvidia-smi (total, used, free MiB): $view"
    check "nvidia-smi sees the quota" [ "${view%%,*}" = $quota_mib ]
    view=$(in_ quota /tmp/cuda-load info)
    echo "cuMemGetInfo: $view"
    check "cuMemGetInfo sees the quota" [ "$(sed -n 's/.*total \([0-9]*\).*/\1/p' <<<"$view")" = $((quota_mib << 20)) ]
    view=$(in_ quota python3 -c 'import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1"); nvml.nvmlInit_v2()
class Memory(ctypes.Structure): _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]
device, memory = ctypes.c_void_p(), Memory(); nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
print(nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)), memory.total, memory.used, memory.free)')
    echo "NVML (status, total, used, free): $view"
    check "NVML sees the quota" [ "$(cut -d' ' -f2 <<<"$view")" = $((quota_mib << 20)) ]
    in_ quota /tmp/cuda-load hold 1048576 4 >"$work/hold" &
    sleep 2
    inner=$(in_ quota nvidia-smi)
    echo "$inner"
    check "nvidia-smi shows what is used of the quota" grep -qE "[1-9][0-9]*MiB / +${quota_mib}MiB" <<<"$inner"
    egpu ps
    check "egpu ps shows it too" at_least "$(used_mib quota)" 1024
    wait $!
    stop quota
}

# MiB that are free after a program on the host has all that it can have in frames of 2 MiB.
unusable() { "$work/tools/cuda-load" fill 2048 | sed -n 's/.* free \([0-9]*\) total.*/\1/p' | awk '{ print int($1 / 1048576) }'; }

# What the driver makes for itself (the buffers of 16 contexts) is put where a program has left 256 KiB in each frame of 2 MiB, which then frees all that is its own.
frames() {
    local before during after
    title "memory: frames of 2 MiB that are held open by what the driver makes for itself"
    before=$(unusable)
    tools frames
    launch frames --env EGPU_DEVICES=0 --env EGPU_MEMORY=16GiB -- sleep infinity
    in_ frames sh -c 'mkfifo /tmp/go; /tmp/rm-client fragment holes --hold stdin </tmp/go >/tmp/holes & exec 3>/tmp/go
        until grep -q holding /tmp/holes; do sleep 0.1; done
        for context in $(seq 16); do /tmp/cuda-load hold 4 75 >/dev/null 2>&1 3>&- & done
        sleep 25; touch /tmp/full; until [ -e /tmp/free ]; do sleep 0.1; done
        exec 3>&-; touch /tmp/freed; wait' &
    until [ -e "$work/roots/frames/merged/tmp/full" ]; do sleep 0.2; done
    echo "with 256 KiB free in each frame, and 16 contexts: $(tr '\n' ' ' <"$work/roots/frames/merged/tmp/holes"), $(used_mib frames) MiB charged, of the card $(host_smi --query-gpu=memory.used --format=csv,noheader)"
    touch "$work/roots/frames/merged/tmp/free"
    until [ -e "$work/roots/frames/merged/tmp/freed" ]; do sleep 0.2; done
    sleep 5
    echo "with the contexts alone: $(used_mib frames) MiB charged, of the card $(host_smi --query-gpu=memory.used --format=csv,noheader)"
    during=$(unusable)
    wait $!
    after=$(unusable)
    echo "free, but not in whole frames: $before MiB without the container, $during MiB beside the contexts, $after MiB after them"
    check "what contexts hold open beyond what they are charged is less than 512 MiB" at_most "$((during - before))" 512
    stop frames
}

vendor() {
    local result baseline mem
    if [ -n "$has_torch" ]; then
        title "memory: CTYun's cases 1 and 2 on one card, a training step that needs about 7.6 GB, at 10 percent of the card's time"
        printf '%-9s %s\n' "MEM" "result"
        baseline=$(python3 "$work/tools/train.py" 3 7250)
        printf '%-9s %s\n' "outside" "$baseline"
        for mem in 3276 8192; do
            tools "case$mem"
            result=$(run "case$mem" --env NVIDIA_VISIBLE_DEVICES=0 \
                --env "EGPU=POLICY=0,ONLINE=0,TYPE=CONTAINERD:PGPU=0,MEM=$mem,WEIGHT=10" -- python3 /tmp/train.py 3 7250 2>&1)
            printf '%-9s %s\n' "$mem" "$(tail -n 1 <<<"$result")"
            case $mem in
                3276) check "3276 MiB: out of memory" contains "$result" "out of memory" ;;
                8192) check "8192 MiB: the same job runs" contains "$result" "examples/s" ;;
            esac
        done
    fi
}

random() {
    title "memory: $programs random programs against NVML's account"
    tools random
    launch random --env EGPU_DEVICES=0 --env EGPU_MEMORY=8GiB -- sleep infinity
    mkfifo "$work/stop"
    python3 "$here/nvml_samples.py" 0 $((8 << 30)) <"$work/stop" >"$work/samples" 2>&1 &
    sampler=$!
    exec 9>"$work/stop"
    started=$(date +%s)
    for ((first = 0; first < programs; first += 10)); do
        in_ random sh -c "for seed in \$(seq $first $((first + 9 < programs ? first + 9 : programs - 1))); do
            if [ \$((seed % 3)) = 0 ]; then timeout 60 /tmp/rm-client random \$seed 200 --max 512MiB; else timeout 60 /tmp/cuda-load random \$seed 60 786432; fi >/tmp/out.\$seed 2>&1
            code=\$?; [ \$code = 0 ] || [ \$code = 2 ] || tail -n 1 /tmp/out.\$seed >&2
            echo \"\$seed exit \$code\" & done; wait" >>"$work/programs"
    done
    exec 9>&-
    wait "$sampler"
    within=$?
    cat "$work/samples"
    echo "$(grep -c ' exit ' "$work/programs") programs in $(($(date +%s) - started)) s, by exit code (2 is out of memory):"
    grep -v ' exit ' "$work/programs" | sort | uniq -c
    awk '$2 == "exit" { count[$3]++ } END { for (code in count) print "  exit " code ": " count[code] }' "$work/programs" | sort
    check "at no sample is NVML's account above the grant" [ "$within" = 0 ]
    check "all ended by themselves" [ "$(grep -cE 'exit (0|2)$' "$work/programs")" = "$programs" ]
    check "nothing is charged any more" drained random
    stop random
}

# A container of runc with all of the machine's devices and rights, where the bundle carries runc: what a container costs without egpu.
start_runc() {
    command -v runc >/dev/null && command -v containerd-shim-runc-v2 >/dev/null || return
    local driver=/usr/local/nvidia mount=()
    # An overlay shows nothing of what is mounted below it.
    [ ! -d "$driver" ] || mount=(--mount "type=bind,src=$driver,dst=$driver,options=rbind:ro")
    { [ -d "$work/roots/runc" ] || overlay runc; } && mkdir -p "$work/roots/runc/merged$driver" && cp "$work/tools"/* "$work/roots/runc/merged/tmp/" &&
        ctr_ run --detach --privileged --runtime io.containerd.runc.v2 --env "PATH=$container_path" --env HOME=/root --env TORCH_HOME=/tmp \
            --env "LD_LIBRARY_PATH=$LD_LIBRARY_PATH" "${mount[@]}" --rootfs "$work/roots/runc/merged" runc sleep infinity &&
        in_ runc /tmp/cuda-load info
}
start_compared() {
    tools cost
    launch cost --env EGPU_DEVICES=0 --env EGPU_MEMORY=40GiB -- sleep infinity
    places="out in"
    start_runc && places="out runc in" || echo "no container of runc can be had: it is left out"
}
stop_compared() { stop cost; [ "$places" = "out in" ] || stop runc; }
# The same command in one place, with @ for the folder of the programs.
in_place() {
    local place=$1
    shift
    case $place in
        out) "${@/#@/$work/tools/}" 2>/dev/null ;;
        runc) in_ runc "${@/#@//tmp/}" ;;
        in) in_ cost "${@/#@//tmp/}" ;;
    esac
}
measure() { # NAME COMMAND...: outside, in a container of runc, and inside, in turn; pause=SECONDS before each
    local name=$1 round place
    shift
    for place in $places; do : >"$work/$name.$place"; done
    for round in $(seq "$pairs"); do
        for place in $places; do
            sleep "${pause:-0}"
            in_place "$place" "$@" >"$work/said"
            number <"$work/said" >>"$work/$name.$place"
            [ -z "${EGPU_GPU_SAID:-}" ] || echo "  $place: $(tr '\n' ' ' <"$work/said")"
        done
    done
    outside=$(median <"$work/$name.out") inside=$(median <"$work/$name.in")
    printf '%-28s outside %12s inside %12s in/out %s difference %s\n' "$name" "$outside" "$inside" "$(ratio "$inside" "$outside")" \
        "$(awk -v a="$inside" -v b="$outside" 'BEGIN { printf "%.2f", a - b }')"
    [ "$places" = "out in" ] || {
        local runc
        runc=$(median <"$work/$name.runc")
        printf '%-28s in runc %12s runc/out %s in/runc %s\n' "" "$runc" "$(ratio "$runc" "$outside")" "$(ratio "$inside" "$runc")"
    }
    for place in $places; do echo "  each, $place: $(tr '\n' ' ' <"$work/$name.$place")"; done
}
# One process launches a tenth faster or slower than another, outside as inside: the means of many short ones.
launches() {
    local times=10 means
    title "memory: kernel launches, $((2 * pairs * times)) processes in each place"
    start_compared
    lines=$times pairs=$((2 * pairs)) measure launches_per_s @cuda-load launch 30000 $times
    means=$(ratio_of_means "$work/launches_per_s.in" "$work/launches_per_s.out")
    echo "means, in/out: $means"
    [ "$places" = "out in" ] || echo "means, runc/out: $(ratio_of_means "$work/launches_per_s.runc" "$work/launches_per_s.out")"
    check "kernel launches: at least 0.995x" at_least "${means%% *}" 0.995
    stop_compared
}
# ratio_of_means ONE OTHER: "RATIO +- STANDARD ERROR" of the numbers in two files.
ratio_of_means() { python3 -c '
import sys
from statistics import mean, stdev
def of(path):
    numbers = [float(line) for line in open(path)]
    return mean(numbers), stdev(numbers) / len(numbers) ** 0.5 / mean(numbers)
(one, error), (other, other_error) = map(of, sys.argv[1:])
print(f"{one / other:.4f} +- {one / other * (error**2 + other_error**2) ** 0.5:.4f}")' "$1" "$2"; }

initialisation() {
    title "memory: CUDA initialisation, median of $((2 * pairs)) pairs"
    start_compared
    # What the one before has left in the driver (unified memory has the card registered for as long as anybody has) is gone by then.
    # Single starts differ by a tenth.
    pairs=$((2 * pairs)) pause=2.5 measure init_ms @cuda-load init
    check "CUDA initialisation: at most 1.05x" at_most "$(ratio "$inside" "$outside")" 1.05
    stop_compared
}

allocation() {
    title "memory: malloc and free, median of $pairs pairs"
    start_compared
    measure malloc_4MiB_us @cuda-load malloc 4096 3000
    check "malloc and free of 4 MiB: at most 45 us more" at_most "$(awk -v a="$inside" -v b="$outside" 'BEGIN { if (a != "" && b != "") print a - b }')" 45
    measure malloc_1GiB_us @cuda-load malloc 1048576 200
    check "malloc and free of 1 GiB: at most 1.05x" at_most "$(ratio "$inside" "$outside")" 1.05
    stop_compared
}

training() {
    [ -n "$has_torch" ] || { skip "training: no PyTorch"; return; }
    title "memory: a training job, median of $pairs pairs"
    start_compared
    measure examples_per_s python3 @train.py 4
    check "PyTorch training: at least 0.995x" at_least "$(ratio "$inside" "$outside")" 0.995
    stop_compared
}

pinned() {
    local drifts_before outside inside
    [ -n "$has_torch" ] || { skip "pinned: no PyTorch"; return; }
    title "memory: what a program pins of its own, in 9 threads"
    drifts_before=$(drifts)
    tools pinned
    outside=$(python3 "$work/tools/pin_load.py" 2>&1 | tail -n 2)
    inside=$(run pinned --env EGPU_DEVICES=0 --env EGPU_MEMORY=16GiB -- python3 /tmp/pin_load.py 2>&1 | tail -n 5)
    printf '%s\n%s\n' "outside (copies checked; microseconds to register and unregister 1 MiB):" "$outside" "inside:" "$inside"
    check "all that was pinned reaches the card and comes back" contains "$inside" "checked "
    check "nothing drifts" [ "$(drifts)" = "${drifts_before:-unknown}" ]
    stop pinned
}

# Where there is an NVLink fabric, such blocks have addresses there; on one card or two.
large() {
    local devices=0 drifts_before outside inside said found='^(ok|failed|peers) '
    [ -n "$has_torch" ] || { skip "large: no PyTorch"; return; }
    [ ${#host_uuids[@]} -lt 2 ] || devices=0,1
    title "memory: blocks of 1 GiB, on card $devices"
    drifts_before=$(drifts)
    tools large
    cp "$bin/egpu" "$work/roots/large/merged/tmp/"
    outside=$(env "${nccl[@]}" CUDA_VISIBLE_DEVICES=$devices timeout 120 python3 "$work/tools/large_load.py" 2>&1 | grep -E "$found")
    launch large --env EGPU_DEVICES=$devices --env EGPU_MEMORY=16GiB "${nccl_options[@]}" -- sleep infinity
    said=$(in_ large timeout 120 python3 /tmp/large_load.py)
    inside=$(grep -E "$found" <<<"$said")
    printf '%s\n' "outside:" "$outside" "inside:" "$inside"
    check "a block is written and read" contains "$inside" "ok written on card 0"
    if ! check "what works outside works inside" same_lines "$outside" "$inside"; then
        tail -n 40 <<<"$said"
        in_ large timeout 120 /tmp/egpu trace -- python3 /tmp/large_load.py | grep -E -- '-> (0x|E)' | sed -E 's/^ *[0-9.]+ [0-9/]+ //' | sort | uniq -c | sort -rn | head -n 30
    fi
    check "nothing is charged any more" drained large
    check "nothing drifts" [ "$(drifts)" = "${drifts_before:-unknown}" ]
    stop large
}

many() {
    local drifts_before
    title "memory: 32 processes of one container at once"
    drifts_before=$(drifts)
    tools many
    launch many --env EGPU_DEVICES=0 --env EGPU_MEMORY=32GiB -- sleep infinity
    many=$(timeout 120 ctr --address "$socket" --namespace "$namespace" tasks exec --exec-id many32 many sh -c \
        'for seed in $(seq 32); do timeout 90 /tmp/cuda-load random $seed 150 262144 >/dev/null 2>&1; echo "exit $?" & done; wait' 2>&1 | tr -d '\r')
    sort <<<"$many" | uniq -c
    check "all 32 end, none hangs" [ "$(grep -cE '^exit (0|2)$' <<<"$many")" = 32 ]
    check "nothing is charged any more" drained many
    check "nothing drifts" [ "$(drifts)" = "${drifts_before:-unknown}" ]
    stop many
}

sixteen() {
    local drifts_before
    title "memory: 16 containers on one card at once"
    drifts_before=$(drifts)
    sed -i '1i device_split_count = 32' "$work/egpu.toml"
    tools many
    for i in $(seq 16); do
        ln -s many "$work/roots/c$i"
        launch "c$i" --env EGPU_DEVICES=0 --env EGPU_MEMORY=2GiB -- sleep infinity
    done
    egpu ps | tail -n 4
    for i in $(seq 16); do
        (timeout 100 ctr --address "$socket" --namespace "$namespace" tasks exec --exec-id "r$i" "c$i" sh -c \
            "timeout 90 /tmp/cuda-load random $i 150 131072; echo exit \$?" 2>&1 | tr -d '\r' >"$work/c$i.result") &
        waiting="${waiting:-} $!"
    done
    wait $waiting
    tail -qn 1 "$work"/c*.result | sort | uniq -c
    check "all 16 end, none hangs" [ "$(tail -qn 1 "$work"/c*.result | grep -cE '^exit (0|2)$')" = 16 ]
    for i in $(seq 16); do
        # A context has to fit beside 64 MiB; one step beyond 2 GiB is refused whatever the neighbours do.
        in_ "c$i" /tmp/cuda-load fill 2048 | sed -n 's/^allocated \([0-9]*\) .* free \([0-9]*\) total \([0-9]*\)$/\2 \3 \1/p' >"$work/c$i.fill" &
        filling="${filling:-} $!"
    done
    wait $filling
    right='$2 == 2147483648 && $1 < 2097152 && $3 >= 1300 * 1048576'
    awk "$right { good++ } END"' { print NR " containers filled their 2 GiB at once, " good + 0 " of them as they should" }' "$work"/c*.fill
    check "each gets its 2 GiB and no more" [ "$(awk "$right" "$work"/c*.fill | wc -l)" = 16 ]
    all_drained() { for i in $(seq 16); do drained "c$i" || return; done; }
    check "nothing is charged any more" all_drained
    check "nothing drifts" [ "$(drifts)" = "${drifts_before:-unknown}" ]
    stop $(seq -f 'c%g' 16)
    sed -i '1d' "$work/egpu.toml"
}

whole() {
    local sizes said
    title "memory: a whole card with whole_cards = \"mediated\""
    sed -i '1i whole_cards = "mediated"' "$work/egpu.toml"
    tools whole
    launch whole --env EGPU_DEVICES=0 -- sleep infinity
    egpu ps
    sizes='--query-gpu=memory.total --format=csv,noheader'
    said=$(in_ whole nvidia-smi $sizes)
    check "nvidia-smi sees all of it" [ "$said" = "$(host_smi -i 0 $sizes)" ]
    said=$(in_ whole /tmp/cuda-load fill 2048)
    echo "cuda-load fill: $said"
    check "all of it can be had" at_least "$(sed -n 's/^allocated \([0-9]*\) .*/\1/p' <<<"$said")" \
        "$(($(host_smi -i 0 --query-gpu=memory.total --format=csv,noheader,nounits) * 1048576 * 97 / 100))"
    check "nothing is charged any more" drained whole
    if [ -n "$has_torch" ]; then
        said=$(in_ whole python3 /tmp/train.py 2)
        echo "$said"
        check "PyTorch trains on it" contains "$said" "examples/s"
    fi
    stop whole
    sed -i '1d' "$work/egpu.toml"
}

for part in $parts; do $part; done

no_log
