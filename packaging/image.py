#!/usr/bin/env python3
"""Makes an OCI image archive that installs egpu onto the node whose root is mounted at /host.

usage: packaging/image.py RELEASE DOCUMENTS SYSROOT MACHINE VERSION ARCHIVE

Its root has the programs of RELEASE (those for clusters, where they were built), glibc's loader and libraries that they need from SYSROOT
(empty: this machine), and the folder DOCUMENTS with the licences. SOURCE_DATE_EPOCH is the time of
everything in it; EGPU_REVISION becomes a label.
"""

import datetime
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

# No folder of a PATH: from there, `egpu install` copies itself onto the node.
HOME = "opt/egpu"
PROGRAMS = ("containerd-shim-egpu-v1", "egpu")
FOR_CLUSTERS = ("egpu-kubelet-plugin", "egpu-webhook", "egpu-scorer")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
OCI = "application/vnd.oci.image"


def archive(files: dict[str, tuple[bytes, int]], folders: list[str], epoch: int) -> bytes:
    """A tar archive that depends on nothing but its arguments: root's files, sorted by name."""
    parents = {str(parent) for name in [*files, *(f"{folder}/x" for folder in folders)] for parent in Path(name).parents}
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted({*parents, *files} - {"."}):
            entry = tarfile.TarInfo(name)
            entry.mtime = epoch
            if name in files:
                data, entry.mode = files[name]
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
            else:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
    return made.getvalue()


def readelf(option: str, path: Path, pattern: str) -> list[str]:
    """Returns what matches in readelf's answer."""
    answer = subprocess.check_output(["readelf", "--wide", option, path], text=True, env={**os.environ, "LC_ALL": "C"})
    return re.findall(pattern, answer)


def find(sysroot: Path, places: list[str]) -> str:
    """Returns the first of these paths below the sysroot that is a file."""
    for place in places:
        if (sysroot / place).is_file():
            return place
    raise SystemExit(f"image: none of {', '.join(places)} is in {sysroot}")


def root(release: Path, documents: Path, sysroot: Path, machine: str) -> dict[str, tuple[bytes, int]]:
    """The files of the image's root."""
    programs = [*PROGRAMS, *(name for name in FOR_CLUSTERS if (release / name).is_file())]
    files = {f"{HOME}/{name}": ((release / name).read_bytes(), 0o755) for name in programs}
    for path in sorted(documents.iterdir()):
        files[f"usr/share/doc/egpu/{path.name}"] = (path.read_bytes(), 0o644)
    folders = [f"lib/{machine}-linux-gnu", "lib64"]
    needed = []
    for program in programs:
        # The kernel looks for the loader at this path; it may lie below /usr in the sysroot.
        loader = readelf("--program-headers", release / program, r"program interpreter: /(\S+)\]")[0]
        files[loader] = ((sysroot / find(sysroot, [loader, f"usr/{loader}"])).read_bytes(), 0o755)
        needed.extend(readelf("--dynamic", release / program, r"\(NEEDED\).*\[(.*)\]"))
    done = {Path(name).name for name in files}
    while needed:
        name = needed.pop()
        if name not in done:
            done.add(name)
            place = find(sysroot, [f"{below}{folder}/{name}" for folder in folders for below in ("", "usr/")])
            files[place.removeprefix("usr/")] = ((sysroot / place).read_bytes(), 0o755)
            needed.extend(readelf("--dynamic", sysroot / place, r"\(NEEDED\).*\[(.*)\]"))
    licence = "usr/share/doc/libc6/copyright"
    files[licence] = ((sysroot / licence).read_bytes(), 0o644)
    return files


def layout(layer: bytes, architecture: str, version: str, revision: str, epoch: int,
           compression: int = 9) -> dict[str, tuple[bytes, int]]:
    """The files of an OCI image layout with one image of one layer."""
    blobs = {}

    def blob(kind: str, data: bytes) -> dict:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = (data, 0o644)
        return {"mediaType": f"{OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    created = datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {f"org.opencontainers.image.{key}": value for key, value in {
        "title": "egpu", "version": version, "revision": revision, "created": created,
        "licenses": "Apache-2.0 AND LGPL-2.1-or-later"}.items()}
    config = {
        "created": created, "architecture": architecture, "os": "linux",
        "config": {
            "Entrypoint": [f"/{HOME}/egpu", "install", "--host-root", "/host"],
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Labels": labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": created, "created_by": "packaging/image.py"}],
    }
    manifest = {
        "schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json",
        "config": blob("config.v1+json", json.dumps(config, sort_keys=True).encode()),
        "layers": [blob("layer.v1.tar+gzip", gzip.compress(layer, compression, mtime=0))],
        "annotations": labels,
    }
    listed = blob("manifest.v1+json", json.dumps(manifest, sort_keys=True).encode())
    listed["platform"] = {"architecture": architecture, "os": "linux"}
    # containerd takes the first for the image's name, others the second.
    listed["annotations"] = {"io.containerd.image.name": f"localhost/egpu:{version}", "org.opencontainers.image.ref.name": version}
    index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [listed]}
    return {**blobs, "index.json": (json.dumps(index, sort_keys=True).encode(), 0o644),
            "oci-layout": (b'{"imageLayoutVersion":"1.0.0"}', 0o644)}


def main() -> None:
    release, documents, sysroot, machine, version, out = sys.argv[1:]
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    files = root(Path(release), Path(documents), Path(sysroot or "/"), machine)
    layer = archive(files, ["host"], epoch)
    image = layout(layer, ARCHITECTURES[machine], version, os.environ.get("EGPU_REVISION", ""), epoch)
    Path(out).write_bytes(archive(image, [], epoch))


if __name__ == "__main__":
    main()
