"""Certificates and kubeconfigs, made on the spot with openssl."""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, f"{HERE}/../cri")
from node import write  # noqa: E402

SERVER = "https://10.88.0.1:6443"
NAMES = "IP:10.88.0.1,IP:127.0.0.1,IP:10.96.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"

KUBECONFIG = """apiVersion: v1
kind: Config
clusters: [{{name: test, cluster: {{server: "{server}", certificate-authority: {folder}/ca.crt}}}}]
users: [{{name: {name}, user: {user}}}]
contexts: [{{name: test, context: {{cluster: test, user: {name}}}}}]
current-context: test
"""


def subject(user, groups=()):
    """Returns the name that the API server reads as a user and their groups."""
    return "".join(f"/O={group}" for group in groups) + f"/CN={user}"


class Authority:
    """A certificate authority for one cluster, with everything in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder, mode=0o700)
        self._openssl("req", "-x509", "-new", *self._key("ca"), "-nodes", "-days", "3650",
                      "-subj", "/CN=test", "-out", f"{folder}/ca.crt")

    def path(self, name):
        return f"{self.folder}/{name}"

    def service_accounts(self):
        """Makes the pair of keys that service accounts' tokens are signed with."""
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.path("sa.key"))
        self._openssl("ec", "-in", self.path("sa.key"), "-pubout", "-out", self.path("sa.pub"))

    def certificate(self, name, who, names=None):
        extensions = ["-addext", f"subjectAltName={names}"] if names else []
        key = self._key(name)
        self._openssl("req", "-x509", "-new", *key, "-nodes", "-days", "3650", "-subj", who,
                      "-CA", self.path("ca.crt"), "-CAkey", self.path("ca.key"), *extensions,
                      "-addext", "extendedKeyUsage=clientAuth,serverAuth",
                      "-addext", "basicConstraints=critical,CA:FALSE", "-out", self.path(f"{name}.crt"))

    def kubeconfig(self, name, who):
        """Writes one with a certificate of this name; returns its path."""
        self.certificate(name, who)
        files = f"client-certificate: {self.path(name)}.crt, client-key: {self.path(name)}.key"
        return self._kubeconfig(name, files)

    def token_kubeconfig(self, name, token):
        """Writes one with a token; returns its path."""
        return self._kubeconfig(name, f"token: {token}")

    def _kubeconfig(self, name, user):
        path = self.path(f"{name}.conf")
        write(path, KUBECONFIG.format(server=SERVER, folder=self.folder, name=name, user=f"{{{user}}}"))
        os.chmod(path, 0o600)
        return path

    def _key(self, name):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", self.path(f"{name}.key")]

    def _openssl(self, *arguments):
        made = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(f"openssl {' '.join(arguments)}: {made.stderr}")
