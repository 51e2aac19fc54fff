#!/bin/bash
# What a library that limits by LD_PRELOAD and CUDA_DEVICE_SM_LIMIT (HAMi-core's interface) achieves on this card, with the loads of compute.sh.
# usage: peer.sh LIBRARY TOOLS NAME >> RESULTS      TOOLS: where compute-load and torch_load.py are; NAME: what the library is called
library=$1 tools=$2 name=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:/usr/local/nvidia/lib64:/usr/local/nvidia/lib

# mean FILE: work a second between the third second and the last line.
mean() {
    awk '/^[0-9]+ [0-9.]+$/ { if (!first) first = $1; if ($1 > first + 3e6 && !from) { from = $1; at = $2 } time = $1; done = $2 }
        END { if (from && time > from) printf "%.3f", (done - at) / (time - from) * 1e6; else print 0 }' "$1"
}
command_of() { # KIND SECONDS
    case $1 in
        training) echo "python3 $tools/torch_load.py $2 small" ;;
        *) echo "$tools/compute-load run $1 ${length[$1]} $2" ;;
    esac
}
limited() { # CAP COMMAND...
    local cap=$1
    shift
    LD_PRELOAD=$library CUDA_DEVICE_SM_LIMIT=$cap CUDA_DEVICE_MEMORY_LIMIT=16g GPU_CORE_UTILIZATION_POLICY=force \
        CUDA_DEVICE_MEMORY_SHARED_CACHE=$work/cache$RANDOM$RANDOM LIBCUDA_LOG_LEVEL=1 "$@"
}

declare -A length solo
for kind in short long graph cooperative; do length[$kind]=$("$tools/compute-load" calibrate $kind); done
kinds="short long graph cooperative"
python3 -c 'import torch' 2>/dev/null && kinds="$kinds training"
echo "$name, $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1): achieved percent of the same without it, for each percent asked"
for kind in $kinds; do
    $(command_of $kind 7) >"$work/solo" 2>&1
    solo[$kind]=$(mean "$work/solo")
    printf '%-12s' $kind
    for cap in 10 25 50 75; do
        limited $cap $(command_of $kind 11) >"$work/told" 2>"$work/errors"
        achieved=$(mean "$work/told")
        awk -v c=$cap -v a="$achieved" -v s="${solo[$kind]}" 'BEGIN { if (a > 0 && s > 0) printf " %d: %.1f ", c, 100 * a / s; else printf " %d: failed ", c }'
    done
    echo
    [ "${achieved:-0}" = 0 ] && tail -n 3 "$work/errors" "$work/told"
done
