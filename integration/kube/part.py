"""A program of the cluster, by name: started, killed, started again."""

import os
import subprocess

from api import until


class Part:
    """A program whose log of all its lives is one file."""

    def __init__(self, name, command, log, ready, environment=None):
        self.name, self.command, self.log = name, command, log
        self.ready, self.environment, self.process = ready, environment, None

    def start(self, wait=True):
        with open(self.log, "a", encoding="utf-8") as log:
            print(f"kube-test: {self.name} starts", file=log, flush=True)
            # In a session of its own: it is needed for cleaning up after a signal to the group.
            self.process = subprocess.Popen(self.command, env=self.environment, stdout=log, stderr=log,
                                            start_new_session=True)
        if wait:
            self.wait_ready()

    def wait_ready(self):
        def is_ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}: {self.log}")
            return self.ready()
        until(f"{self.name} to be ready ({self.log})", is_ready)

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """As kill -9 does."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        if not self.is_running():
            return
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self, kill=True):
        if self.is_running():
            (self.kill if kill else self.stop)()
        self.start()


def cpu_s(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        [line] = [line for line in file if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024
