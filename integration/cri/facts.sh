#!/bin/sh
# What a container sees of itself, a line each, for comparison: without what differs from one
# container to the next.
id
hostname
pwd
umask
env | grep -v -E '^(HOSTNAME|PWD|OLDPWD|SHLVL|_)=' | sort
grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:|Sig(Ign|Blk))' /proc/self/status
cat /proc/self/oom_score_adj /proc/self/uid_map /proc/self/gid_map /proc/self/limits
awk '{ shared = ""; for (i = 7; $i != "-"; i++) { sub(":[0-9]+", "", $i); shared = shared " " $i }
       at = i; print "mount", $5, $6, shared, $(at + 1), $(at + 3) ~ /^ro/ ? "ro" : "rw" }' /proc/self/mountinfo | sort
ls -ln /dev | awk 'NR > 1 { print $1, $3, $4, $5, $6 ~ /^[0-9]+$/ ? $6 : "", $NF }' | sort
ls -ldn /sys /dev /dev/shm /dev/pts /tmp / | awk '{ print $1, $3, $4, $NF }'
for file in /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/cpu/cpu.shares /sys/fs/cgroup/cpu/cpu.cfs_quota_us \
    /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_unprivileged_port_start; do
    [ ! -e "$file" ] || echo "$file $(cat "$file")"
done
for path in /proc/kcore /proc/keys /proc/timer_list /proc/sys/kernel/panic /proc/sysrq-trigger /sys/firmware /proc/acpi /proc/scsi; do
    if [ -d "$path" ]; then found=$(ls "$path" | wc -l); else found=$(head -c 16 "$path" 2>/dev/null | wc -c); fi
    echo "$path $found $([ -w "$path" ] && echo writable)"
done
tried() { if "$@" >/dev/null 2>&1; then echo "$*: allowed"; else echo "$*: refused"; fi; }
tried unshare -m true
tried mount -t tmpfs none /tmp
tried mknod /tmp/null c 1 3
tried chown 1:1 /tmp
tried touch /file
tried touch /dev/file
tried mkdir /sys/fs/cgroup/below
rmdir /sys/fs/cgroup/below 2>/dev/null
tried dmesg
tried hostname other
tried nice -n -5 true
tried chroot / true
tried cat /host/file
exit 0
