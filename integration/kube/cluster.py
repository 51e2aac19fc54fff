"""A cluster of one node: control plane, kubelet, containerd with egpu.

In the namespaces that host.in_namespaces gives. The node's folders are where a real node has them
(/var/lib/kubelet, /run/cdi, /run/egpu); containerd has /run/node.
"""

import json
import os
import re
import socket
import subprocess
import sys

from api import Api, ApiError, until
from part import Part
from pki import NAMES, SERVER, Authority, subject

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, f"{HERE}/../cri")
from isolation import cgroups, make_cgroups  # noqa: E402
from node import KUBELET_CONFIG, Node, cri_config, write  # noqa: E402

NODE, ADDRESS = "node", "10.88.0.1"
REPOSITORY = os.path.realpath(f"{HERE}/../..")
MANIFESTS = f"{REPOSITORY}/packaging/kubernetes"
EXAMPLES = f"{REPOSITORY}/examples/kubernetes"
KUBELET_FOLDER, CDI_FOLDER, EGPU_CONFIG = "/var/lib/kubelet", "/run/cdi", "/run/node/egpu.toml"
PLUGIN_ACCOUNT = ("egpu", "egpu-kubelet-plugin")  # namespace and name, as packaging/kubernetes has them
DRIVER = "gpu.egpu.io"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
# Either of examples/containerd, as the handler `egpu`.
RUNTIMES = {"drop-in": "drop-in-2.x.toml", "own": "config-2.x.toml"}
NVIDIA = '[driver]\nkind = "nvidia"\n'
CLIENT_LIMITS = ["--kube-api-qps=500", "--kube-api-burst=1000"]  # the defaults would hide the scheduler's speed

API_KUBELET = """podLogsDir: /var/log/pods
clusterDNS: [10.96.0.10]
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {authority}}}}}
authorization: {{mode: Webhook}}
"""


