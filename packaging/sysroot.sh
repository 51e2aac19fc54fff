#!/bin/bash
# Unpacks another architecture's libseccomp and glibc of this machine's release of Debian into a
# folder, to link with and for the image. Nothing is installed, and dpkg is not told of that
# architecture.
# usage: packaging/sysroot.sh MACHINE FOLDER
set -euo pipefail
machine=$1 folder=$2
case $machine in
x86_64) architecture=amd64 ;;
aarch64) architecture=arm64 ;;
*) echo "no packages are made for $machine" >&2 && exit 1 ;;
esac
[ ! -e "$folder/usr/lib/$machine-linux-gnu/libseccomp.a" ] || exit 0
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists,cache/archives}/partial "$work/unpacked"
apt=(apt-get --quiet --quiet -o "APT::Architecture=$architecture" -o "APT::Architectures=$architecture" -o APT::Sandbox::User=root
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o Acquire::Languages=none)
"${apt[@]}" update
(cd "$work" && "${apt[@]}" download libseccomp-dev libc6) || {
    echo "libseccomp-dev and libc6 for $architecture are not to be had here: LIBSECCOMP_LIB_PATH says where libseccomp.a is" >&2
    exit 1
}
for package in "$work"/*.deb; do
    dpkg --extract "$package" "$work/unpacked"
done
rm -rf "$folder"
mkdir -p "$(dirname "$folder")"
mv "$work/unpacked" "$folder"
