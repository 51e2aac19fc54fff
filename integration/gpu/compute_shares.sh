# What containers have of a card, as they were granted it; sourced by compute.sh, whose functions these use.

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
            worst=$(farther "$worst" "$achieved" "$cap")
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
        worst=$(farther "$worst" "$achieved" "$cap")
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

# Periods other than the default: the shorter, the more of each turn its edges take.
periods() {
    title "compute: 20 and 50 percent with other periods"
    local period most worst index cap measured_rates
    alone short
    share p0 --env EGPU_COMPUTE=20%
    share p1 --env EGPU_COMPUTE=50%
    begin p0 p0 $(load short p 60)
    begin p1 p1 $(load short p 60)
    begun p0 p1
    for period in 20 40 200 500; do
        egpu policy 0 fixed --period ${period}ms --wait >"$work/period.out" 2>&1 || cat "$work/period.out"
        sleep 2
        mapfile -t measured_rates < <(measured 6 p0 p1)
        worst=0
        for index in 0 1; do
            cap=$((20 + 30 * index))
            measured_rates[$index]=$(percent "${measured_rates[$index]}" "${solo_of[short]}")
            row "20/50, $period ms" short "p$index" $cap "${measured_rates[$index]}"
            worst=$(farther "$worst" "${measured_rates[$index]}" "$cap")
        done
        echo "$period ms: ${measured_rates[0]} and ${measured_rates[1]}"
        # 0.6 ms of each turn, as for the sums of busy containers.
        most=$(awk -v p=$period 'BEGIN { m = 60 / p; print (m > 1 ? m : 1) }')
        check "$period ms: each within $most points (worst $worst)" at_most "$worst" "$most"
    done
    stop p0 p1
    settle
    egpu policy 0 fixed --period 100ms --wait
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

two() {
    [ ${#host_uuids[@]} -gt 1 ] || { skip "two cards: one only"; return; }
    [ -n "$has_torch" ] || { skip "two cards: no PyTorch"; return; }
    title "compute: two containers of two cards at 50 percent each, NCCL all-reduce"
    local base who value
    begin solo - env "${nccl[@]}" CUDA_VISIBLE_DEVICES=0,1 timeout 90 python3 "$work/tools/nccl_load.py" 8
    begun solo
    base=$(measured 4 solo)
    settle
    echo "outside: $base rounds/s"
    [ -n "$base" ] || { fail "NCCL works outside"; tail -n 30 "$work/told/solo"; return; }
    for who in d1 d2; do
        compute_tools $who
        # Both on the same two cards, whatever else the machine has.
        launch $who --env EGPU_DEVICES=0,1 --env EGPU_MEMORY=16GiB --env EGPU_COMPUTE=50% "${nccl_options[@]}" -- sleep infinity
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
