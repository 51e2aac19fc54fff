"""Rows of docs/compatibility.md: program, version, on how many cards, verdict."""

import importlib.metadata
import json
import time
from dataclasses import asdict, dataclass

from measure.containerd import write
from measure.programs.compare import counts, differ, limit_of

SAME, LIMIT, FAILS, NOT_RUN = "works", "a limit", "fails inside", "not run"
OUTSIDE_TOO = "fails outside, too"


@dataclass
class Row:
    program: str
    version: str
    cards: int
    verdict: str
    differs: str = ""


def installed(package):
    """Returns the version of a Python package of this machine; nothing where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


class Rows:
    """The rows of a run, each of which is a check of the report, too."""

    def __init__(self, report):
        self.report, self.rows = report, []

    def skip(self, program, cards, why, version=""):
        self.report.skip(f"{program}: {why}")
        self.rows.append(Row(program, version, cards, NOT_RUN, why))

    def judge(self, program, version, cards, outside, inside, said=""):
        """Checks that nothing fails only inside but what is a limit, and keeps the row."""
        found = differ(outside, inside)
        wrong = [test for test in found.only_inside if not limit_of(program, test)]
        limits = [test for test in found.only_inside if limit_of(program, test)]
        print(f"{program} {version}, cards: {cards}: outside {counts(outside)}, inside "
              f"{counts(inside)} (passed/failed/skipped), {found.common} in common")
        for what, tests in (("fails only inside, a limit", limits),
                            ("fails only outside", found.only_outside),
                            ("skipped only inside", found.skipped_inside)):
            for test in tests[:20]:
                print(f"  {what}: {test}")
        name = f"{program}, cards: {cards}: nothing fails only inside but what is a limit"
        missing = sorted(outside.keys() - inside.keys()) if not found.common else []
        row = Row(program, version, cards, *verdict(outside, found, wrong, limits))
        if row.verdict == OUTSIDE_TOO:
            self.report.skip(f"{program}: it {OUTSIDE_TOO}")
        else:
            self.report.check(name, not wrong and not missing, *wrong[:40], *missing[:5], said)
        self.rows.append(row)

    def keep(self, node, model):
        """Writes the rows beside the results."""
        path = self.report.path.removesuffix(".txt")
        kept = {"date": time.strftime("%Y-%m-%d"),
                "build": node.read(f"{node.folder}/commit").strip(),
                "driver": node.read("/sys/module/nvidia/version").strip() or "none",
                "card": model, "rows": [asdict(row) for row in self.rows]}
        write(f"{path}.json", json.dumps(kept, indent=1) + "\n")


def verdict(outside, found, wrong, limits):
    """Returns the verdict, and what differs in words."""
    if not found.common:
        return FAILS, "nothing ran inside"
    if wrong:
        return FAILS, listed(wrong)
    if limits:
        return LIMIT, listed(limits)
    if "passed" not in outside.values() and "failed" in outside.values():
        return OUTSIDE_TOO, ""
    tests = f"{found.common} tests" if found.common > 1 else ""
    return SAME, tests


def listed(tests, most=5):
    more = f" and {len(tests) - most} more" if len(tests) > most else ""
    return ", ".join(tests[:most]) + more
