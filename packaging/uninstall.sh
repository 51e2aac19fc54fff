#!/bin/bash
# Takes away what `install.sh` put in place.
# usage: packaging/uninstall.sh FOLDER    FOLDER is a prefix such as /usr/local
set -euo pipefail
list=$1/share/doc/egpu/files
[ -e "$list" ] || {
    echo "$list is missing: nothing was installed in $1 by 'make install'" >&2
    exit 1
}
while read -r file; do
    rm -f "$1/$file"
done <"$list"
rm "$list"
find "$1/share/doc/egpu" -depth -type d -empty -delete
echo "removed what was installed in $1"
