#!/bin/bash
# Within the guest of run.sh: says what this machine is, runs the suite, prints both to the port
# named "results".
exec >>/dev/virtio-ports/results 2>&1
cd /egpu || exit 1

echo "kernel: $(uname -r)"
echo "init: $(cat /proc/1/comm), $(systemctl --version | head -n 1)"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    echo "cgroups: v2, controllers $(cat /sys/fs/cgroup/cgroup.controllers)"
else
    echo "cgroups: v1, hierarchies $(ls /sys/fs/cgroup | tr '\n' ' ')"
fi
echo "containerd: $(containerd --version | cut -d' ' -f3)$(for other in target/containerd/*/usr/bin/containerd; do
    [ -x "$other" ] && echo ", $("$other" --version | cut -d' ' -f3)"; done)"
echo "runc: $(runc --version | head -n 1)"
# What the tests' simulated cards and mounts use, as on a host whose services have started.
modprobe -a fuse overlay 2>/dev/null

export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin
export EGPU_TEST_BIN=/egpu/target/bin EGPU_TEST_HOSTILE=/egpu/target/hostile
[ ! -e target/rm-client ] || export EGPU_TEST_RM_CLIENT=/egpu/target/rm-client
set -a; . ./environment; set +a
status=0
mapfile -t filters <filters
for filter in "${filters[@]}"; do
    target/debug/deps/it ${filter:+"$filter"} || status=$?
done
# Nothing may be left of what systemd made for containers.
echo "scopes left: $(systemctl list-units --all --no-legend --plain --type=scope | grep -c egpu)"
echo "the kernel's log, its warnings:"
dmesg --level=emerg,alert,crit,err,warn 2>/dev/null | grep -E 'BUG|WARNING|Oops|panic|hung' | head -n 20
echo "exit status: $status"
