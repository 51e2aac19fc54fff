#!/bin/bash
# Installs a Debian package, renews it, and takes it away, on a copy-on-write view of this machine.
# A stand-in for `egpu uninstall` refuses first, and then does not.
# usage: packaging/try-deb.sh DEB    Exit status 77: it cannot be tried here, and has said why.
set -euo pipefail
deb=$(realpath "$1")
if [ "${2-}" != inside ]; then
    exec unshare --mount "$0" "$deb" inside
fi
view=$(mktemp --directory)
mount -t tmpfs tmpfs "$view"
mkdir "$view"/{above,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$view/above,workdir=$view/work" "$view/root" 2>/dev/null || {
    echo "skipped: installing the deb: no overlay can be mounted on this machine's root"
    exit 77
}
cp "$deb" "$view/root/egpu.deb"
inside() {
    chroot "$view/root" env DEBIAN_FRONTEND=noninteractive "$@"
}
fail() {
    echo "deb: $*" >&2
    exit 1
}
mount --bind /dev "$view/root/dev"
inside dpkg --install /egpu.deb >"$view/said"
grep --quiet 'egpu install' "$view/said" || fail "does not say how to go on: $(cat "$view/said")"
inside dpkg --install /egpu.deb >"$view/said"
! grep --quiet 'egpu install' "$view/said" || fail "says at its renewal how to begin"
printf '#!/bin/sh\necho "uninstall $*" >>/asked\nexit 5\n' >"$view/root/usr/bin/egpu"
inside mkdir -p /etc/egpu /var/lib/egpu/backup
inside touch /etc/egpu/config.toml /var/log/egpu.log /var/log/egpu.log.1
! inside dpkg --purge egpu >"$view/said" 2>&1 || fail "went although containers use it"
inside test -x /usr/bin/containerd-shim-egpu-v1 -a -e /etc/egpu/config.toml || fail "lost files in a removal that was refused"
sed -i 's/exit 5/exit 0/' "$view/root/usr/bin/egpu"
inside dpkg --remove egpu >"$view/said" 2>&1 || fail "$(cat "$view/said")"
inside test -e /etc/egpu/config.toml -a -e /var/log/egpu.log || fail "a removal took the configuration or the log"
inside dpkg --purge egpu >"$view/said" 2>&1 || fail "$(cat "$view/said")"
[ "$(sort --unique "$view/root/asked")" = "uninstall uninstall" ] || fail "asked: $(cat "$view/root/asked")"
# What differs from this machine besides dpkg's own files, caches, and what this has put there.
left=$(cd "$view/above" && find . -regextype posix-extended \
    -regex '\./(var/lib/dpkg|var/cache|run/egpu)(/.*)?|\./var/log/dpkg\.log|\./egpu\.deb|\./asked' -prune -o -print |
    while read -r path; do [ -d "$path" ] && [ -d "/$path" ] || echo "$path"; done)
[ -z "$left" ] || fail "left or took what was there before: $left"
