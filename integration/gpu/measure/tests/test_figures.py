"""Statistics on recorded figures: docs/results has the runs."""

import math
import unittest

from measure import figures

# The H200 of 2026-11-22, CUDA initialisation.
OUTSIDE, INSIDE = [284.72, 320.69, 307.55, 285.43], [295.30, 293.45, 327.29, 320.96]


class Statistics(unittest.TestCase):
    def test_medians_and_their_ratio_are_those_of_the_recorded_table(self):
        outside, inside = figures.median(OUTSIDE), figures.median(INSIDE)
        self.assertEqual((figures.text(outside), figures.text(inside)), ("296.49", "308.13"))
        self.assertEqual(figures.text(figures.ratio(inside, outside), 4), "1.0393")
        self.assertEqual(figures.text(inside - outside, 2), "11.64")

    def test_ratio_of_means_has_the_errors_of_both(self):
        ratio, error = figures.ratio_of_means([9, 11, 10], [20, 20, 20])
        self.assertAlmostEqual(ratio, 0.5)
        self.assertAlmostEqual(error, 0.5 * (1 / 3**0.5) / 10)

    def test_rate_is_between_two_instants_of_the_samples(self):
        said = "ready\n1000000 0\n2000000 100.000\n3000000 300.5\n4000000 400\n40"
        samples = figures.samples(said)
        self.assertEqual(len(samples), 4)
        self.assertAlmostEqual(figures.rate(samples, 1_500_000, 2_500_000), 150.25)
        self.assertAlmostEqual(figures.rate(samples, 1_000_000, 3_500_000), 140.1)

    def test_batches_are_timed_by_interpolation(self):
        samples = [(0, 0.0), (50_000, 50.0), (100_000, 50.0), (200_000, 150.0)]
        times = figures.batch_times(samples, 0, 200_000, 25.0)
        self.assertEqual([round(time) for time in times], [25, 75, 25, 25, 25])
        self.assertEqual(figures.batch_times([], 0, 10, 1), [])
        self.assertEqual([figures.quantile(times, part) for part in (0.5, 1)], [25.0, 75.0])
        self.assertIsNone(figures.quantile([], 0.5))

    def test_rate_of_samples_that_do_not_span_the_time_is_none(self):
        samples = [(1_000_000, 0.0), (2_000_000, 100.0)]
        self.assertIsNone(figures.rate(samples, 900_000, 1_500_000))
        self.assertIsNone(figures.rate(samples, 1_500_000, 2_100_000))
        self.assertIsNone(figures.rate([], 1, 2))

    def test_a_share_of_nothing_is_no_figure(self):
        self.assertEqual(figures.percent(357.25, 1429.016), 25.0)
        self.assertEqual(figures.percent(None, 10), 0)
        self.assertTrue(math.isnan(figures.percent(1, None)))
        self.assertEqual(figures.text(math.nan, 2), "nan")

    def test_what_is_missing_passes_no_check(self):
        for missing in (None, math.nan):
            self.assertFalse(figures.at_least(missing, 0))
            self.assertFalse(figures.at_most(missing, 100))
            self.assertFalse(figures.within(missing, 0, 100))

    def test_worst_error_is_of_the_cap_that_is_farthest(self):
        # The H200 of 2026-11-21: 10/30/60.
        self.assertAlmostEqual(figures.worst_error([(9.95, 10), (29.40, 30), (59.38, 60)]), 0.62)
        self.assertEqual(figures.worst_error([(10, 10), (math.nan, 30)]), 100)

    def test_only_figures_at_the_beginning_of_lines_count(self):
        said = "examples/s 1234.5 batch 64\ncuInit: CUDA_ERROR\n77 of 8\n"
        self.assertEqual(figures.first_figures(said, 5), ["1234.5", "77"])
        self.assertEqual(figures.first_figures(said, 1), ["1234.5"])


if __name__ == "__main__":
    unittest.main()
