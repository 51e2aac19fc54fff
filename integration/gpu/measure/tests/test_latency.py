"""Requests beside batch work on a made-up node: tables, checks, what is cut off."""

import math
import random
import unittest
from contextlib import contextmanager
from unittest import mock

from measure import latency, served
from measure.tests.fake_node import FakeNode
from measure.tests.test_measurements import measure


class LatencyNode(FakeNode):
    """Serves each request alone, or a switch later beside batch work, which has the rest."""

    def __init__(self, switch_us=150, left=0.65, cut=None, **others):
        super().__init__(**others)
        self.switch_us, self.left, self.cut = switch_us, left, cut
        self.lines, self.commands = [], []

    @contextmanager
    def setting(self, line):
        self.lines.append(line)
        yield

    def on_host(self, *command, **_):
        return "/bin/mps" if "command -v" in command[-1] else super().on_host(*command)

    def spawn(self, container, command, path, **_):
        program = super().spawn(container, command, path)
        self.commands.append(program.line)
        if "latency-load serve" in program.line or "latency-load decode" in program.line:
            words = program.line.split("latency-load ")[1].split()
            load = float(words[3]) / 100 if words[0] == "serve" else 0
            count = int(words[4 if load else 3])
            batch = [one for one in self.loads if " batch " in one.line and one.is_busy()]
            is_cut = self.cut and self.cut in program.line
            requests = self.serve(int(words[2]), load, count // 3 if is_cut else count,
                                  self.switch_us if batch else 0)
            program.end = self.now + requests[-1][0] + requests[-1][1] + 50_000
            lines = [f"served {len(requests)} requests in 1.000 s from {self.now + 50_000} to "
                     f"{program.end}", *(" ".join(map(str, one)) for one in requests)]
            self.files[path] = "latency p50 1.7\n" + "\n".join(lines) + "\n"
        return program

    @staticmethod
    def serve(length_us, load, count, more_us):
        arrivals, arrival, free, requests = random.Random(1), 0, 0, []
        for _ in range(count):
            arrival = arrival + arrivals.expovariate(load / length_us) if load else free
            start = max(arrival, free)
            free = start + length_us + 100 + more_us
            requests.append((int(arrival), int(free - arrival), 25 + more_us, int(start - arrival)))
        return requests

    def share(self, container, busy):
        if container and container.startswith("cap"):
            return 0.3
        others = [one.container for one in busy if one.container]
        if container and container.startswith("low"):
            if "high" in others:
                return 0.0
            lines = [one.line for one in self.loads if one.begin <= self.now < one.end]
            rarely = any(" 0.82 " in line for line in lines)
            is_served = any(" serve " in line for line in lines)
            part = 0.98 if rarely else self.left if is_served else 1
            return part / sum(one.startswith("low") for one in others)
        return 0.7 if "cap" in others else 1.0


class Latency(unittest.TestCase):
    def test_what_is_reached_passes_each_aim(self):
        node = LatencyNode()
        report, said = measure(latency.run, node, REQUESTS="400", PEER="/lib/peer.so",
                               LATENCY="main decode several busy")
        self.assertEqual((report.failed, report.skipped), (0, 0), said)
        self.assertEqual(node.lines, ['priority = "strict"'])
        self.assertEqual(report.files, ["result.tsv"])
        main = [row for row in report.rows if row[0] == "latency, 1.64 ms at 30 percent"]
        self.assertEqual(len(main), 15)
        self.assertEqual({row[2] for row in main}, set(latency.SYSTEMS))
        self.assertTrue(any("CUDA_MPS_CLIENT_PRIORITY=1 /work/tools/latency-load batch" in one
                            for one in node.commands))

    def test_a_longer_tail_and_a_starved_low_one_fail(self):
        report, said = measure(latency.run, LatencyNode(switch_us=2000, left=0.02), REQUESTS="400",
                               LATENCY="main", SYSTEMS="egpu-harvest")
        self.assertIn("FAIL 1.64 ms at 30 percent beside 3 ms: p99 is at most 1.25x of alone", said)
        self.assertIn("FAIL 1.64 ms at 30 percent beside 3 ms: low has at least 90 percent", said)
        self.assertEqual(report.skipped, 0)

    def test_a_queue_that_does_not_drain_is_cut_off_and_said_so(self):
        _, said = measure(latency.run, LatencyNode(cut="CLIENT_PRIORITY=0"), REQUESTS="300",
                          LATENCY="main", SYSTEMS="MPS")
        self.assertIn("100 of 300, cut off: its queue did not drain", said)

    def test_who_serves_nobody_fails_and_the_rest_goes_on(self):
        with mock.patch.object(served, "read", lambda _: None):
            report, said = measure(latency.run, LatencyNode(), LATENCY="decode second")
        self.assertIn("high served nobody:", said)
        self.assertEqual((report.failed, report.passed), (4, 2), said)

    def test_systems_are_known_by_name(self):
        with self.assertRaisesRegex(SystemExit, "no system is called egpu: egpu-harvest, "):
            measure(latency.run, LatencyNode(), SYSTEMS="egpu")


class Served(unittest.TestCase):
    SAID = ("latency p50 1\nserved 3 requests in 0.010 s from 1000 to 11000\n"
            "0 2000 20 0\n1000 3000 30 1000\n9000 2000 40 0\n")

    def test_what_is_printed_is_read(self):
        found = served.read(self.SAID)
        self.assertEqual((found.latency_ms(0.5), found.latency_ms(0.99)), (2.0, 3.0))
        self.assertEqual(found.first_ms(0.99, True), 0.04)
        self.assertEqual(found.first_ms(0.99, False), 0.03)
        self.assertEqual(found.service_us(), [2000, 2000, 2000])
        self.assertEqual(found.percent_of_card(), 60)
        self.assertEqual(found.five_parts(), [])

    def test_a_queue_with_longer_services_is_lindleys(self):
        found = served.read(self.SAID)
        self.assertEqual(found.queued_ms(0, 0, 1), 3.0)
        self.assertEqual(found.queued_ms(500, 500, 1), 4.0)
        self.assertEqual(found.queued_ms(500, 700, 1), 4.2)

    def test_what_is_cut_is_nothing(self):
        self.assertIsNone(served.read(self.SAID[:-14]))
        self.assertIsNone(served.read("cuInit: CUDA_ERROR_NO_DEVICE\n"))
        self.assertIsNone(served.read(""))

    def test_a_percent_that_is_not_known_is_nan(self):
        suite = latency.Latency(LatencyNode(), None, None)
        self.assertTrue(math.isnan(suite.low_percent(3000, None)))


if __name__ == "__main__":
    unittest.main()
