# Packages of other releases of Debian than the machine's own, unpacked and not installed. To be
# sourced.

# usage: provide FOLDER PROGRAM SUITE PACKAGE...    FOLDER holds the packages' files, unless it has the program already
provide() {
    folder=$1 program=$2 suite=$3
    shift 3
    [ ! -x "$folder/$program" ] || return 0
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -e "$keyring" ] || apt-get install --yes --no-install-recommends debian-archive-keyring
    # Where this machine gets Debian from, if it is Debian; its mirrors carry every release.
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m1 '/debian/*$' || true)
    mirror=${EGPU_DEBIAN_MIRROR:-${mirror:-http://deb.debian.org/debian}}
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/unpacked"
    echo "deb [signed-by=$keyring] $mirror $suite main" >"$work/sources.list"
    apt="apt-get -qq -o Dir::State::Lists=$work/lists -o Dir::Cache=$work/cache -o APT::Sandbox::User=root
        -o Dir::Etc::SourceList=$work/sources.list -o Dir::Etc::SourceParts=/dev/null
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::Languages=none"
    $apt update
    (cd "$work" && $apt download "$@")
    for package in "$work"/*.deb; do
        dpkg -x "$package" "$work/unpacked"
    done
    "$work/unpacked/$program" --version
    rm -rf "${folder:?}"
    mkdir -p "$(dirname "$folder")"
    mv "$work/unpacked" "$folder"
    rm -rf "$work"
    trap - EXIT
}
