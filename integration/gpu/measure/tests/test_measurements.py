"""Measurements on a made-up node: their tables and checks, without a card."""

import contextlib
import io
import os
import tempfile
import unittest
from unittest import mock

from measure import attacks, compute, disturbed, floor, memory, plot, shares
from measure.report import Report
from measure.settings import Settings, select
from measure.suite import Suite
from measure.tests.fake_node import FILLED, FakeNode


def measure(run, node, **environment):
    """Runs measurements; returns their report and everything that they printed."""
    settings = Settings({f"EGPU_GPU_{name}": value for name, value in environment.items()})
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(
            disturbed, "BusyCores", contextlib.nullcontext):
        report = Report(f"{folder}/result.txt")
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            run(Suite(node, report, settings))
        report.files = sorted(os.listdir(folder))
    return report, output.getvalue()


class Floor(unittest.TestCase):
    def test_each_place_is_shown_beside_outside(self):
        node, ran = FakeNode(), []
        node.said = lambda place, command: ran.append(command) or (
            "40.50" if "answer" in command else "20.50")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            with floor.Floor(Suite(node, None, None)) as measured:
                measured.compare("4 MiB", "@cuda-load", "malloc", rounds=4, cpus=(3, 5))
        self.assertIn("answer        40.50  quartiles 40.50 to 40.50  more    20.00  1.9756x",
                      said.getvalue())
        self.assertIn("share         20.50", said.getvalue())
        self.assertIn(("taskset", "-c", "5", "/work/tools/notify-floor", "answer", "--", "taskset",
                       "-c", "3", "/work/tools/cuda-load", "malloc"), ran)


class Compute(unittest.TestCase):
    def test_every_measurement_passes_where_shares_are_as_asked(self):
        report, said = measure(compute.run, FakeNode(), BATCHES="16 32")
        self.assertEqual((report.failed, report.skipped), (0, 0), said)
        self.assertGreater(report.passed, 50)
        self.assertEqual(report.files, ["result.svg", "result.tsv"])

    def test_caps_together_print_the_table_of_the_results(self):
        _, said = measure(compute.run, FakeNode(), COMPUTE="together")
        self.assertIn("alone, outside: short 1000.000/s, clock and power 1980 MHz", said)
        self.assertIn("10/30/60:  10: 10.00  30: 30.00  60: 60.00  sum 100.00\n"
                      "PASS 10/30/60: each within 1 point (worst 0.00)\n"
                      "PASS 10/30/60: the sum is at least 1 - 0.6 ms x containers / 100 ms\n", said)

    def test_a_container_that_takes_more_than_its_cap_fails(self):
        report, said = measure(compute.run, FakeNode(greed=1.1), COMPUTE="caps", LOADS="short")
        self.assertEqual(report.failed, 1)
        self.assertIn("FAIL short: each cap within 1 point (worst 9.00)", said)

    def test_a_load_that_does_nothing_fails_its_checks(self):
        node = FakeNode(greed=0)
        report, said = measure(compute.run, node, COMPUTE="priority flood together")
        self.assertIn("FAIL 20/80: each within 1 point (worst 80.00)", said)
        self.assertIn("FAIL its share holds within 1 point in a flood", said)

    def test_a_measurement_that_breaks_off_fails_and_the_next_one_runs(self):
        node = FakeNode()
        node.granted = mock.Mock(side_effect=OSError("gone"))
        report, said = measure(compute.run, node, COMPUTE="two priority")
        self.assertIn("FAIL two runs to its end", said)
        self.assertIn("PASS high has at least 90 percent", said)
        self.assertEqual(report.failed, 1)

    def test_starts_print_batches_and_what_was_lost(self):
        report, said = measure(compute.run, FakeNode(), COMPUTE="starts")
        self.assertEqual((report.failed, report.passed), (0, 15), said)
        self.assertIn("25+75, 5 starts/s: 75 percent has 75.00 and is told that it lost 0.10; "
                      "batches of 100 ms: p50 100.0 p90 100.0 max 100.0 ms; lost_us 21800 "
                      "edge_wait_us 43600 slow_edges ", said)
        self.assertIn("outside, without a cap, 5 starts/s: has 100.00 percent of what", said)
        self.assertIn("CUDA_VISIBLE_DEVICES=GPU-0 /tools/cuda-load init >/dev/null & sleep 0.200; ",
                      disturbed.starter("/tools", "GPU-0", 5))

    def test_an_unknown_measurement_is_refused_by_name(self):
        with self.assertRaisesRegex(SystemExit, "no measurement is called caps2: caps, together"):
            select(compute.PARTS, ["caps2"])
        with self.assertRaisesRegex(SystemExit, "EGPU_GPU_ONLY=all: one of memory"):
            Settings({"EGPU_GPU_ONLY": "all"})

    def test_endless_runs_only_when_it_is_asked_for(self):
        parts = select(compute.PARTS, [], without=[disturbed.endless])
        self.assertNotIn(disturbed.endless, parts)
        self.assertIn(shares.two, parts)


