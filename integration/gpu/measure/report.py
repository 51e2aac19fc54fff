"""Results of a run: titles, checks with their counts, rows for the picture."""

import contextlib
import os
import subprocess
import sys


@contextlib.contextmanager
def kept_in(path):
    """Keeps everything that this process and its children print in a file, too."""
    # In a session of its own: what ends this program before its time is not to end its output.
    tee = subprocess.Popen(["tee", path], stdin=subprocess.PIPE, start_new_session=True)
    outputs = {fd: os.dup(fd) for fd in (1, 2)}
    for fd in outputs:
        os.dup2(tee.stdin.fileno(), fd)
    tee.stdin.close()
    sys.stdout.reconfigure(line_buffering=True)
    try:
        yield
    finally:
        sys.stdout.flush()
        for fd, before in outputs.items():
            os.dup2(before, fd)
        with contextlib.suppress(subprocess.TimeoutExpired):
            tee.wait(5)


class Report:
    def __init__(self, path):
        self.path = path
        self.passed = self.failed = self.skipped = 0
        self.rows = []

    def title(self, text):
        print(f"\n=== {text}")

    def check(self, name, passed, *detail):
        """Counts a check, and prints the detail of one that fails."""
        if passed:
            self.passed += 1
            print(f"PASS {name}")
        else:
            if detail:
                print(*detail, sep="\n")
            self.failed += 1
            print(f"FAIL {name}")
        return bool(passed)

    def contains(self, name, text, part):
        return self.check(name, part in text, f"no '{part}' in:", text)

    def lacks(self, name, text, part):
        return self.check(name, part not in text, f"'{part}' is in:", text)

    def equal(self, name, found, expected):
        return self.check(name, found == expected, f"expected: {expected}", f"found:    {found}")

    def skip(self, reason):
        self.skipped += 1
        print(f"skipped: {reason}")

    def row(self, table, load, who, asked, achieved):
        """Keeps a point of the picture, both figures in percent."""
        asked, achieved = (f"{figure:.10g}" for figure in (asked, round(achieved, 2)))
        self.rows.append((table, load, who, asked, achieved))

    def summary(self):
        self.title("summary")
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        print(f"{counts}; kept in {self.path}")
        return self.failed == 0
