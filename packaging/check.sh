#!/bin/bash
# Makes packages of the programs that are built, and looks at what is in them.
# usage: packaging/check.sh MACHINE RELEASE GENERATED SYSROOT    (as for dist.sh; EGPU_REVISION as when it was built)
set -euo pipefail
cd "$(dirname "$0")/.."
machine=$1 release=$2 generated=$3 sysroot=$4
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
work=$(mktemp --directory)
trap 'rm -rf --one-file-system "$work"' EXIT
cargo_home=${CARGO_HOME:-$HOME/.cargo}

fail() {
    echo "packages: $*" >&2
    exit 1
}

# unpack KIND: its files in work/KIND, and a line "MODE OWNER PATH" for each in work/KIND.list.
unpack() {
    local package=("$work"/one/*"$2") tree=$work/$1 layers
    case $1 in
    deb) dpkg-deb --fsys-tarfile "${package[0]}" >"$tree.tar" ;;
    tar) xz --decompress --stdout "${package[0]}" >"$tree.tar" ;;
    oci)
        mkdir "$work/layout"
        tar --extract --file "${package[0]}" --directory "$work/layout"
        layers=$(cd "$work/layout" && python3 -c 'import json
blob = lambda digest: json.load(open("blobs/" + digest.replace(":", "/")))
print(blob(json.load(open("index.json"))["manifests"][0]["digest"])["layers"][0]["digest"].replace(":", "/"))')
        gzip --decompress --stdout "$work/layout/blobs/$layers" >"$tree.tar"
        ;;
    esac
    mkdir "$tree"
    tar --extract --file "$tree.tar" --directory "$tree"
    tar --list --verbose --numeric-owner --file "$tree.tar" | awk '{ print $1, $2, $6 }' >"$tree.list"
}

# look KIND: owners, modes, programs, licences, and no path of this machine.
look() {
    local tree=$work/$1 odd name
    odd=$(grep --invert-match --extended-regexp \
        '^(drwxr-xr-x|-rw-r--r--) 0/0 |^-rwxr-xr-x 0/0 .*/(egpu(-kubelet-plugin|-scorer|-webhook)?|containerd-shim-egpu-v1|ld-linux[^/]*|lib[^/]*\.so\.[0-9]+)$' "$tree.list" || true)
    [ -z "$odd" ] || fail "$1: modes or owners: $odd"
    for name in egpu containerd-shim-egpu-v1; do
        cmp "$release/$name" "$(find "$tree" -name $name -type f -perm 755)" || fail "$1: $name is not what was built"
    done
    for name in copyright third-party-licenses.txt rust-standard-library.html; do
        [ -n "$(find "$tree" -path "*/egpu/$name" -size +1k)" ] || fail "$1: there is no $name"
    done
    for name in "$PWD" "$cargo_home" "$work"; do
        ! grep --recursive --files-with-matches --text --fixed-strings "$name" "$tree" >&2 || fail "$1: names $name"
    done
}

look_at_deb() {
    local root=$work/deb/usr page name commands=doctor
    [[ $(dpkg-deb --field "$work"/one/*.deb Depends) =~ ^libc6\ \(\>=\ 2\.[0-9]+\)$ ]] || fail "deb: no dependency on libc6"
    dpkg-deb --control "$work"/one/*.deb "$work/control"
    for name in postinst prerm postrm; do sh -n "$work/control/$name"; done
    (cd "$work/deb" && md5sum --check --quiet "$work/control/md5sums")
    # Every command has a page, and the pages are right.
    if [ "$machine" = "$(uname -m)" ]; then commands=$("$release/egpu" help | sed -n 's/^  \([a-z]\+\) .*/\1/p' | grep -v help); fi
    for name in $commands; do
        [ -s "$root/share/man/man1/egpu-$name.1.gz" ] || fail "there is no page for egpu $name"
    done
    if command -v man >/dev/null; then
        for page in "$root"/share/man/man?/*; do
            MANWIDTH=100 man --warnings --local-file "$page" >"$work/page" 2>"$work/warnings"
            [ ! -s "$work/warnings" ] && [ "$(wc -l <"$work/page")" -gt 5 ] || fail "$page: $(cat "$work/warnings")"
        done
    else
        echo "skipped: pages: there is no man here"
    fi
    for name in bash-completion/completions/egpu zsh/vendor-completions/_egpu fish/vendor_completions.d/egpu.fish; do
        grep --quiet doctor "$root/share/$name" || fail "$name completes nothing"
    done
    bash -n "$root/share/bash-completion/completions/egpu"
    grep --quiet '^ExecStart=/usr/bin/egpu ' "$root"/lib/systemd/system/egpu-metrics{,-http}.service
}

# The same files as the deb's, at the same places.
look_at_rpm() {
    local of='[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILEDIGESTS} %{FILENAMES}\n]'
    rpm --query --package --queryformat "$of" "$work"/one/*.rpm | sed -n 's|^-\(.*\) root/root |-\1 |p' | sort >"$work/rpm.list"
    (cd "$work/deb" && find usr -type f -printf '%M %P\n' | while read -r mode file; do
        echo "$mode $(sha256sum <"usr/$file" | cut -d ' ' -f 1) /usr/${file/vendor-completions/site-functions}"
    done) | sort | diff "$work/rpm.list" - || fail "rpm: other files than the deb"
    [[ $(rpm --query --package --requires "$work"/one/*.rpm) == *"libc.so.6(GLIBC_"* ]] || fail "rpm: no dependency on libc"
    [[ $(rpm --query --package --scripts "$work"/one/*.rpm) == *"/usr/bin/egpu uninstall"* ]] || fail "rpm: its removal does not ask"
}

# A containerd takes the image, and its program runs with the libraries in it.
import_image() {
    local image=localhost/egpu:$version daemon said address=$work/containerd.sock how=(--snapshotter native)
    # What is not for this machine is not unpacked.
    [ "$machine" = "$(uname -m)" ] || how=(--all-platforms --no-unpack)
    printf 'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n' >"$work/containerd.toml"
    containerd --config "$work/containerd.toml" --root "$work/containerd" --state "$work/state" --address "$address" >"$work/containerd.log" 2>&1 &
    daemon=$!
    trap 'umount "$work/mounted" 2>/dev/null || true; kill '$daemon' && wait '$daemon' || true; rm -rf --one-file-system "$work"' EXIT
    ctr() { command ctr --address "$address" "$@"; }
    for _ in {1..100}; do ! ctr version >/dev/null 2>&1 || break; sleep 0.1; done
    ctr images import "${how[@]}" "$work"/one/*.oci.tar >/dev/null
    [[ $(ctr images list "name==$image") == *"$image "*" linux/"* ]] || fail "oci: containerd has no $image"
    grep --quiet --recursive '"Entrypoint": \["/opt/egpu/egpu", "install", "--host-root", "/host"\]' "$work/layout/blobs" || fail "oci: entrypoint"
    grep --quiet --recursive "\"org.opencontainers.image.revision\": \"${EGPU_REVISION:-}\"" "$work/layout/blobs" || fail "oci: revision"
    if [ "$machine" = "$(uname -m)" ]; then
        mkdir "$work/mounted"
        ctr images mount --snapshotter native "$image" "$work/mounted" >/dev/null
        said=$(chroot "$work/mounted" /opt/egpu/egpu --version)
        ctr images unmount --snapshotter native "$work/mounted" >/dev/null
        [[ $said == "egpu $version"* ]] || fail "oci: says $said"
    fi
}

kinds=(tar oci)
for kind in deb:dpkg-deb rpm:rpmbuild; do
    if command -v "${kind#*:}" >/dev/null; then kinds+=("${kind%:*}"); else echo "skipped: ${kind%:*}: there is no ${kind#*:} here"; fi
done
for run in one two; do
    packaging/dist.sh "$machine" "$release" "$generated" "$sysroot" "$work/$run" "${kinds[@]}" >/dev/null
done
diff "$work"/{one,two}/SHA256SUMS || fail "two runs do not give the same bytes"
(cd "$work/one" && sha256sum --check --quiet SHA256SUMS)
for kind in deb:.deb tar:.tar.xz oci:.oci.tar; do
    if [[ " ${kinds[*]} " == *" ${kind%:*} "* ]]; then unpack "${kind%:*}" "${kind#*:}" && look "${kind%:*}"; fi
done
if [ -d "$work/deb" ]; then look_at_deb; fi
if [ -d "$work/deb" ] && [ "$machine" = "$(uname -m)" ]; then packaging/try-deb.sh "$work"/one/*.deb || [ $? = 77 ]; fi
if [ -d "$work/deb" ] && [[ " ${kinds[*]} " == *" rpm "* ]]; then look_at_rpm; fi
import_image
echo "packages: ${kinds[*]} are as they should be, and the same twice"
