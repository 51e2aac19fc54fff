#!/bin/bash
# Puts the release binaries in place, and a configuration file where there is none. Running
# containers go on with the binary that they were started with.
# usage: [PREFIX=/usr/local] [DESTDIR=] scripts/install.sh RELEASE_DIRECTORY
set -euo pipefail

release=$1
bin=${DESTDIR-}${PREFIX:-/usr/local}/bin
config=${DESTDIR-}/etc/egpu/config.toml

mkdir -p "$bin" "${config%/*}"
for program in containerd-shim-egpu-v1 egpu; do
    # By rename: containerd may start the shim at any moment and must find a whole file.
    install --mode=755 "$release/$program" "$bin/.$program.new"
    mv --force "$bin/.$program.new" "$bin/$program"
    echo "installed $bin/$program"
done
if [ -e "$config" ]; then
    echo "kept      $config"
else
    "$release/egpu" config default >"$config.new"
    chmod 644 "$config.new"
    mv "$config.new" "$config"
    echo "installed $config"
fi

cat <<EOF

Tell containerd about it. /etc/containerd/config.toml, version 3 (containerd 2.x):

    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.egpu]
      runtime_type = "io.containerd.runc.v2"
      runtime_path = "${PREFIX:-/usr/local}/bin/containerd-shim-egpu-v1"
      pod_annotations = ["egpu.io/*", "hami.io/*"]
      container_annotations = ["egpu.io/*"]
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.egpu.options]
        SystemdCgroup = false   # true where the kubelet's cgroupDriver is systemd

Version 2 (containerd 1.7): the same below [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.egpu]. containerd 1.6 ignores
runtime_path: there, runtime_type = "io.containerd.egpu.v1", and no runtime_path. Both need runc's table, if your file has none:

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

These versions forget their built-in one as soon as there is another runtime, and CRI does not start without it.
Then: systemctl restart containerd (running containers go on), and \`egpu doctor\` looks the node over.
EOF
