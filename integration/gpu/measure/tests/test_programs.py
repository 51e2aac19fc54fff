"""Programs outside and inside: what is read, compared, run again, and kept."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from measure import programs
from measure.node import Output
from measure.programs import (
    compare, compatibility, events, fetch, getters, junit, llama, rows, samples, suites, tools)
from measure.programs.places import Places
from measure.report import Report
from measure.settings import Settings
from measure.suite import Suite
from measure.tests.fake_node import FakeNode

PASSED, FAILED, SKIPPED = compare.PASSED, compare.FAILED, compare.SKIPPED
FOLDER = os.path.realpath(f"{os.path.dirname(__file__)}/../..")
XML = """<testsuites><testsuite>
<testcase classname="t.A" name="one"><properties><property name="name" value="t.py::A::one"/>
</properties></testcase>
<testcase classname="t.A" name="two"><failure message="no"/></testcase>
<testcase classname="t.A" name="three"><skipped message="later"/></testcase>
<testcase classname="t.A" name="four"/>
<testcase classname="t.A" name="four"><error message="at the end"/></testcase>
</testsuite></testsuites>"""


class ProgramNode(FakeNode):
    """A node on which commands end as a function of (container, line) says."""

    def __init__(self, folder, ends):
        super().__init__()
        self.ends, self.folder, self.work, self.lines, self.events = ends, FOLDER, folder, [], []

    def outcome(self, container, *command):
        line = " ".join(command)
        self.lines.append((container, line))
        return self.ends(container, line)

    def json(self, command, *_):
        return self.events if command == "events" else []

    def read(self, path):
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
            return file.read()
        return ""


def judged(run):
    """Runs something with rows; returns them, the report, and what was printed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Report(f"{folder}/result.txt")
        found = rows.Rows(report)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            run(found)
    return found.rows, report, said.getvalue()


class Junit(unittest.TestCase):
    def test_each_test_has_its_worst_outcome(self):
        self.assertEqual(junit.outcomes(XML), {
            "t.py::A::one": PASSED, "t.A::two": FAILED, "t.A::three": SKIPPED, "t.A::four": FAILED})

    def test_a_file_that_is_cut_off_has_no_outcomes(self):
        self.assertEqual(junit.outcomes(XML[:200]), {})
        self.assertEqual(junit.outcomes(""), {})

    @unittest.skipUnless(importlib.util.find_spec("pytest"), "no pytest")
    def test_names_of_a_real_run_can_be_run_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/test_it.py", "w", encoding="utf-8") as file:
                file.write("import time\nclass TestA:\n    def test_one(self): pass\n"
                           "    def test_two(self): assert False\n"
                           "def test_three(): time.sleep(1.2)\ndef test_four(): pass\n")
            first = self.ran(folder, "1", "test_it.py")
            self.assertEqual(first, {"test_it.py::TestA::test_one": PASSED,
                                     "test_it.py::TestA::test_two": FAILED,
                                     "test_it.py::test_three": PASSED})
            alone = self.ran(folder, "9", "test_it.py::TestA::test_two")
            self.assertEqual(alone, {"test_it.py::TestA::test_two": FAILED})

    @staticmethod
    def ran(folder, *arguments):
        path = f"{folder}/result.xml"
        command = [sys.executable, f"{FOLDER}/run_tests.py", arguments[0], path, arguments[1]]
        subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=False)
        with open(path, encoding="utf-8") as file:
            return junit.outcomes(file.read())


