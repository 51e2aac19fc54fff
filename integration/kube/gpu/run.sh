#!/bin/sh
# Runs run.py from the unpacked bundle.
# usage: sudo egpu-kube/run.sh RESULT_FOLDER
# Needs root, cgroups, an NVIDIA driver, python3. Changes nothing outside /tmp and its own namespaces.
set -eu
cd "$(dirname "$0")"
if ! command -v openssl >/dev/null; then
    PATH="$PATH:$PWD/openssl"
    export PATH OPENSSL_CONF="$PWD/openssl/openssl.cnf" LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$PWD/openssl"
fi
exec python3 -B -u integration/kube/gpu/run.py bin target "$1"
