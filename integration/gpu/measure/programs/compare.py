"""Comparison of a program's tests outside and inside, by name."""

import fnmatch
from dataclasses import dataclass, field

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

# (program, test, words): fails only inside for a reason that docs/limits.md gives, in a paragraph
# with these words. A test holds that they stand there.
LIMITS = [
    ("cuda-gdb", "*", "cuda-gdb"),
    ("ncu", "*", "Nsight Compute"),
    ("NVML getters", "nvmlDeviceGetGpuInstance*", "profiles of MIG instances"),
    ("cuda-core", "*test_persistence_mode_enabled", "persistence mode"),
]


def limit_of(program, test):
    """Returns the words of the limit that a test fails by; None where there is none."""
    return next((words for programs, tests, words in LIMITS
                 if fnmatch.fnmatch(program, programs) and fnmatch.fnmatch(test, tests)), None)


@dataclass
class Difference:
    """Tests whose outcome differs; those that ran on one side only are left out."""

    common: int = 0
    only_inside: list = field(default_factory=list)
    only_outside: list = field(default_factory=list)
    skipped_inside: list = field(default_factory=list)

    def again(self):
        """The tests that are worth another run."""
        return [*self.only_inside, *self.only_outside, *self.skipped_inside]


def differ(outside, inside):
    """Compares the outcomes of tests, each a table from name to outcome."""
    found = Difference(common=len(outside.keys() & inside.keys()))
    for test in sorted(outside.keys() & inside.keys()):
        ends = outside[test], inside[test]
        if ends[1] == FAILED and ends[0] != FAILED:
            found.only_inside.append(test)
        elif ends == (FAILED, PASSED):
            found.only_outside.append(test)
        elif ends == (PASSED, SKIPPED):
            found.skipped_inside.append(test)
    return found


def settled(outside, inside, run_again, most=20):
    """Runs the tests that differ again, alone, on both sides; returns what is left.

    `run_again(side, test)` returns one outcome. A failure that does not come again was chance, or
    the quota that several tests shared.
    """
    outside, inside = dict(outside), dict(inside)
    for test in differ(outside, inside).again()[:most]:
        outside[test], inside[test] = run_again("outside", test), run_again("inside", test)
    return outside, inside


def counts(outcomes):
    """Writes passed/failed/skipped."""
    ends = list(outcomes.values())
    return "/".join(str(ends.count(one)) for one in (PASSED, FAILED, SKIPPED))


def outcome(passed):
    return PASSED if passed else FAILED
