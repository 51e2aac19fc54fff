"""Statistics of the measurements. What could not be measured is None, a share of it is nan."""

import bisect
import math
import re
import statistics

SAMPLE = re.compile(r"^([0-9]+) ([0-9.]+)$", re.MULTILINE)


class Percent(float):
    """A share, which is written to a hundredth."""

    def __format__(self, spec):
        return super().__format__(spec or ".2f")


def samples(text):
    """Reads a load's lines "MICROSECONDS WORK"; one that is not whole yet is left out."""
    whole = text[: text.rfind("\n") + 1]
    return [(int(time), float(work)) for time, work in SAMPLE.findall(whole)]


def work_at(series, instant):
    """Interpolates how much was done by an instant; None before the first and after the last."""
    after = bisect.bisect_right(series, (instant, math.inf))
    if after in (0, len(series)):
        return None
    (before_us, old), (after_us, new) = series[after - 1], series[after]
    return old + (new - old) * (instant - before_us) / (after_us - before_us)


def rate(series, start_us, end_us):
    """Returns the work done a second between two instants of the samples."""
    start, end = work_at(series, start_us), work_at(series, end_us)
    return None if start is None or end is None else (end - start) / (end_us - start_us) * 1e6


def batch_times(series, start_us, end_us, work):
    """Returns how long each batch of so much work took, between two instants; milliseconds."""
    series = [one for one in series if start_us <= one[0] <= end_us]
    if not series or work <= 0:
        return []
    ends, due = [], series[0][1]
    for (before_us, old), (after_us, new) in zip(series, series[1:]):
        while old <= due < new:
            ends.append(before_us + (after_us - before_us) * (due - old) / (new - old))
            due += work
    return [(after - before) / 1000 for before, after in zip(ends, ends[1:])]


def quantile(values, part):
    """Returns the figure that so much of all are at most; none of no figures."""
    values = sorted(values)
    return values[min(int(len(values) * part), len(values) - 1)] if values else None


def percent(part, whole):
    """Returns the part in percent of the whole, to a hundredth; a missing part is none."""
    return Percent(round(100 * (part or 0) / whole, 2) if whole else math.nan)


def ratio(one, other):
    return round(one / other, 4) if one is not None and other else None


def median(values):
    return statistics.median(values) if values else None


def worst_error(pairs):
    """Returns by how much the worst of (achieved, asked) is off; what is no figure is 100 off."""
    return max((100 if math.isnan(have) else abs(have - want) for have, want in pairs), default=0)


def ratio_of_means(one, other):
    """Returns the ratio of the means of two lists of figures, and its standard error."""
    if min(len(one), len(other)) < 2:
        return math.nan, math.nan
    (mean, error), (other_mean, other_error) = (
        (statistics.mean(of), statistics.stdev(of) / len(of) ** 0.5 / statistics.mean(of))
        for of in (one, other)
    )
    ratio = mean / other_mean
    return ratio, ratio * (error**2 + other_error**2) ** 0.5


def at_least(have, want):
    return have is not None and have >= want


def at_most(have, want):
    return have is not None and have <= want


def within(have, want, by):
    return have is not None and abs(have - want) <= by


def text(figure, digits=None):
    """Writes a figure for a table; one that is missing is empty."""
    if figure is None:
        return ""
    return f"{figure:.10g}" if digits is None else f"{figure:.{digits}f}"


def first_figures(output, lines):
    """Finds the figures that a program's lines begin with; none in what it says when it fails."""
    found = re.findall(r"^(?:examples/s )?([0-9]+(?:\.[0-9]+)?)", output, re.MULTILINE)
    return found[:lines]
