#!/bin/bash
# Makes the packages of the programs that are built. The same commit gives the same bytes.
# usage: packaging/dist.sh MACHINE RELEASE GENERATED SYSROOT OUT [deb|rpm|tar|oci]...
#   MACHINE    x86_64 or aarch64
#   RELEASE    the folder of the two programs
#   GENERATED  the folder with `manual` and `licences`
#   SYSROOT    where that machine's glibc is, for the image; empty: here
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
machine=$1 release=$2 generated=$3 sysroot=$4 out=$5
shift 5
[ $# -gt 0 ] || set -- deb rpm tar oci

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
# The time of every file: that of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
case $machine in
x86_64) architecture=amd64 ;;
aarch64) architecture=arm64 ;;
esac
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
out=$(realpath "$out")

# stage TREE PREFIX
stage() {
    packaging/stage.sh "$release" "$generated" "$1" "$2"
}
# dated TREE: gives all in it the commit's time.
dated() {
    find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

make_deb() {
    local tree=$work/deb glibc size
    stage "$tree" /usr
    # Debian's zsh has this folder in its path, and not the other.
    mv "$tree/usr/share/zsh/site-functions" "$tree/usr/share/zsh/vendor-completions"
    glibc=$(readelf --version-info --wide "$tree"/usr/bin/* | grep --only-matching 'GLIBC_[0-9.]*' | sort --unique --version-sort | tail -n 1)
    size=$(find "$tree" -type f -printf '%s\n' | awk '{ kib += int(($1 + 1023) / 1024) } END { print kib }')
    mkdir "$tree/DEBIAN"
    install --mode=755 packaging/debian/{postinst,prerm,postrm} "$tree/DEBIAN"
    sed "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@GLIBC@/${glibc#GLIBC_}/; s/@SIZE@/$size/" \
        packaging/debian/control >"$tree/DEBIAN/control"
    (cd "$tree" && find usr -type f -print0 | sort --zero-terminated | xargs --null md5sum) >"$tree/DEBIAN/md5sums"
    dated "$tree"
    dpkg-deb --root-owner-group -Zxz --build "$tree" "$out/egpu_${version}_$architecture.deb" >/dev/null
}

make_rpm() {
    local tree=$work/rpm/tree
    stage "$tree" /usr
    dated "$tree"
    # With the folders that no package is sure to have made before.
    (cd "$tree" && find . -type f -printf '/%P\n' -o -type d -regex '\./usr/share/\(doc/egpu\|bash-completion\|fish\|zsh\).*' -printf '%%dir /%P\n') |
        sort >"$work/rpm/list"
    # What is not said here depends on the machine: its name, its time, its macros.
    rpmbuild -bb --quiet --target "$machine-linux" \
        --define "_topdir $work/rpm" --define "_rpmdir $out" --define '_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' \
        --define "version $version" --define "tree $tree" --define "list $work/rpm/list" \
        --define '_buildhost localhost' --define 'use_source_date_epoch_as_buildtime 1' --define 'clamp_mtime_to_source_date_epoch 1' \
        --define '_binary_payload w6.xzdio' --define 'debug_package %{nil}' --define '_build_id_links none' \
        --define '__os_install_post %{nil}' packaging/egpu.spec
}

make_tar() {
    local name=egpu-$version-$machine-linux-gnu tree
    tree=$work/tar/$name
    stage "$work/tar/root" /usr/local
    mv "$work/tar/root/usr/local" "$tree"
    # `./egpu install` copies the programs; man pages and the rest can be copied to /usr/local.
    mv "$tree"/bin/* "$tree"
    rmdir "$tree/bin"
    cp README.md LICENSE "$tree"
    dated "$tree"
    tar --create --sort=name --owner=0 --group=0 --numeric-owner --format=gnu --directory "$work/tar" "$name" |
        xz -6 --threads=1 >"$out/$name.tar.xz"
}

make_oci() {
    packaging/image.py "$release" "$generated/licences" "$sysroot" "$machine" "$version" "$out/egpu-$version-$machine.oci.tar"
}

rm -f "$out"/egpu[-_]*{"$machine","_$architecture"}[-.]*
for kind in "$@"; do
    "make_$kind"
done
(cd "$out" && sha256sum egpu[-_]* >SHA256SUMS)
