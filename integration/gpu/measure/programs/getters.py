"""NVML's getters inside against outside, by the code that they return."""

import re

from measure.programs.compare import FAILED, PASSED
from measure.programs.places import SIDES
from measure.programs.rows import installed


def codes(text):
    """Reads the lines "NAME CODE" of nvml_getters.py."""
    found = re.findall(r"^(\w+(?:\([0-9]+\))?) (-?[0-9]+|python)$", text, re.MULTILINE)
    return dict(found)


def as_outcomes(found):
    return {name: PASSED if code == "0" else FAILED for name, code in found.items()}


def getters(places, rows, _):
    name, version = "NVML getters", installed("nvidia-ml-py")
    if not version:
        return rows.skip(name, places.cards, "python3 has no nvidia-ml-py")
    ends = places.both(["python3", "@nvml_getters.py"], seconds=60)
    found = {side: codes(ends[side].text) for side in SIDES}
    outside, inside = found["outside"], found["inside"]
    for getter in sorted(outside.keys() & inside.keys()):
        if outside[getter] != inside[getter]:
            print(f"  {getter}: outside {outside[getter]}, inside {inside[getter]}")
    if outside.keys() != inside.keys():
        print("asked on one side only:", *sorted(outside.keys() ^ inside.keys())[:10])
    return rows.judge(name, version, places.cards, as_outcomes(outside), as_outcomes(inside),
                      said=ends["inside"].text[-1000:] if not inside else "")