class Memory(unittest.TestCase):
    def test_measurements_pass_on_what_good_programs_print(self):
        node = FakeNode()
        parts = "random pinned large many sixteen vendor"
        with mock.patch.object(memory, "in_each", self.in_each):
            report, said = measure(memory.run, node, MEMORY=parts, PROGRAMS="25")
        self.assertEqual((report.failed, report.skipped), (0, 0), said)
        self.assertIn("by exit code (2 is out of memory):\n  exit 2: 25\n", said)
        self.assertIn("     32 exit 0\n", said)
        self.assertIn("16 containers filled their 2 GiB at once, 16 of them as they should", said)
        self.assertIn("3276      out of memory: CUDA\n", said)

    @staticmethod
    def in_each(_, containers, command):
        is_fill = "fill" in command("c1")
        return [FILLED if is_fill else "exit 0" for _ in containers]

    def test_memory_that_stays_charged_fails(self):
        node = FakeNode()
        node.used_mib = lambda _: 3
        report, said = measure(memory.run, node, MEMORY="many")
        self.assertIn("many is still charged with 3 MiB", said)
        self.assertIn("FAIL nothing is charged any more", said)
        self.assertEqual(report.failed, 1)

    def test_fill_is_read_as_it_is_printed(self):
        self.assertEqual(memory.filled(FILLED), (1800000000, 1245184, 2147483648))
        self.assertIsNone(memory.filled("cuInit: CUDA_ERROR_NO_DEVICE"))

    def test_costs_are_compared_in_the_table_of_the_results(self):
        names = "launches initialisation allocation training"
        report, said = measure(memory.run, FakeNode(), MEMORY=names, PAIRS="2")
        self.assertEqual(report.failed, 0, said)
        self.assertIn("no container of runc can be had: it is left out\n"
                      "init_ms                      outside       300.25 inside       300.25 "
                      "in/out 1.0000 difference 0.00\n"
                      "  each, out: 300.25 300.25 300.25 300.25\n", said)

    def test_a_dearer_container_fails(self):
        node = FakeNode()
        node.exec = lambda *command, **_: "330.5"
        report, said = measure(memory.run, node, MEMORY="initialisation", PAIRS="1")
        self.assertIn("FAIL CUDA initialisation: at most 1.05x", said)


class Attacks(unittest.TestCase):
    def judged(self, code, said):
        """Judges a case that ended with a code and printed something; returns what is printed."""
        with tempfile.TemporaryDirectory() as folder:
            node, report = FakeNode(), Report(f"{folder}/result.txt")
            node.work, node.files["case.txt"] = folder, said
            cases = attacks.Cases(Suite(node, report, Settings({"EGPU_GPU_DRY": "1"})))
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                cases.judge("a::case", code, 7, "case.txt")
        return output.getvalue(), (report.passed, report.failed, report.skipped)

    def test_a_case_is_judged_by_its_end_and_its_output(self):
        passed = "test a::case ... ok\ntest result: ok. 1 passed; 0 failed"
        self.assertEqual(self.judged(0, passed), ("PASS a::case (7 s)\n", (1, 0, 0)))
        skipped = f"skipped: a::case: needs a card\n{passed}"
        self.assertEqual(self.judged(0, skipped), ("skipped: a::case: needs a card\n", (0, 0, 1)))
        failed = "failures:\n\n---- a::case ----\nno such grant\n\nfailures:\n    a::case\n"
        said, counts = self.judged(101, failed)
        self.assertEqual(counts, (0, 1, 0))
        self.assertIn("FAIL a::case (exit 101, 7 s), case.txt\n---- a::case ----\nno such", said)
        self.assertEqual(self.judged(0, "0 passed")[1], (0, 1, 0))

    def test_a_case_that_does_not_end_fails(self):
        for code in (124, 137, -9):
            said, counts = self.judged(code, "")
            self.assertIn("did not end in 60 s", said)
            self.assertEqual(counts, (0, 1, 0))


class Picture(unittest.TestCase):
    def test_each_row_is_a_mark_and_each_load_has_its_legend(self):
        rows = [("cap", "short", "one", "90", "89.81"), ("cap", "short", "one", "50", "49.95"),
                ("cap", "<long>", "one", "25", "nan")]
        picture = plot.svg(rows)
        self.assertEqual(picture.count("<circle"), 3)
        self.assertEqual(picture.count("<rect"), 2)
        self.assertIn("cap: &lt;long&gt;", picture)


if __name__ == "__main__":
    unittest.main()
