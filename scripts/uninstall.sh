#!/bin/bash
# Takes the binaries away. Refuses while a container uses egpu, and names it: without the shim's
# binary, containerd could neither stop nor clean up that container. The configuration and the log
# stay.
# usage: [PREFIX=/usr/local] [DESTDIR=] scripts/uninstall.sh
set -euo pipefail

bin=${DESTDIR-}${PREFIX:-/usr/local}/bin
programs=("$bin/containerd-shim-egpu-v1" "$bin/egpu")

# Of an image or a package's staging tree, nothing runs.
if [ -z "${DESTDIR-}" ]; then
    if [ -x "$bin/egpu" ]; then
        grants=$("$bin/egpu" ps --output json) || {
            echo "cannot tell which containers use egpu, so nothing was removed: 'egpu ps' failed (see above)" >&2
            exit 1
        }
        if grep --quiet '"id"' <<<"$grants"; then
            echo "containers use egpu, so nothing was removed. Stop these first:" >&2
            "$bin/egpu" ps >&2
            exit 1
        fi
    fi
    # Containers without a GPU, and pods, appear in no grant; their shims do.
    running=()
    for process in /proc/[0-9]*; do
        # Not by /proc/PID/exe: a shim runs through a read-only mount of its own, which has no place
        # in the tree.
        mapfile -d '' -t arguments <"$process/cmdline" 2>/dev/null || continue
        [ "${arguments[0]-}" = "${programs[0]}" ] || continue
        for ((i = 0; i + 1 < ${#arguments[@]}; i++)); do
            [ "${arguments[i]}" != -id ] || running+=("${arguments[i + 1]}")
        done
    done
    if [ ${#running[@]} -gt 0 ]; then
        echo "containers run on egpu, so nothing was removed. Stop these first:" >&2
        printf '  %s\n' "${running[@]}" | sort --unique >&2
        exit 1
    fi
fi

for program in "${programs[@]}"; do
    if [ -e "$program" ]; then
        rm "$program"
        echo "removed $program"
    fi
done
echo "kept ${DESTDIR-}/etc/egpu and the log; take the runtime 'egpu' out of containerd's configuration as well"