class Compare(unittest.TestCase):
    def test_only_what_ran_on_both_sides_is_compared(self):
        found = compare.differ({"a": PASSED, "b": FAILED, "c": PASSED, "d": PASSED, "e": FAILED},
                               {"a": FAILED, "b": PASSED, "c": SKIPPED, "e": FAILED, "f": FAILED})
        self.assertEqual((found.common, found.only_inside, found.only_outside,
                          found.skipped_inside), (4, ["a"], ["b"], ["c"]))

    def test_what_differs_is_run_again_alone_on_both_sides(self):
        asked = []

        def again(side, test):
            asked.append((side, test))
            return FAILED if (side, test) == ("inside", "real") else PASSED

        ends = compare.settled({"real": PASSED, "chance": PASSED, "same": FAILED},
                               {"real": FAILED, "chance": FAILED, "same": FAILED}, again)
        self.assertEqual(compare.differ(*ends).only_inside, ["real"])
        self.assertEqual(asked, [("outside", "chance"), ("inside", "chance"), ("outside", "real"),
                                 ("inside", "real")])

    def test_only_so_many_are_run_again(self):
        outside, inside = ({str(number): end for number in range(9)} for end in (PASSED, FAILED))
        ends = compare.settled(outside, inside, lambda *_: PASSED, most=4)
        self.assertEqual(len(compare.differ(*ends).only_inside), 5)

    @unittest.skipUnless(os.path.exists(f"{compatibility.DOCS}/limits.md"), "no documents here")
    def test_each_limit_stands_in_the_document(self):
        with open(f"{compatibility.DOCS}/limits.md", encoding="utf-8") as file:
            text = " ".join(file.read().split())
        for program, _, words in compare.LIMITS:
            self.assertIn(words, text, program)


class Verdicts(unittest.TestCase):
    def judge(self, program, outside, inside):
        found, report, said = judged(lambda of: of.judge(program, "1.0", 1, outside, inside))
        return found[0].verdict, found[0].differs, report.failed, said

    def test_the_same_outcome_works(self):
        ends = {"a": PASSED, "b": FAILED}
        self.assertEqual(self.judge("p", ends, ends)[:3], ("works", "2 tests", 0))

    def test_a_failure_inside_fails_unless_it_is_a_limit(self):
        outside, inside = {"a": PASSED}, {"a": FAILED}
        self.assertEqual(self.judge("p", outside, inside)[:3], ("fails inside", "a", 1))
        self.assertEqual(self.judge("cuda-gdb", outside, inside)[:3], ("a limit", "a", 0))
        getter = "nvmlDeviceGetGpuInstanceProfileInfo(2)"
        self.assertEqual(self.judge("NVML getters", {getter: PASSED}, {getter: FAILED})[0],
                         "a limit")
        self.assertEqual(self.judge("NVML getters", outside, inside)[0], "fails inside")

    def test_nothing_inside_fails_and_nothing_outside_says_nothing(self):
        self.assertEqual(self.judge("p", {"a": PASSED}, {})[:3],
                         ("fails inside", "nothing ran inside", 1))
        verdict, _, failed, said = self.judge("p", {"a": FAILED}, {"a": FAILED})
        self.assertEqual((verdict, failed), ("fails outside, too", 0))
        self.assertIn("skipped: p: it fails outside, too", said)
        self.assertNotIn("PASS", said)

    def test_what_is_skipped_is_never_a_pass(self):
        found, report, said = judged(lambda of: of.skip("vLLM", 1, "python3 has no vllm"))
        self.assertEqual((found[0].verdict, report.passed, report.skipped), ("not run", 0, 1))
        self.assertIn("skipped: vLLM: python3 has no vllm", said)


