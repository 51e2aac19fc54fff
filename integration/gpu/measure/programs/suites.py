"""Test suites of other people, under pytest, test by test."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from measure.node import call
from measure.programs import junit
from measure.programs.compare import FAILED, PASSED, settled
from measure.programs.places import NO_FOLDER, SIDES, python_path, versions
from measure.programs.rows import installed

# Beyond the bound of a suite: imports, and its last test.
GRACE_S = 60
ALONE_S = 90
# A test of our own beside those of the suite: no test ends the process, or hangs.
TO_ITS_END = "(the run comes to its end)"


@dataclass
class PytestSuite:
    """Test files of a folder of what was fetched, for a package of this machine's python3.

    Without a folder the tests are part of the package.
    """

    group: str
    name: str
    package: str
    source: str
    files: tuple
    cards: int = 1
    options: tuple = ()
    settings: tuple = ()
    # Packages that its tests import, of python3 or of what was fetched.
    needs: tuple = ()


EXPANDABLE = ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",)


def of_pytorch(name, *files, **more):
    return PytestSuite("pytorch", f"PyTorch {name}", "torch", "pytorch/test", files, **more)


def of_cupy(name, *files, **more):
    return PytestSuite("cupy", f"CuPy {name}", "cupy-cuda13x", "cupy/tests", files, **more)


SUITES = [
    of_pytorch("test_cuda.py", "test_cuda.py"),
    of_pytorch("test_cuda.py, expandable_segments", "test_cuda.py", settings=EXPANDABLE),
    of_pytorch("test_cuda_primary_ctx.py", "test_cuda_primary_ctx.py"),
    of_pytorch("test_multiprocessing.py, CUDA IPC", "test_multiprocessing.py",
               options=("-k", "cuda")),
    of_pytorch("profiler", "profiler/test_profiler.py", "profiler/test_memory_profiler.py"),
    of_pytorch("traces, sanitizer, jiterator", "test_cuda_trace.py", "test_cuda_sanitizer.py",
               "test_jiterator.py"),
    of_pytorch("test_dataloader.py, pinned", "test_dataloader.py", options=("-k", "cuda or pin")),
    of_pytorch("inductor, graph trees", "inductor/test_cudagraph_trees.py"),
    of_pytorch("test_cuda_multigpu.py", "test_cuda_multigpu.py", cards=2),
    of_pytorch("distributed/test_nccl.py", "distributed/test_nccl.py", cards=2),
    of_pytorch("distributed/test_c10d_nccl.py", "distributed/test_c10d_nccl.py", cards=2),
    of_cupy("cuda_tests", "cupy_tests/cuda_tests"),
    of_cupy("core_tests", "cupy_tests/core_tests"),
    of_cupy("on two cards", "cupy_tests/cuda_tests/test_nccl.py",
            "cupy_tests/cuda_tests/test_device.py", "cupy_tests/cuda_tests/test_memory.py",
            cards=2),
    PytestSuite("numba", "numba-cuda", "numba-cuda", "", ("numba.cuda.tests",),
               options=("-o", "consider_namespace_packages=true",
                        "--continue-on-collection-errors", "--pyargs"),
               needs=("filecheck", "cffi")),
    PytestSuite("rmm", "RMM", "", "rmm/python/rmm/rmm/tests", (".",)),
]


class SuiteRun:
    """One suite, on both sides, and its differing tests once more."""

    def __init__(self, places, suite, seconds):
        self.places, self.suite, self.seconds = places, suite, seconds
        self.folder = f"{places.folder}/{suite.source}" if suite.source else places.shared
        self.settings = [*suite.settings, python_path(places.folder), "PYTHONDONTWRITEBYTECODE=1",
                         "PYTORCH_TESTING_DEVICE_ONLY_FOR=cuda"]

    def files(self):
        """The files that are there."""
        if not self.suite.source:
            return self.suite.files
        return [name for name in self.suite.files if os.path.exists(f"{self.folder}/{name}")]

    def missing(self):
        """Returns the reason for which the suite cannot be run; nothing where it can."""
        if self.suite.source and not self.places.folder:
            return NO_FOLDER
        if not self.files():
            return f"{self.suite.source} is not in {self.places.folder}"
        if self.suite.package and not installed(self.suite.package):
            return f"python3 has no {self.suite.package}"
        for name in self.suite.needs:
            if not installed(name) and not os.path.isdir(f"{self.places.folder}/python/{name}"):
                return f"neither python3 nor what was fetched has {name}"
        return "" if installed("pytest") else "python3 has no pytest"

    def version(self):
        """The version of the package; that of the tests, too, where it is another."""
        package = installed(self.suite.package) if self.suite.package else ""
        if not self.suite.source:
            return package
        tests = versions(self.places.folder).get(self.suite.source.split("/")[0], "")
        if not package or package.split("+")[0] == tests:
            return package or tests
        return f"{package}, tests {tests or 'of an unknown version'}"

    def tests(self, side, seconds, arguments):
        """Runs tests in one place; returns their outcomes, and the end of what was printed.

        A run that does not come to its end has the test that began last, failed.
        """
        path = f"{self.places.shared}/{side}.xml"
        for old in (path, f"{path}.last"):
            call(["rm", "-f", old])
        command = ["python3", "@run_tests.py", str(seconds), path, *arguments]
        end = self.places.run(side, command, seconds + GRACE_S, self.settings, self.folder)
        node = self.places.node
        found = junit.outcomes(node.read(path))
        last = node.read(f"{path}.last")
        if not found and last:
            found = {last: FAILED, TO_ITS_END: FAILED}
        return found, f"exit {end.code}, last test {last}\n{end.text[-600:]}"

    def both(self, arguments):
        """Runs the suite in both places, at once on one card: what differs is run alone later.

        On two cards, programs of both places would take each other's ports.
        """
        with ThreadPoolExecutor(len(SIDES) if self.suite.cards == 1 else 1) as pool:
            ended = pool.map(lambda side: self.tests(side, self.seconds, arguments), SIDES)
            return dict(zip(SIDES, ended))

    def alone(self, side, test):
        found, said = self.tests(side, ALONE_S, [test])
        if side == "inside" and found.get(test) != PASSED:
            print(f"{test}, inside, alone: {said}")
        return found.get(test, FAILED)

    def run(self, rows):
        suite = self.suite
        why = self.missing()
        if why:
            return rows.skip(suite.name, suite.cards, why)
        arguments = [*suite.options, *self.files()]
        ran = self.both(arguments)
        found = {side: ran[side][0] for side in SIDES}
        ends = [found[side].pop(TO_ITS_END, PASSED) for side in SIDES]
        if not found["outside"]:
            print(ran["outside"][1])
            return rows.skip(suite.name, suite.cards, "nothing ran outside", self.version())
        outcomes = settled(found["outside"], found["inside"], self.alone)
        if FAILED in ends:
            for tests, end in zip(outcomes, ends):
                tests[TO_ITS_END] = end
        return rows.judge(suite.name, self.version(), suite.cards, *outcomes,
                          said=ran["inside"][1])


def run(group, places, rows, settings):
    for suite in SUITES:
        if suite.group == group and suite.cards == places.cards:
            SuiteRun(places, suite, settings.suite_seconds).run(rows)
