#!/bin/bash
# run.sh without a virtual machine: systemd is process 1 of namespaces of this machine, on its
# kernel and at its speed. On v2 it finds the controllers that this machine's cgroup v2 has: all of
# them, or none where they are bound to v1. On v1 it finds the hierarchies that this machine has
# below /sys/fs/cgroup, a hybrid host's v2 among them.
# usage, from run.sh: namespaces.sh DISK PAYLOAD RESULTS FOLDER v1|v2
set -euo pipefail
disk=$1 payload=$2 results=$3 folder=$4 cgroup=$5

# Point and options of each hierarchy that the guest gets.
hierarchies() {
    case $cgroup in
    v1) awk '$2 ~ "^/sys/fs/cgroup/" && $3 ~ "^cgroup2?$" { print $2, $3, $4 }' /proc/mounts ;;
    v2) awk '$3 == "cgroup2" { print $2, $3, $4; exit }' /proc/mounts ;;
    esac
}

if [ "${EGPU_VM_INSIDE:-}" != yes ]; then
    hierarchies >"$folder/hierarchies"
    [ -s "$folder/hierarchies" ] || { echo "no cgroup $cgroup is mounted here" >&2; exit 1; }
    name=egpu-vm-$$
    mapfile -t own < <(awk -v name="$name" '{ print $1 "/" name }' "$folder/hierarchies")
    # Whatever is left in the end is a defect, and shown.
    trap 'find "${own[@]}" -depth -type d -exec rmdir {} +' EXIT
    mkdir "${own[@]}"
    for place in "${own[@]}"; do
        # Nobody may be in a cpuset that has nothing yet.
        [ ! -e "$place/cpuset.mems" ] || for file in cpuset.cpus cpuset.mems; do cat "${place%/*}/$file" >"$place/$file"; done
    done
    EGPU_VM_INSIDE=yes bash -c 'count=$1; shift; for place in "${@:1:count}"; do echo $$ >"$place/cgroup.procs"; done; shift "$count"
        exec unshare --mount --pid --cgroup --uts --ipc --fork --kill-child "$@"' "$0" "${#own[@]}" "${own[@]}" "$0" "$@" || true
    exit
fi

mount --make-rprivate /
root=$folder/root
mkdir "$folder"/{disk,upper,work,root,tmp}
mount -o loop,ro "$disk" "$folder/disk"
mount -t overlay -o "lowerdir=$folder/disk,upperdir=$folder/upper,workdir=$folder/work" overlay "$root"
# What would reach beyond the namespaces.
for unit in systemd-{udevd,sysctl,udev-trigger,modules-load,remount-fs}.service systemd-udevd-{control,kernel}.socket; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
if [ "$cgroup" = v2 ]; then
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
else
    mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
    while read -r point kind options; do
        mkdir "$root$point"
        # What is beside the names of controllers is the mount's own.
        options=$(tr , '\n' <<<"$options" | grep -vxE 'rw|ro|relatime|nosuid|nodev|noexec|xattr|nsdelegate|memory_recursiveprot|clone_children|release_agent=.*' | paste -sd, || true)
        case $options in name=*) options=none,$options ;; esac
        mount -t "$kind" ${options:+-o "$options"} "$kind" "$root$point"
    done <"$folder/hierarchies"
fi
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
# Containers' layers are overlays, which lie on no other.
mount --bind "$folder/tmp" "$root/tmp"
for node in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0" "ptmx 5 2" "fuse 10 229" "kmsg 1 11"; do
    read -r name major minor <<<"$node"
    mknod -m 666 "$root/dev/$name" c "$major" "$minor"
done
mkdir "$root"/dev/{pts,shm,virtio-ports}
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
# As the guest finds them.
touch "$root/dev/vdb" "$root/dev/virtio-ports/results"
mount --bind "$payload" "$root/dev/vdb"
mount --bind "$results" "$root/dev/virtio-ports/results"
mkdir "$root/host"
cd "$root"
pivot_root . host
umount -l /host
exec env -i container=egpu /lib/systemd/systemd
