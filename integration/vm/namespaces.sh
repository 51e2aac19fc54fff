#!/bin/bash
# run.sh without a virtual machine: systemd is process 1 of namespaces of this machine, on its kernel and at its speed. It finds
# the controllers that this machine's cgroup v2 has: all of them, or none where they are bound to v1.
# usage, from run.sh: namespaces.sh DISK PAYLOAD RESULTS FOLDER
set -euo pipefail
disk=$1 payload=$2 results=$3 folder=$4

if [ "${EGPU_VM_INSIDE:-}" != yes ]; then
    hierarchy=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
    [ -n "$hierarchy" ] || { echo "no cgroup v2 is mounted here" >&2; exit 1; }
    own=$hierarchy/egpu-vm-$$
    mkdir "$own"
    # Whatever is left in the end is a defect, and shown.
    trap 'find "$own" -depth -type d -exec rmdir {} +' EXIT
    EGPU_VM_INSIDE=yes sh -c 'echo $$ >"$0/cgroup.procs" && exec unshare --mount --pid --cgroup --uts --ipc --fork --kill-child "$@"' \
        "$own" "$0" "$@" || true
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
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
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