class Cluster:
    """Started by `with`; at the end pods are deleted, and what is left of them raises.

    With an archive of images it is on the machine's own cards, otherwise on simulated ones.
    """

    def __init__(self, binaries, target, rm_client, folder, runtime="drop-in", settings=(), plugin=None, images=None):
        self.binaries, self.folder = os.path.realpath(binaries), folder
        there = f"{self.binaries}/egpu-kubelet-plugin"
        self.plugin = plugin or (there if os.path.exists(there) else None)
        self.programs, self.logs = f"{target}/kube/bin", f"{folder}/logs"
        self.cgroup = os.path.basename(folder)
        os.makedirs(self.logs)
        for path in ("/run/node", CDI_FOLDER, "/var/lib/etcd", KUBELET_FOLDER):
            os.makedirs(path)
        self.authority = Authority("/run/pki")
        self.node = self._node(target, rm_client, runtime, settings, images)
        self._credentials()
        self.api = Api(SERVER, self.authority, "admin")
        self.parts = {part.name: part for part in self._parts()}

    # --- Its parts ---

    def _node(self, target, rm_client, runtime, settings, images):
        cri = cri_config("/run/node", "runc", f"{target}/cri", f"{target}/runc/runc") + self._handler(runtime)
        os.symlink(f"{self.logs}/containerd.log", "/run/node/containerd.log")
        os.symlink(f"{self.logs}/egpu.log", "/run/node/egpu.log")
        programs = f"{target}/containerd/forky/usr/bin"
        if images:
            return Node("/run/node", self.binaries, programs, cri, settings, driver=NVIDIA, images=images)
        # The driver that is simulated is behind mediators alone: nothing answers for a whole card without one.
        settings = ['whole_cards = "mediated"', *settings]
        smi = "/run/node/nvidia-smi"
        write(smi, "#!/bin/sh\nexec rm-client smi\n")
        return Node("/run/node", self.binaries, programs, cri, settings, programs=[rm_client, smi])

    def _handler(self, runtime):
        """The example's tables, in the words of the version that the rest of the file has."""
        with open(f"{REPOSITORY}/examples/containerd/{RUNTIMES[runtime]}", encoding="utf-8") as file:
            text = file.read().replace("version = 3\n", "")
        text = text.replace("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
        return text.replace("/usr/local/bin/containerd-shim", f"{self.binaries}/containerd-shim")

    def _credentials(self):
        self.authority.service_accounts()
        self.authority.certificate("apiserver", subject("kube-apiserver", ["system:masters"]), NAMES)
        users = {"admin": subject("admin", ["system:masters"]),
                 "scheduler": subject("system:kube-scheduler"),
                 "controller-manager": subject("system:kube-controller-manager"),
                 "kubelet": subject(f"system:node:{NODE}", ["system:nodes"])}
        self.kubeconfigs = {name: self.authority.kubeconfig(name, who) for name, who in users.items()}

    def _parts(self):
        yield self._part("etcd", "etcd", lambda: self._accepts(2379), "--data-dir=/var/lib/etcd", "--unsafe-no-fsync",
                         "--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
                         "--listen-peer-urls=http://127.0.0.1:2380")
        file = self.authority.path
        yield self._part(
            "apiserver", "kube-apiserver", lambda: self.api.get("/readyz") == "ok", "--etcd-servers=http://127.0.0.1:2379",
            f"--advertise-address={ADDRESS}", "--allow-privileged", f"--client-ca-file={file('ca.crt')}",
            f"--requestheader-client-ca-file={file('ca.crt')}", "--requestheader-allowed-names=nobody",
            f"--tls-cert-file={file('apiserver.crt')}", f"--tls-private-key-file={file('apiserver.key')}",
            f"--kubelet-client-certificate={file('apiserver.crt')}", f"--kubelet-client-key={file('apiserver.key')}",
            "--kubelet-preferred-address-types=InternalIP", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={file('sa.pub')}",
            f"--service-account-signing-key-file={file('sa.key')}")
        yield self._part("controller-manager", "kube-controller-manager", lambda: self._accepts(10257),
                         *self._client("controller-manager"), *CLIENT_LIMITS, "--use-service-account-credentials",
                         f"--service-account-private-key-file={file('sa.key')}", f"--root-ca-file={file('ca.crt')}",
                         "--flex-volume-plugin-dir=/run/node/plugins")
        yield self._part("scheduler", "kube-scheduler", lambda: self._accepts(10259),
                         *self._client("scheduler"), *CLIENT_LIMITS)
        yield ContainerdPart(self.node)
        text = KUBELET_CONFIG + API_KUBELET
        write("/run/node/kubelet.yaml",
              text.format(work="/run/node", cgroup=f"/{self.cgroup}", authority=file("ca.crt")))
        yield self._part("kubelet", "kubelet", self.node_is_ready, "--config=/run/node/kubelet.yaml",
                         f"--kubeconfig={self.kubeconfigs['kubelet']}", f"--root-dir={KUBELET_FOLDER}",
                         f"--hostname-override={NODE}", f"--node-ip={ADDRESS}", "--cert-dir=/run/pki/kubelet")

    def _part(self, name, program, ready, *arguments):
        return Part(name, [f"{self.programs}/{program}", *arguments], f"{self.logs}/{name}.log", ready, self.node.environment)

    def _client(self, name):
        path = self.kubeconfigs[name]
        return [f"--{use}kubeconfig={path}" for use in ("", "authentication-", "authorization-")] + ["--leader-elect=false"]

    @staticmethod
    def _accepts(port):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True

    def part(self, name):
        return self.parts[name]

    # --- Start and end ---

    def __enter__(self):
        make_cgroups(self.cgroup)
        try:
            self.start()
        except BaseException:
            self.keep_objects()
            self.stop()
            raise
        return self

    def start(self):
        self.parts["etcd"].start()
        self.parts["apiserver"].start(wait=False)
        self.parts["containerd"].start()
        self.parts["apiserver"].wait_ready()
        for name in ("controller-manager", "scheduler"):
            self.parts[name].start(wait=False)
        self.parts["kubelet"].start()
        for name in ("controller-manager", "scheduler"):
            self.parts[name].wait_ready()
        until("the service account of pods", lambda: self.api.get("/api/v1/namespaces/default/serviceaccounts/default"))
        self.kubectl("apply", "-f", f"{EXAMPLES}/00-runtime-class.yaml")
        if self.plugin:
            self.start_plugin()

    def start_plugin(self):
        """Applies packaging/kubernetes, and starts the plugin with the rights that it gives."""
        self.kubectl("apply", "-f", MANIFESTS)
        namespace, account = PLUGIN_ACCOUNT
        uid = self.api.get(f"/api/v1/nodes/{NODE}")["metadata"]["uid"]
        # Bound to the node, as the token of a pod there is: policies read the node's name from it.
        token = self.kubectl("create", "token", account, "--namespace", namespace, "--duration=24h",
                             "--bound-object-kind=Node", f"--bound-object-name={NODE}", f"--bound-object-uid={uid}")
        kubeconfig = self.authority.token_kubeconfig("plugin", token.strip())
        command = [self.plugin, "--node-name", NODE, "--kubeconfig", kubeconfig,
                   "--kubelet-dir", KUBELET_FOLDER, "--cdi-dir", CDI_FOLDER]
        self.parts["plugin"] = Part("plugin", command, f"{self.logs}/plugin.log", self.plugin_is_ready, self.node.environment)
        self.parts["plugin"].start()

    def __exit__(self, kind, *_):
        try:
            left = self.empty() or self._left_after(75, self.leftovers)
        except Exception as error:
            left = [f"pods could not be deleted: {error}"]
        finally:
            self.stop()
        if left and kind is None:
            raise RuntimeError(f"left on the node after its pods: {left}")
        for one in left:
            print(f"left on the node after its pods: {one}", file=sys.stderr)

    def keep_objects(self):
        """Writes what the API has beside the logs."""
        kinds = "nodes,pods,events,resourceslices,resourceclaims,deviceclasses"
        for form, path in (("wide", "objects.txt"), ("yaml", "objects.yaml")):
            write(f"{self.logs}/{path}", self.kubectl("get", kinds, "--all-namespaces", "-o", form, check=False))

    def stop(self):
        for part in reversed(list(self.parts.values())):
            part.stop()

    def empty(self):
        """Deletes all pods and claims; returns what the node has of them ten seconds later.

        The memory of a sandbox whose shim was killed is not among it: kubelet collects dead sandboxes once a minute.
        """
        for part in self.parts.values():
            if not part.is_running():
                part.start()
        self.kubectl("delete", "deployments,jobs,pods,resourceclaims,resourceclaimtemplates", "--all",
                     "--all-namespaces", "--now", "--wait=true", "--timeout=60s")
        def left():
            return [one for one in self.leftovers() if not re.fullmatch("mount .*/sandboxes/[0-9a-f]+/shm", one)]
        return self._left_after(10, left)

    @staticmethod
    def _left_after(seconds, left):
        try:
            until("the node to be empty", lambda: not left(), seconds)
        except TimeoutError:
            pass
        return left()

    def leftovers(self):
        """What pods have on the node: grants, mounts, cgroups, shims, claims' files."""
        left = [f"grant {container['id']}" for container in self.grants()]
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            mounts = [line.split()[4] for line in file]
        parts = ("/run/node/containerd/", f"{KUBELET_FOLDER}/pods/", "/run/egpu/")
        left += [f"mount {path}" for path in mounts if path.startswith(parts)]
        left += [f"cgroup {path}" for path in cgroups(self.cgroup) if re.search("/pod[0-9a-f-]{36}|/k8s.io/", path)]
        left += [f"process {command}" for command in processes() if "containerd-shim" in command]
        return left + [f"CDI file {name}" for name in os.listdir(CDI_FOLDER)]

    # --- What tests ask ---

    def kubectl(self, *arguments, stdin=None, check=True):
        """Returns what kubectl prints."""
        command = [f"{self.programs}/kubectl", "--kubeconfig", self.kubeconfigs["admin"], *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, text):
        return self.kubectl("apply", "-f", "-", stdin=text)

    def egpu(self, *arguments, check=True):
        """Returns what the node's `egpu` prints."""
        command = [f"{self.binaries}/egpu", *arguments]
        done = subprocess.run(command, env=self.node.environment, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise RuntimeError(f"egpu {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def kubectl_egpu(self, *arguments, check=True):
        """Returns the exit code, what kubectl's plugin `egpu` prints, and what it says."""
        command = [f"{self.binaries}/kubectl-egpu", "--kubeconfig", self.kubeconfigs["admin"], *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise RuntimeError(f"kubectl egpu {' '.join(arguments)}: {done.stderr.strip()}")
        return done.returncode, done.stdout, done.stderr

    def grants(self):
        return json.loads(self.egpu("ps", "--output", "json"))

    def node_is_ready(self):
        node = self.api.get(f"/api/v1/nodes/{NODE}")
        conditions = {one["type"]: one["status"] for one in node.get("status", {}).get("conditions", [])}
        return conditions.get("Ready") == "True" and not node["spec"].get("taints")

    def slices(self):
        return [one for one in self.api.items(SLICES) if one["spec"]["driver"] == DRIVER]

    def plugin_is_ready(self):
        """Its cards are published, and kubelet has registered the process that runs now."""
        begun = self.log("plugin").rpartition("kube-test: ")[2]
        return self.slices() and "registered with the kubelet" in begun

    def pod(self, name, namespace="default"):
        return self.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def wait_phase(self, name, *phases, seconds=60, namespace="default"):
        """Returns the pod once it is in one of the phases."""
        def in_phase():
            pod = self.pod(name, namespace)
            return pod if pod["status"].get("phase") in phases else None
        try:
            return until(f"pod {name} to be {phases}", in_phase, seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.kubectl('describe', 'pod', name, '-n', namespace, check=False)}") from None

    def wait_running(self, name, **options):
        return self.wait_phase(name, "Running", **options)

    def wait_ended(self, name, **options):
        return self.wait_phase(name, "Succeeded", "Failed", **options)

    def wait_gone(self, name, namespace="default", seconds=60):
        def gone():
            try:
                self.pod(name, namespace)
            except ApiError as error:
                if error.code == 404:
                    return True
                raise
            return False
        until(f"pod {name} to be gone", gone, seconds)

    def delete_pod(self, name, namespace="default", grace_s=1, wait=True):
        """With grace 0 a pod would be gone from the API before kubelet acts."""
        self.api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", grace_s)
        if wait:
            self.wait_gone(name, namespace)

    def events(self, name, namespace="default"):
        """The messages of the object's events."""
        path = f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name={name}"
        return [event.get("message", "") for event in self.api.items(path)]

    def log(self, part):
        with open(f"{self.logs}/{part}.log", encoding="utf-8", errors="replace") as file:
            return file.read()


class ContainerdPart(Part):
    """The node's containerd, which has its images at its first start."""

    def __init__(self, node):
        self.node, self.has_images = node, False
        super().__init__("containerd", [], f"{node.work}/containerd.log", lambda: True)

    def start(self, wait=True):
        if self.has_images:
            self.node.containerd.start(self.node.environment)
        else:
            self.node.start()
            self.has_images = True
        self.process = self.node.containerd.process


def processes():
    """The command lines of everything in the namespace."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                found.append(file.read().replace(b"\0", b" ").decode(errors="replace").strip())
        except OSError:
            pass
    return found
