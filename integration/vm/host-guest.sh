#!/bin/bash
# Within the guest of host.sh, as its /egpu/guest.sh: does what a new user does, and prints it as
# it goes to the port named "results". What it checks is said with "ok" or "FAILED".
exec >>/dev/virtio-ports/results 2>&1
cd /egpu || exit 1
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
# Without the progress that a terminal shows.
echo 'quiet "1"; DPkg::Use-Pty "0";' >/tmp/apt.conf
export APT_CONFIG=/tmp/apt.conf
modprobe -a fuse overlay 2>/dev/null
status=0

# typed COMMAND: shows it as it is typed, runs it, and says how long it took.
typed() {
    local start=$EPOCHREALTIME code=0
    echo "# $1"
    # Programs come and go.
    hash -r
    eval "$1" || code=$?
    [ $code = 0 ] || echo "(exit status $code)"
    elapsed=$(awk -v from="$start" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }')
    echo "($elapsed s)"
    total=$(awk -v sum="$total" -v more="$elapsed" 'BEGIN { print sum + more }')
    return $code
}
# check WHAT COMMAND...
check() {
    local what=$1 said
    shift
    if said=$("$@" 2>&1); then echo "ok: $what"; else echo "FAILED: $what: $said" && status=1; fi
}
part() {
    printf '\n== %s\n' "$*"
    total=0
}
# fails COMMAND...: it does.
fails() { ! "$@"; }

# Path, mode, owner, content of all that is on the host's disk; not what changes by itself: containerd's store, what dpkg and apt
# remember, caches, the journal.
listing() {
    local aside=(/egpu /tmp /run /var/tmp /var/cache /var/lib/dpkg /var/lib/apt /var/lib/containerd /var/lib/systemd
        /var/log/apt /var/log/dpkg.log /var/log/journal) place without=()
    for place in "${aside[@]}"; do without+=(-path "$place" -prune -o); done
    find / -xdev "${without[@]}" -not -type f -printf '%p %M %u:%g %l\n'
    find / -xdev "${without[@]}" -type f -printf '%p %M %u:%g\n'
    find / -xdev "${without[@]}" -type f -print0 | xargs --null sha256sum
}
remember() {
    listing | sort >/tmp/listing
    containerd config dump | sort >/tmp/dump
    echo "the host has $(grep -c . /tmp/listing) lines in a listing of paths, modes, owners and checksums"
}
nothing_is_left() {
    listing | sort | diff /tmp/listing - | tee /tmp/left
    check "the listing is that from before" test ! -s /tmp/left
    check "containerd's configuration is that from before" diff /tmp/dump <(containerd config dump | sort)
    check "containerd starts with it" systemctl restart containerd
    check "containerd runs" systemctl is-active containerd
    check "the runtime is gone" fails cri_has_egpu
    check "no process of it runs" fails grep --files-with-matches --text '[c]ontainerd-shim-egpu' /proc/[0-9]*/cmdline
    check "nothing of it is mounted" fails grep --word-regexp /run/egpu /proc/mounts
}
cri_has_egpu() { containerd config dump | grep -F 'containerd.runtimes.egpu]'; }
# grant NAME: what `egpu ps` says it has.
grant() { egpu ps --output json | tr -d ' \n' | grep -F "\"$1\"" | grep -F 1073741824; }

container="ctr run --rm --runtime io.containerd.egpu.v1 --env PATH=/bin --env EGPU_MEMORY=1GiB --env EGPU_COMPUTE=25% --rootfs /egpu/rootfs"
# start NAME: a container that stays.
start() {
    typed "${container/--rm/--detach} $1 sleep 3600"
    check "$1 has 1 GiB" grant "$1"
}
# stop NAME
stop() {
    check "$1 is killed" ctr task kill --signal 9 "$1"
    for _ in {1..100}; do ! ctr task list | grep -q "^$1 .*RUNNING" || sleep 0.1; done
    ctr task delete "$1" >/dev/null 2>&1
    check "$1 is deleted" ctr container delete "$1"
}
# ready: what follows `egpu install`.
is_ready() {
    check "containerd runs" systemctl is-active containerd
    check "CRI knows the handler egpu" cri_has_egpu
    check "containerd has CRI in order" cri_is_ok
}
cri_is_ok() { ctr plugins list | grep 'io.containerd.grpc.v1 *cri .* ok'; }
from_the_package() {
    part "from the Debian package"
    remember
    typed "apt-get install --yes ./egpu_*.deb"
    typed "egpu install --restart --config /usr/share/doc/egpu/examples/node/simulated.toml"
    check "egpu install succeeded" test $? = 0
    typed "$container first rm-client memory" >/tmp/said 2>&1
    local code=$?
    cat /tmp/said
    check "the container succeeded" test $code = 0
    check "the container has 1 GiB" grep -qw "total 1073741824" /tmp/said
    echo "three commands, $total s"
    is_ready
    typed "egpu install --dry-run"

    part "away again"
    start training
    typed "apt-get purge --yes egpu" >/tmp/said 2>&1
    code=$?
    cat /tmp/said
    check "refused while a container uses egpu, naming it" test $code != 0 -a "$(grep -c default/training /tmp/said)" -gt 0
    check "the package is still there" dpkg --verify egpu
    check "the container goes on" ctr task exec --exec-id look training rm-client memory
    is_ready
    stop training
    typed "apt-get purge --yes egpu"
    check "purged" test $? = 0
    check "its state is gone" test ! -e /run/egpu
    nothing_is_left
}

