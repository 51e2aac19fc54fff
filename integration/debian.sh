# Packages of other releases of Debian than the machine's own, unpacked and not installed. To be sourced.

# usage: unpack WORK SUITE PACKAGE...    into WORK/unpacked
unpack() {
    work=$1 suite=$2
    shift 2
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
}
