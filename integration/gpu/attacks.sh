# The suites of memory and attacks of integration/tests/it on this machine's own cards; sourced by run.sh, whose functions it uses. Each case
# has a process of its own, so that one that hangs costs its own time only; what needs simulated cards says so and is skipped.
# What each printed is kept in RESULT-cases/NAME.txt. EGPU_GPU_SECONDS: when no further case is begun (420); EGPU_GPU_CASE_SECONDS: how long each may take (60); EGPU_GPU_CASES: which (attacks memory).

seconds=${EGPU_GPU_SECONDS:-420}
case_seconds=${EGPU_GPU_CASE_SECONDS:-60}
cases=${result%.txt}-cases
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:/usr/local/nvidia/lib64:/usr/local/nvidia/lib

title "attacks: the suites of ${EGPU_GPU_CASES:-attacks memory}, for $seconds seconds at most"
# Ends what a case that did not end by itself has left: all of it is below a directory of its own.
end_case() {
    pgrep -f -- "$work/it/" | xargs -r kill -KILL
    sleep 0.5
    awk -v below="$work/it/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | sort -r | xargs -r umount -l
    find "$work/it" -mindepth 1 -maxdepth 1 -exec rm -rf {} + 2>/dev/null
}
it_() {
    env TMPDIR="$work/it" EGPU_TEST_BIN="$bin" EGPU_TEST_CONTAINERD_BIN="$bin" EGPU_TEST_HOSTILE="$bin/hostile" \
        EGPU_TEST_RM_CLIENT="$bin/rm-client" EGPU_TEST_REAL_CARDS="$([ -n "$dry" ] || echo 1)" "$@"
}
# one NAME: runs a case; what it came to is said and counted, and what the driver wrote meanwhile.
one() {
    local name=$1 kept=$cases/${1//[\/:]/_}.txt status begun=$SECONDS took log
    log=$(kernel_log)
    it_ timeout --kill-after 5 "$case_seconds" "$bin/it" --exact "$name" --test-threads 1 >"$kept" 2>&1
    status=$?
    took=$((SECONDS - begun))
    if [ "$status" -gt 101 ]; then
        end_case
        fail "$name: did not end in $case_seconds s (exit $status), $kept"
    elif [ "$status" != 0 ]; then
        fail "$name (exit $status, $took s), $kept"
        sed -n '/^---- /,/^failures:/p' "$kept" | head -n 12
    elif grep -q 'skipped: ' "$kept"; then
        skip "$(sed -n 's/.*skipped: //p' "$kept" | head -n 1)"
    elif grep -qE '1 passed' "$kept"; then
        pass "$name ($took s)"
    else
        fail "$name: nothing was run, $kept"
    fi
    log=$(($(kernel_log) - log))
    [ "$log" = 0 ] || echo "$log new lines of the driver in the kernel's log"
}
attacks() {
    local names name until=$((SECONDS + seconds)) late=0
    mkdir -p "$work/it" "$cases"
    mapfile -t names < <(for suite in ${EGPU_GPU_CASES:-attacks memory}; do
        it_ "$bin/it" --list "/$suite::" 2>"$cases/list.txt" | sed -n 's/: test$//p'
    done)
    [ ${#names[@]} -gt 0 ] || { cat "$cases/list.txt"; fail "the suites have no cases"; return; }
    echo "${#names[@]} cases; kept in $cases"
    for name in "${names[@]}"; do
        if [ $SECONDS -ge $until ]; then
            late=$((late + 1))
            skip "$name: no time is left"
        else
            one "$name"
        fi
    done
    [ $late = 0 ] || echo "$late cases were not begun: EGPU_GPU_SECONDS=$seconds"
    end_case
}
log_before=$(kernel_log)
attacks
# Some attacks ask the driver for what it refuses with three lines (a channel of wrong parameters). Thousands of refused calls are made here.
no_log 20