from_the_tarball() {
    part "from the tarball"
    remember
    typed "tar -C /tmp -xf egpu-*.tar.xz && cd /tmp/egpu-*-linux-gnu"
    typed "./egpu install --restart --config share/doc/egpu/examples/node/simulated.toml"
    check "egpu install succeeded" test $? = 0
    cd /egpu
    is_ready
    start training
    typed "egpu uninstall --restart"
    check "refused" test $? = 5
    stop training
    typed "egpu uninstall --restart"
    check "uninstalled" test $? = 0
    # Which it says that it keeps.
    typed "rm /var/log/egpu.log"
    nothing_is_left
}

# in_image ARGUMENT...: egpu in its own image, as a DaemonSet starts it. Detached: ctr itself does not outlive a restart of containerd.
in_image() {
    local image name=egpu-node said code
    image=$(ctr images list --quiet | grep egpu)
    rm -f /tmp/node.log
    typed "ctr run --detach --privileged --with-ns pid:/proc/1/ns/pid --net-host --log-uri file:///tmp/node.log \
--mount type=bind,src=/,dst=/host,options=rbind:rw $image $name /opt/egpu/egpu $*"
    for _ in {1..600}; do ! ctr task list | grep -q "^$name .*RUNNING" || sleep 0.1; done
    said=$(ctr task delete $name 2>&1)
    code=$(sed -n 's/.*non-zero exit code \([0-9]*\).*/\1/p' <<<"$said")
    ctr container delete $name
    cat /tmp/node.log
    return "${code:-0}"
}
from_the_image() {
    part "from the OCI image"
    typed "ctr images import egpu-*.oci.tar"
    remember
    local before after
    before=$(systemctl show --property MainPID containerd)
    in_image install --host-root /host --restart --config /host/egpu/simulated.toml
    check "egpu install succeeded" test $? = 0
    after=$(systemctl show --property MainPID containerd)
    check "containerd was restarted" test "$before" != "$after"
    is_ready
    start training
    in_image uninstall --host-root /host --restart
    check "refused" test $? = 5
    stop training
    in_image uninstall --host-root /host --restart
    check "uninstalled" test $? = 0
    typed "rm /var/log/egpu.log"
    nothing_is_left
}

renewed() {
    part "renewed under a running container, and back"
    remember
    typed "apt-get install --yes ./egpu_*.deb && egpu install --restart --config /usr/share/doc/egpu/examples/node/simulated.toml"
    start old
    typed "apt-get install --yes ./newer/egpu_*.deb"
    check "renewed" test $? = 0
    start new
    typed "egpu ps"
    check "containerd restarts" systemctl restart containerd
    for name in old new; do
        check "$name goes on" ctr task exec --exec-id look $name rm-client memory
        check "$name has its grant" grant $name
    done
    stop old
    typed "apt-get install --yes --allow-downgrades ./egpu_*.deb"
    check "back at the older one" test $? = 0
    check "new goes on" ctr task exec --exec-id again new rm-client memory
    check "containerd restarts" systemctl restart containerd
    stop new
    start old-again
    typed "egpu ps"
    stop old-again
    typed "apt-get purge --yes egpu"
    check "purged" test $? = 0
    check "its state is gone" test ! -e /run/egpu
    nothing_is_left
}

. /etc/os-release
echo "host: $PRETTY_NAME, kernel $(uname -r), $(systemctl --version | head -n 1)"
echo "containerd: $(containerd --version | cut -d' ' -f3), $(runc --version | head -n 1)"
# The suite's containerds are others, so the image has its own switched off. Layers are overlays, which lie on no other.
mkdir -p /tmp/containerd /var/lib/containerd
mount --bind /tmp/containerd /var/lib/containerd
rm -f /etc/systemd/system/containerd.service
systemctl daemon-reload
check "containerd starts as a unit" systemctl start containerd
from_the_package
from_the_tarball
from_the_image
renewed
echo "exit status: $status"