class Groups(unittest.TestCase):
    def run_all(self, ends, count=1, **environment):
        """Runs the part; returns its kept rows by name and cards, the report, what is printed."""
        settings = Settings({f"EGPU_GPU_{name}": value for name, value in environment.items()})
        with tempfile.TemporaryDirectory() as folder:
            node, report = ProgramNode(folder, ends), Report(f"{folder}/result.txt")
            node.uuids, node.programs = ["GPU-0", "GPU-1"][:count], folder
            with open(f"{folder}/cuda-load", "w", encoding="utf-8"):
                pass
            patches = [mock.patch.object(tools, "tool", lambda name: f"/cuda/{name}"),
                       mock.patch.object(tools, "build", lambda *_: list(tools.BUILT)),
                       mock.patch.object(tools, "version_of", lambda _: "13.0"),
                       mock.patch("measure.programs.loads.installed", lambda _: "2.11.0"),
                       mock.patch("measure.programs.suites.installed", lambda _: "2.11.0")]
            with contextlib.ExitStack() as stack, contextlib.redirect_stdout(io.StringIO()) as said:
                for patch in patches:
                    stack.enter_context(patch)
                programs.run(Suite(node, report, settings))
            with open(f"{folder}/result.json", encoding="utf-8") as file:
                kept = json.load(file)
        by_name = {(row["program"], row["cards"]): row["verdict"] for row in kept["rows"]}
        return by_name, report, said.getvalue()

    def test_programs_that_end_well_in_both_places_pass(self):
        found, report, said = self.run_all(lambda *_: Output(0, "computed\nfine"), 2,
                                           GROUPS="pools frameworks profiler")
        self.assertEqual((report.failed, set(found.values())), (0, {"works"}), said)
        self.assertEqual(len(found), 12)
        self.assertIn(("JAX, cuda_async", 2), found)

    def test_one_that_aborts_inside_fails_and_the_others_go_on(self):
        def ends(container, line):
            aborts = container and "cuda_async" in line
            said = "Error when setting access" if aborts else "computed\nfine"
            return Output(134 if aborts else 0, said)

        found, report, said = self.run_all(ends, 2, GROUPS="frameworks")
        self.assertEqual((found["JAX, cuda_async", 2], report.failed), ("fails inside", 1))
        self.assertIn("inside (exit 134):\nError when setting access", said)

    def test_a_planted_fault_is_to_be_found_and_nothing_else(self):
        def ends(container, line):
            if "racecheck" in line and "none" not in line:
                return Output(0, "RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)")
            errors = 0 if "none" in line else 2
            if container and line.endswith("initcheck"):
                return Output(1, "Device not supported")
            return Output(0, f"program: cudaSuccess\nERROR SUMMARY: {errors} errors")

        found, report, said = self.run_all(ends, GROUPS="sanitizer")
        self.assertEqual((found["compute-sanitizer", 1], report.failed), ("fails inside", 1))
        self.assertIn("initcheck: planted fault\n", said)
        self.assertIn("outside 8/0/0, inside 7/1/0", said)

    def test_the_server_of_mps_has_two_clients(self):
        good = "server 12\nserved 20\nserved 21\nclient exit 0\nclient exit 0\n"
        self.assertEqual(set(tools.mps_outcomes(Output(0, good)).values()), {PASSED})
        bad = tools.mps_outcomes(Output(0, "client exit 1\nclient exit 1\nFailed to start"))
        self.assertEqual([name for name, end in bad.items() if end == PASSED],
                         ["the daemon starts"])

    def test_getters_are_compared_by_their_codes(self):
        said = "nvmlDeviceGetName 0\nnvmlDeviceGetFanSpeed_v2(1) 2\nnoise\nNVML_FI_DEV_X python"
        self.assertEqual(getters.codes(said), {"nvmlDeviceGetName": "0", "NVML_FI_DEV_X": "python",
                                               "nvmlDeviceGetFanSpeed_v2(1)": "2"})

    def test_suites_without_a_folder_are_skipped_by_name(self):
        found, report, said = self.run_all(lambda *_: Output(0, ""), 2, GROUPS="pytorch cupy "
                                           "samples llama")
        self.assertEqual((report.passed, report.failed), (0, 0), said)
        self.assertEqual(set(found.values()), {"not run"})
        self.assertIn("skipped: PyTorch test_cuda.py: EGPU_GPU_PROGRAMS_FOLDER names no", said)

    def test_quick_leaves_out_the_suites_and_unknown_groups_are_refused(self):
        quick = programs.selected(Settings({"EGPU_GPU_QUICK": "1"}))
        self.assertIn("events", quick)
        self.assertNotIn("pytorch", quick)
        with self.assertRaisesRegex(SystemExit, "no group of programs is called torch: sanitizer"):
            programs.selected(Settings({"EGPU_GPU_GROUPS": "torch"}))


