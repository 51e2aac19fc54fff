#!/bin/bash
# Installs what a target needs and the machine lacks, from the machine's own Debian or Ubuntu
# archive.
# usage: scripts/setup.sh build|tests|containerd|browser|kubernetes|dist
#   build       a C compiler and linker, libseccomp to link in
#   tests       what the tests are built with besides: protoc, from which their client of containerd is generated, a C++ compiler for the
#               fuzz targets, Python, in which the measurements on a card are written, and strace, which kills at a step
#   containerd  containerd, runc to compare with, a static busybox for root file systems, what unpacks packages
#   browser     chromium, which looks at the node's page
#   kubernetes  openssl, which makes a test cluster's certificates, and libseccomp's headers, which runc is built with
#   dist        what packages are made with
# Whatever is there already is left alone: a containerd from Docker's packages, say, serves as well.
set -euo pipefail

packages=()
# want PACKAGE TEST...: asks for the package unless the test succeeds.
want() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || packages+=("$package")
}

is_static() {
    # A static program names no interpreter. (readelf is there: building needs it.)
    local headers
    headers=$(readelf --program-headers --wide "$(command -v busybox)") && [[ $headers != *INTERP* ]]
}

case ${1-} in
build)
    command -v "${CARGO:-cargo}" >/dev/null || {
        echo "Rust is missing: see https://rustup.rs" >&2
        exit 1
    }
    want gcc command -v cc
    want libc6-dev test -e /usr/include/stdlib.h
    want binutils command -v readelf
    machine=${CARGO_BUILD_TARGET:-$(uname -m)}
    machine=${machine%%-*}
    case $machine in x86_64) debian=amd64 ;; aarch64) debian=arm64 ;; *) debian=$machine ;; esac
    library=${LIBSECCOMP_LIB_PATH:-/usr/lib/$machine-linux-gnu}/libseccomp.a
    if [ "$machine" = "$(uname -m)" ]; then
        want libseccomp-dev test -e "$library" -a -e /usr/include/seccomp.h
    else
        want "gcc-${machine/_/-}-linux-gnu" command -v "$machine-linux-gnu-gcc"
        want "libc6-dev-$debian-cross" test -e "/usr/$machine-linux-gnu/include/stdlib.h"
        [ -e "$library" ] || {
            echo "missing: $library, of Debian's libseccomp-dev for $machine; LIBSECCOMP_LIB_PATH is where it is" >&2
            exit 1
        }
        [ -d "$(rustc --print sysroot)/lib/rustlib/$machine-unknown-linux-gnu" ] || rustup target add "$machine-unknown-linux-gnu" || {
            echo "missing: Rust's standard library for $machine: 'rustup target add $machine-unknown-linux-gnu', where rustup reaches its server" >&2
            exit 1
        }
    fi
    ;;
tests)
    want protobuf-compiler command -v "${PROTOC:-protoc}"
    want g++ command -v c++
    want python3 command -v python3
    want strace command -v strace
    ;;
containerd)
    want containerd command -v containerd
    want runc command -v runc
    want busybox-static is_static
    want xz-utils command -v xz
    ;;
browser)
    want chromium command -v chromium
    ;;
kubernetes)
    want openssl command -v openssl
    want libseccomp-dev test -e /usr/include/seccomp.h
    ;;
dist)
    want dpkg command -v dpkg-deb
    want rpm command -v rpmbuild
    want xz-utils command -v xz
    want python3 command -v python3
    want strace command -v strace
    ;;
*)
    echo "usage: $0 build|tests|containerd|browser|kubernetes|dist" >&2
    exit 2
    ;;
esac

if [ ${#packages[@]} -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing: ${packages[*]}; install them (as root, 'apt-get install ${packages[*]}'), then try again" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# The lists of a fresh machine may be empty or old.
apt-get update --quiet --quiet || echo "apt-get update failed; trying with the lists there are" >&2
apt-get install --yes --quiet --quiet --no-install-recommends "${packages[@]}"
