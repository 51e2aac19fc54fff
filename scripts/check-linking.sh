#!/bin/bash
# Fails unless the programs given need no shared library but libc's own: they run on any host with a
# glibc as new as the one they were built with, with no package installed.
set -euo pipefail

allowed='^(libc\.so\.6|libm\.so\.6|libpthread\.so\.0|libdl\.so\.2|librt\.so\.1|ld-linux-[a-z0-9-]+\.so\.[12])$'
failed=0
for program in "$@"; do
    needed=$(LC_ALL=C readelf --dynamic --wide "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    others=$(grep --invert-match --extended-regexp "$allowed" <<<"$needed" || true)
    if [ -n "$others" ]; then
        echo "$program needs more than libc: ${others//$'\n'/ }" >&2
        failed=1
    else
        echo "$program needs ${needed//$'\n'/ }: libc only"
    fi
    # It has what it needs of libm itself: one library less to map in three processes a container.
    if [ "${program##*/}" = containerd-shim-egpu-v1 ] && [ "$needed" != libc.so.6 ]; then
        echo "$program needs more than libc.so.6: ${needed//$'\n'/ } (shim/sys/src/program.rs)" >&2
        failed=1
    fi
done
exit $failed