class Events(unittest.TestCase):
    def setUp(self):
        self.ends = lambda *_: Output(0, "fine")

    def run_with(self, *told):
        with tempfile.TemporaryDirectory() as folder:
            node = ProgramNode(folder, self.ends)
            node.events = [{"kind": "admitted", "count": 1, "text": "a share"}, *told]
            return judged(lambda of: events.events(Places(node, 1, ""), of, None))

    def test_a_warning_is_named_and_fails(self):
        text = "a driver call that egpu does not know, control 0x20810108, was passed"
        found, report, said = self.run_with({"kind": "warning", "count": 3, "text": text})
        self.assertIn(f"warning x3: {text}", said)
        self.assertGreater(report.failed, 0)
        self.assertIn("fails inside", {row.verdict for row in found})

    def test_other_events_do_not_matter(self):
        _, report, said = self.run_with({"kind": "released", "count": 1, "text": "a share"})
        self.assertEqual(report.failed, 0, said)

    def test_a_program_that_ends_badly_only_inside_fails(self):
        self.ends = lambda container, _: Output(1 if container else 0, "no card")
        found, report, said = self.run_with()
        self.assertIn("exit 1, but not outside", said)
        self.assertGreater(report.failed, 0)

    def test_a_program_that_is_not_there_is_skipped(self):
        self.ends = lambda *_: Output(127, "not found")
        found, report, _ = self.run_with()
        self.assertEqual((report.passed, {row.verdict for row in found}), (0, {"not run"}))

    def test_no_events_at_all_prove_nothing(self):
        node = ProgramNode("", lambda *_: Output(0, ""))
        self.assertEqual(events.told(node, "a"), ["no event says that the container was admitted"])


