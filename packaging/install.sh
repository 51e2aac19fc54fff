#!/bin/bash
# Puts what `stage.sh` laid out in place, each file by rename: containerd may start the shim at any
# moment, and running containers go on with the program that they were started with.
# usage: packaging/install.sh TREE FOLDER    FOLDER is a prefix such as /usr/local
set -euo pipefail
umask 022
tree=$1 to=$2
list=$to/share/doc/egpu/files
mkdir -p "${list%/*}"
(cd "$tree" && find . -type f -printf '%P\n' | sort) >"$list.new"
while read -r file; do
    mkdir -p "$(dirname "$to/$file")"
    cp --preserve=mode "$tree/$file" "$to/$file.new"
    mv --force "$to/$file.new" "$to/$file"
done <"$list.new"
mv "$list.new" "$list"
echo "installed $(wc -l <"$list") files in $to, named in $list"
