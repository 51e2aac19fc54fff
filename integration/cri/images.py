#!/usr/bin/env python3
"""Writes an archive with the images that critest and the pods here name.

They are made of busybox, tools.c, facts.sh and further programs, or folders of what is in the root: no registry is asked.

usage: images.py DIRECTORY BUSYBOX TOOLS ARCHIVE [PROGRAM...]
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys

work, busybox, tools, archive, *programs = sys.argv[1:]
here = os.path.dirname(os.path.abspath(__file__))
root, layout = os.path.join(work, "root"), os.path.join(work, "layout")
blobs = os.path.join(layout, "blobs/sha256")
for directory in "bin sbin usr/bin usr/sbin etc proc sys dev tmp run var/run root home".split():
    os.makedirs(os.path.join(root, directory))
os.makedirs(blobs)


def program(source, name, mode=0o755):
    path = os.path.join(root, name)
    if os.path.lexists(path):
        os.unlink(path)
    shutil.copy(source, path)
    os.chmod(path, mode)


program(busybox, "bin/busybox")
for applet in subprocess.check_output([busybox, "--list"], text=True).split():
    if applet != "busybox":
        os.symlink("busybox", os.path.join(root, "bin", applet))
program(tools, "usr/sbin/nginx")
program(tools, "bin/ipcs")
program(tools, "bin/pgrep")
program(tools, "nnp", 0o4755)
program(os.path.join(here, "facts.sh"), "bin/facts")
for path in programs:
    if os.path.isdir(path):
        shutil.copytree(path, root, dirs_exist_ok=True)
    else:
        program(path, os.path.join("bin", os.path.basename(path)))
users = [("root", 0), ("www-data", 33), ("default-user", 1000), ("nobody", 65534)]
with open(os.path.join(root, "etc/passwd"), "w") as file:
    file.writelines(f"{name}:x:{id}:{id}::/:/bin/sh\n" for name, id in users)
with open(os.path.join(root, "etc/group"), "w") as file:
    file.writelines(f"{name}:x:{id}:\n" for name, id in users)
    file.write("group-defined-in-image:x:50000:default-user\n")
os.chmod(os.path.join(root, "tmp"), 0o1777)


def blob(kind, data):
    digest = hashlib.sha256(data).hexdigest()
    with open(os.path.join(blobs, digest), "wb") as file:
        file.write(data)
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}


def as_json(value):
    return json.dumps(value).encode()


layer_path = os.path.join(work, "layer.tar")
subprocess.check_call(["tar", "--numeric-owner", "--owner=0", "--group=0", "-C", root, "-cf", layer_path, "."])
with open(layer_path, "rb") as file:
    layer = blob("layer.v1.tar", file.read())

e2e, staging = "registry.k8s.io/e2e-test-images/", "gcr.io/k8s-staging-cri-tools/"
web = {"Cmd": ["/usr/sbin/nginx", "80", "master process"]}
cuda = {"Env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]}
images = {
    e2e + "busybox:1.29-2": {"Cmd": ["sh"]},
    e2e + "nginx:1.14-2": web,
    e2e + "httpd:2.4.39-4": web,
    e2e + "nonewprivs:1.3": {"Cmd": ["/nnp"]},
    staging + "hostnet-nginx-amd64:latest": {"Cmd": ["/usr/sbin/nginx", "12003"]},
    staging + "test-image-user-uid:latest": {"Cmd": ["sh"], "User": "1002"},
    staging + "test-image-user-username:latest": {"Cmd": ["sh"], "User": "www-data"},
    staging + "test-image-user-uid-group:latest": {"Cmd": ["sh"], "User": "1003:1003"},
    staging + "test-image-user-username-group:latest": {"Cmd": ["sh"], "User": "www-data:www-data"},
    staging + "test-image-predefined-group:latest": {"Cmd": ["sh"], "User": "1000"},
    "egpu.test/pause:latest": {"Entrypoint": ["/bin/tail", "-f", "/dev/null"]},
    "egpu.test/pod:1": {"Cmd": ["sh"]},
    "docker.io/library/busybox:1.37": {"Cmd": ["sh"]},
    "egpu.test/cuda:1": cuda,
    "docker.io/nvidia/cuda:13.0.0-base-ubuntu24.04": dict(cuda),
}
manifests = []
for name, config in images.items():
    config["Env"] = ["PATH=/bin:/sbin:/usr/bin", *config.get("Env", [])]
    rootfs = {"type": "layers", "diff_ids": [layer["digest"]]}
    config = blob("config.v1+json", as_json({"architecture": "amd64", "os": "linux", "config": config, "rootfs": rootfs}))
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": [layer]}
    descriptor = blob("manifest.v1+json", as_json(manifest))
    descriptor["annotations"] = {"io.containerd.image.name": name}
    manifests.append(descriptor)
with open(os.path.join(layout, "oci-layout"), "w") as file:
    file.write('{"imageLayoutVersion":"1.0.0"}')
with open(os.path.join(layout, "index.json"), "wb") as file:
    file.write(as_json({"schemaVersion": 2, "manifests": manifests}))
subprocess.check_call(["tar", "-C", layout, "-cf", archive, "oci-layout", "index.json", "blobs"])
