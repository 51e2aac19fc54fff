"""A private containerd: configuration, start, end. Also used by integration/cri."""

import subprocess
import time

CONFIG = """version = 2
root = "{work}/root"
state = "{work}/containerd"
disabled_plugins = [{disabled}]
[grpc]
address = "{work}/containerd.sock"
[ttrpc]
address = "{work}/containerd.sock.ttrpc"
[debug]
level = "{level}"
[plugins."io.containerd.internal.v1.opt"]
path = "{work}/opt"
"""

SIMULATED = """[driver]
kind = "simulated"
[[driver.simulated]]
model = "{model}"
memory = "{memory}"
count = {count}
"""


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def egpu_config(work, driver, *settings):
    """Returns egpu's configuration; settings are lines of the top level."""
    top = [*settings, f'state_dir = "{work}/egpu"', f'log_file = "{work}/egpu.log"']
    return "\n".join([*top, driver])


class Containerd:
    """containerd with everything that it writes below a folder of its own."""

    def __init__(self, work, binaries="", disabled=(), extra="", level="info"):
        self.work, self.binaries, self.process = work, binaries, None
        self.socket = f"{work}/containerd.sock"
        disabled = ", ".join(f'"{plugin}"' for plugin in disabled)
        config = CONFIG.format(work=work, disabled=disabled, level=level)
        write(f"{work}/containerd.toml", config + extra)

    def program(self, name):
        return f"{self.binaries}/{name}" if self.binaries else name

    def ctr(self, namespace, *arguments):
        """Returns the command line of a call of ctr."""
        return [self.program("ctr"), "--address", self.socket, "--namespace", namespace, *arguments]

    def start(self, environment):
        command = [self.program("containerd"), "--config", f"{self.work}/containerd.toml"]
        with open(f"{self.work}/containerd.log", "a", encoding="utf-8") as log:
            # In a session of its own: it is needed for cleaning up after a signal to the group.
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log,
                                            start_new_session=True)
        end, quiet = time.monotonic() + 120, subprocess.DEVNULL
        version = self.ctr("default", "version")
        while subprocess.run(version, stdout=quiet, stderr=quiet, check=False).returncode:
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError(f"containerd did not answer: {self.work}/containerd.log")
            time.sleep(0.1)

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait()
