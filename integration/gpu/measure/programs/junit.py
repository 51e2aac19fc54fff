"""Results of pytest, read from its JUnit XML."""

import xml.etree.ElementTree as tree

from measure.programs.compare import FAILED, PASSED, SKIPPED


def outcomes(text):
    """Returns the outcome of each test by its name; of none where the file is cut off.

    A test that fails and whose teardown fails has two entries: the worse counts. One that is
    expected to fail, and does, counts as skipped.
    """
    try:
        root = tree.fromstring(text)
    except tree.ParseError:
        return {}
    found = {}
    for case in root.iter("testcase"):
        name = name_of(case)
        end = outcome_of(case)
        if FAILED not in (end, found.get(name)):
            end = SKIPPED if SKIPPED in (end, found.get(name)) else end
        else:
            end = FAILED
        found[name] = end
    return found


def name_of(case):
    """The name that run_tests.py adds; else the class's name and the test's."""
    for one in case.iter("property"):
        if one.get("name") == "name":
            return one.get("value")
    return "::".join(part for part in (case.get("classname"), case.get("name")) if part)


def outcome_of(case):
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return FAILED
    return SKIPPED if "skipped" in kinds else PASSED