class Suites(unittest.TestCase):
    SUITE = suites.PytestSuite("numba", "numba-cuda", "numba-cuda", "", ("numba.cuda.tests",))

    def run_suite(self, outcomes):
        """Runs a suite whose tests end as `outcomes(side, arguments)` says."""
        def ends(container, line):
            side = "inside" if container else "outside"
            found = re.search(r"run_tests.py ([0-9.]+) (\S+) (.*)", line)
            cases = "".join(
                f'<testcase name="{name}">{"" if end == PASSED else "<failure/>"}</testcase>'
                for name, end in outcomes(side, found[3]).items())
            with open(found[2], "w", encoding="utf-8") as file:
                file.write(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
            return Output(0, "")

        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(f"{folder}/shared")
            places = Places(ProgramNode(folder, ends), 1, "")
            with mock.patch.object(suites, "installed", lambda _: "0.30.4"):
                return judged(lambda of: suites.SuiteRun(places, self.SUITE, 9).run(of))

    def test_a_failure_that_does_not_come_again_is_none(self):
        def outcomes(side, arguments):
            bad = side == "inside" and arguments == "numba.cuda.tests"
            return {arguments: PASSED} if "::" in arguments else {
                "t::a": PASSED, "t::b": FAILED if bad else PASSED}

        found, report, said = self.run_suite(outcomes)
        self.assertEqual((found[0].verdict, found[0].version, report.failed),
                         ("works", "0.30.4", 0), said)

    def test_a_failure_that_comes_again_is_named(self):
        def outcomes(side, arguments):
            end = FAILED if side == "inside" else PASSED
            return {arguments: end} if "::" in arguments else {"t::a": PASSED, "t::b": end}

        found, report, said = self.run_suite(outcomes)
        self.assertEqual((found[0].verdict, found[0].differs, report.failed),
                         ("fails inside", "t::b", 1), said)

    def test_a_suite_that_runs_nothing_outside_is_skipped(self):
        found, report, _ = self.run_suite(lambda *_: {})
        self.assertEqual((found[0].verdict, report.passed, report.skipped), ("not run", 0, 1))

    def test_a_suite_whose_needs_are_missing_is_skipped(self):
        needy = dataclasses.replace(self.SUITE, needs=("filecheck",))
        with tempfile.TemporaryDirectory() as folder:
            run = suites.SuiteRun(Places(ProgramNode(folder, None), 1, folder), needy, 9)
            with mock.patch.object(suites, "installed", lambda name: name != "filecheck"):
                why = run.missing()
                os.makedirs(f"{folder}/python/filecheck")
                self.assertEqual(run.missing(), "")
        self.assertEqual(why, "neither python3 nor what was fetched has filecheck")

    def test_a_test_that_ends_the_process_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(f"{folder}/shared")

            def ends(container, line):
                with open(re.search(r"\S+\.xml", line)[0] + ".last", "w", encoding="utf-8") as file:
                    file.write("t::crash")
                return Output(139, "Segmentation fault")

            run = suites.SuiteRun(Places(ProgramNode(folder, ends), 1, ""), self.SUITE, 9)
            self.assertEqual(run.tests("inside", 9, [])[0],
                             {"t::crash": FAILED, suites.TO_ITS_END: FAILED})

    def test_a_run_that_ends_inside_before_its_time_fails_whatever_its_last_test_does_alone(self):
        def outcomes(side, arguments):
            if "::" in arguments:
                return {arguments: PASSED}
            ended = {"t::b": FAILED, suites.TO_ITS_END: FAILED}
            return ended if side == "inside" else {"t::a": PASSED, "t::b": PASSED}

        found, _, _ = self.run_suite(outcomes)
        self.assertEqual((found[0].verdict, found[0].differs), ("fails inside", suites.TO_ITS_END))


class Samples(unittest.TestCase):
    def sample(self, folder, name, recipe):
        os.makedirs(f"{folder}/Samples/0_Kind/{name}")
        for path, text in (("CMakeLists.txt", recipe), (f"{name}.cu", "")):
            with open(f"{folder}/Samples/0_Kind/{name}/{path}", "w", encoding="utf-8") as file:
                file.write(text)
        return f"{folder}/Samples/0_Kind/{name}"

    def test_a_sample_is_built_as_its_recipe_says_or_left_out(self):
        with tempfile.TemporaryDirectory() as folder:
            recipe = ("target_link_libraries(a PRIVATE CUDA::cublas CUDA::cudart CUDA::cuda_driver)"
                      "\nset_target_properties(a PROPERTIES CUDA_SEPARABLE_COMPILATION ON)")
            plain = self.sample(folder, "a", recipe)
            drawn = self.sample(folder, "b", "find_package(OpenGL)")
            command = samples.compile_command("nvcc", "/common", plain, "/built")
            self.assertEqual(command[-3:], [f"{plain}/a.cu", "-lcuda", "-lcublas"])
            self.assertIn("-rdc=true", command)
            self.assertIsNone(samples.compile_command("nvcc", "/common", drawn, "/built"))

    def test_a_waived_sample_is_skipped_and_one_that_fails_inside_fails(self):
        def ends(container, line):
            name = line.rsplit("/", 1)[-1]
            return Output({"waived": 2, "bad": 1 if container else 0}.get(name, 0), "")

        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(f"{folder}/shared/cuda-samples")
            for name in ("good", "bad", "waived"):
                self.sample(f"{folder}/cuda-samples", name, "")
                with open(f"{folder}/shared/cuda-samples/{name}", "w", encoding="utf-8"):
                    pass
            places = Places(ProgramNode(folder, ends), 1, folder)
            with mock.patch.object(samples, "tool", lambda _: "/cuda/nvcc"):
                found, report, said = judged(
                    lambda of: samples.samples(places, of, Settings({})))
        self.assertIn("outside 2/0/1, inside 1/1/1", said)
        self.assertEqual((found[0].verdict, found[0].differs, report.failed),
                         ("fails inside", "bad", 1))


class Llama(unittest.TestCase):
    def run_with(self, inside):
        """Runs the server, which says "a b" outside and something else inside."""
        def ends(container, _):
            return Output(0, f'says "{inside if container else "a b"}"\nfine')

        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(f"{folder}/llama.cpp")
            os.close(os.open(f"{folder}/llama.cpp/llama-server", os.O_CREAT, 0o755))
            places = Places(ProgramNode(folder, ends), 1, folder)
            return judged(lambda of: llama.llama(places, of, Settings({})))

    def test_the_same_words_pass_and_others_fail(self):
        self.assertEqual(self.run_with("a b")[0][0].verdict, "works")
        found, report, _ = self.run_with("a c")
        self.assertEqual((found[0].differs, report.failed), ("with the same words as outside", 1))


class Fetch(unittest.TestCase):
    def test_sources_come_from_a_tag_and_packages_by_version(self):
        source = next(one for one in fetch.TABLE if one.name == "cupy")
        clone, sparse, _ = fetch.commands(source, "/f")
        self.assertEqual(clone[-4:], ["--branch", "v14.2.0", source.url, "/f/cupy"])
        self.assertEqual(sparse[-1], "/tests/")
        [install] = fetch.commands(fetch.Package("expecttest", "0.3.0"), "/f")
        self.assertEqual(install[-1], "expecttest==0.3.0")
        self.assertIn("/f/python/expecttest", install)

    def test_what_cannot_be_had_is_told_and_not_listed(self):
        failed = subprocess.CompletedProcess([], 128, b"fatal: Could not resolve host\n")
        with tempfile.TemporaryDirectory() as folder:
            with mock.patch.object(fetch.subprocess, "run", lambda *_, **__: failed), \
                    contextlib.redirect_stdout(io.StringIO()) as said:
                self.assertEqual(fetch.main(folder, ["cupy"]), 1)
            self.assertEqual(fetch.versions(folder), {})
        self.assertEqual(said.getvalue(), "cupy 14.2.0: fatal: Could not resolve host\n")


class Compatibility(unittest.TestCase):
    @staticmethod
    def result(date, *kept):
        names = ("program", "version", "cards", "verdict", "differs")
        return f"{date}-x-programs.json", {
            "date": date, "build": "abc", "driver": "580", "card": "NVIDIA H200",
            "run": f"{date}.txt", "rows": [dict(zip(names, row)) for row in kept]}

    def test_the_newest_row_counts_but_not_one_that_was_not_run(self):
        old = self.result("2026-01-01", ("a", "1", 1, "fails inside", "x|y"),
                          ("b", "1", 1, "works", ""))
        new = self.result("2026-02-01", ("a", "2", 1, "works", "x|y"),
                          ("b", "", 1, "not run", "no b"), ("a", "2", 2, "works", ""))
        found = compatibility.document([new, old])
        table = [line for line in found.splitlines() if "| 580 |" in line]
        of_old, of_new = (f"[2026-0{month}-01](results/2026-0{month}-01.txt) abc |"
                          for month in (1, 2))
        self.assertEqual(table, [
            rf"| a | 2 | 580 | NVIDIA H200 | 1 | **works** | x\|y | {of_new}",
            f"| a | 2 | 580 | NVIDIA H200 | 2 | **works** |  | {of_new}",
            f"| b | 1 | 580 | NVIDIA H200 | 1 | **works** |  | {of_old}"])

    @unittest.skipUnless(os.path.exists(compatibility.DOCUMENT), "no documents here")
    def test_the_document_is_what_the_kept_results_say(self):
        results = list(compatibility.kept(f"{compatibility.DOCS}/results"))
        self.assertTrue(results)
        with open(compatibility.DOCUMENT, encoding="utf-8") as file:
            self.assertEqual(file.read(), compatibility.document(results), "make compatibility")


if __name__ == "__main__":
    unittest.main()
