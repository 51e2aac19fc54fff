"""The integration suite's cases of memory and attacks on this machine's own cards.

Each case has a process of its own, so that one that hangs costs its own time only; what needs
simulated cards says so and is skipped. RESULT-cases/NAME.txt is what each printed.
"""

import os
import re
import shutil
import signal
import subprocess
import time

from measure.node import call, command_lines, host_environment, unmount_below


class Cases:
    def __init__(self, suite):
        self.suite, self.report = suite, suite.report
        self.node, self.settings = suite.node, suite.settings
        self.folder = suite.report.path.removesuffix(".txt") + "-cases"
        self.temporary = f"{suite.node.work}/it"
        self.program = f"{suite.node.programs}/it"
        os.makedirs(self.folder, exist_ok=True)
        os.makedirs(self.temporary, exist_ok=True)

    def environment(self):
        real = "" if self.settings.dry else "1"
        return {**suite_environment(self.node, self.temporary), "EGPU_TEST_REAL_CARDS": real}

    def names(self):
        for suite in self.settings.suites:
            listed = call([self.program, "--list", f"/{suite}::"], env=self.environment(),
                          stderr=subprocess.DEVNULL).text
            yield from re.findall("^(.*): test$", listed, re.MULTILINE)

    def run(self, name):
        """Runs a case, and says what it came to and what the driver wrote meanwhile."""
        path = f"{self.folder}/{re.sub('[/:]', '_', name)}.txt"
        before, begun = len(self.node.kernel_log() or []), time.monotonic()
        with open(path, "w", encoding="utf-8") as file:
            limit = ["timeout", "--kill-after", "5", self.settings.case_seconds]
            command = [*limit, self.program, "--exact", name, "--test-threads", "1"]
            code = subprocess.run(command, env=self.environment(), stdout=file, stderr=file,
                                  check=False).returncode
        self.judge(name, code, int(time.monotonic() - begun), path)
        new = len(self.node.kernel_log() or []) - before
        if new:
            print(f"{new} new lines of the driver in the kernel's log")

    def judge(self, name, code, seconds, path):
        said = self.node.read(path)
        skipped = re.search("skipped: (.*)", said)
        if code < 0 or code > 101:
            self.clean_up()
            limit = self.settings.case_seconds
            self.report.check(f"{name}: did not end in {limit} s (exit {code}), {path}", False)
        elif code:
            self.report.check(f"{name} (exit {code}, {seconds} s), {path}", False)
            failure = re.search("^---- .*?(?=^failures:|\\Z)", said, re.MULTILINE | re.DOTALL)
            print(*(failure[0] if failure else "").splitlines()[:12], sep="\n")
        elif skipped:
            self.report.skip(skipped[1])
        elif "1 passed" in said:
            self.report.check(f"{name} ({seconds} s)", True)
        else:
            self.report.check(f"{name}: nothing was run, {path}", False)

    def clean_up(self):
        """Ends what a case that did not end by itself has left, all in a folder of its own."""
        for pid, line in command_lines():
            if f"{self.temporary}/" in line:
                self.node.kill(pid, signal.SIGKILL)
        time.sleep(0.5)
        unmount_below(self.temporary)
        for entry in os.scandir(self.temporary):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)


def suite_environment(node, temporary):
    """Returns the variables by which the integration suite finds the programs that it tests."""
    programs = node.programs
    return {**host_environment(), "TMPDIR": temporary, "EGPU_TEST_BIN": programs,
            "EGPU_TEST_CONTAINERD_BIN": programs, "EGPU_TEST_HOSTILE": f"{programs}/hostile",
            "EGPU_TEST_RM_CLIENT": f"{programs}/rm-client"}


def attacks(suite):
    settings, report = suite.settings, suite.report
    report.title(f"attacks: the suites of {' '.join(settings.suites)}, for {settings.seconds:g} "
                 "seconds at most")
    end = time.monotonic() + settings.seconds
    cases = Cases(suite)
    names, late = list(cases.names()), 0
    if not names:
        report.check("the suites have cases", False)
        return
    print(f"{len(names)} cases; kept in {cases.folder}")
    for name in names:
        if time.monotonic() >= end:
            late += 1
            report.skip(f"{name}: no time is left")
        else:
            cases.run(name)
    if late:
        print(f"{late} cases were not begun: EGPU_GPU_SECONDS={settings.seconds:g}")
    cases.clean_up()


def run(suite):
    before = suite.node.kernel_log()
    suite.run(attacks)
    # Some attacks ask the driver for what it refuses with three lines (a channel of wrong
    # parameters). Thousands of refused calls are made here.
    suite.kernel_log_since(before, most=20)


def on_simulated_cards(suite):
    """Runs the whole integration suite on this machine, with simulated cards."""
    suite.report.title("the integration tests on this machine, with simulated cards")
    temporary = f"{suite.node.work}/it"
    os.makedirs(temporary, exist_ok=True)
    done = call(["timeout", "400", f"{suite.node.programs}/it", "--test-threads", "4"],
                env=suite_environment(suite.node, temporary))
    print(*re.findall("^(?:test |skipped).*$", done.text, re.MULTILINE), sep="\n")
    failures = re.search("^failures:.*", done.text, re.MULTILINE | re.DOTALL)
    detail = failures[0].splitlines()[-150:] if failures else []
    suite.report.check("the integration tests pass", done.code == 0, *detail)
