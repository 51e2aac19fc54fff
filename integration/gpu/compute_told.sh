# What programs and operators are told; sourced by compute.sh, whose functions these use.

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
