# Prints all that a container can see of how it was made. The arguments are paths that matter to it.
own=/proc/$$
say() { echo "== $1"; }
say mount; cat $own/mountinfo
say status; cat $own/status
say limit; cat $own/limits
say environ; tr '\0' '\n' < $own/environ
say cgroup; cat $own/cgroup
say namespace
for name in cgroup ipc mnt net pid pid_for_children time time_for_children user uts; do
    echo "$name $(readlink $own/ns/$name)"
done
say process
for name in cwd root exe; do echo "$name $(readlink $own/$name)"; done
for name in oom_score_adj setgroups coredump_filter loginuid timerslack_ns attr/current; do
    echo "$name $(cat $own/$name 2>&1)"
done
echo "maps $(cat $own/uid_map $own/gid_map | tr -s ' \n' ' ')"
echo "offsets $(cat $own/timens_offsets | tr -s ' \n' ' ')"
echo "descriptors $(ls /proc/self/fd | tr '\n' ' ')"
echo "ionice $(ionice -p $$ 2>&1)"
echo "schedule $(cut -d ')' -f 2 $own/stat | cut -d ' ' -f 6,17,18,39,40)"
echo "name $(uname -nm)"
echo "domain $(cat /proc/sys/kernel/domainname)"
say sysctl
cd /proc/sys
for name in kernel/msgmax kernel/sem kernel/shm_rmid_forced fs/mqueue/msg_max net/ipv4/ip_unprivileged_port_start \
    net/ipv4/ping_group_range net/ipv4/ip_local_port_range net/ipv4/conf/lo/forwarding; do
    echo "$name $(cat $name 2>&1)"
done
cd /
# But for those of other containers, which come and go.
say interface; ls /sys/class/net | grep -v veth | tr '\n' ' '; cut -d : -f 1 /proc/net/dev | grep -v veth | tr -d '\n'; echo
say path
for path in / /dev /dev/* /dev/pts/* /dev/deep/er/* "$@"; do
    [ -L $path ] && kind="-> $(readlink $path)" || kind=$(stat -c '%A %u:%g %t:%T' $path 2>&1)
    opens=; [ -c $path ] && opens="$( (: < $path) 2>&1 && echo ' read'; (: > $path) 2>&1 && echo ' write' )"
    echo $path $kind $opens
done
for path in /sys/fs/cgroup/*; do [ ! -L $path ] || echo "$path -> $(readlink $path)"; done
say call
mkdir /dev/shm/made 2>&1 && echo made
