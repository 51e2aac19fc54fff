"""Draws what batch work costs requests, by system: latency_beside_batch.py ROWS.tsv > PICTURE.svg. Standard library only.

A row of the file: TABLE, KERNELS of the batch work, SYSTEM, what it has of the time that the requests leave, and the requests' 99th
percentile, both in percent: of that time, and of alone. EGPU_GPU_ONLY=latency writes them."""

import math
import sys

LEFT, TOP, WIDTH, HEIGHT, TABLE = 64, 64, 440, 380, "latency, 1.64 ms at 30 percent"
# The name of each system for people, and its colour.
SYSTEMS = {
    "egpu-harvest": ("egpu, priority", "egpu"), "egpu-strict": ("egpu, strict", "strict"), "time-slicing": ("time-slicing", "slices"),
    "MPS": ("MPS, client priorities", "mps"), "HAMi-core": ("HAMi-core, task priorities", "hami"),
}
# The outline of each kernel's mark around (0, 0).
KERNELS = {"0.1 ms": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z", "3 ms": "M-4.5 -4.5h9v9h-9z", "300 ms": "M0 -6L5.5 4.5h-11z"}
TIMES = (1, 1.25, 2, 5, 10, 100, 1000)
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 12px; fill: #59636e }
.title { font-size: 16px; font-weight: 600 } .grid { stroke: #d1d9e0; fill: none } .aim { fill: #0969da; opacity: .08 }
.mark { fill: none; stroke-width: 2; stroke: #59636e } .paper { fill: #ffffff }
.mark.egpu { stroke: #0969da } .mark.strict { stroke: #8250df } .mark.hami { stroke: #d4582a } .mark.mps { stroke: #1a7f37 } .mark.slices { stroke: #9a6700 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } .grid { stroke: #30363d } .paper { fill: #0d1117 } .mark { stroke: #9198a1 }
  .mark.egpu { stroke: #58a6ff } .mark.strict { stroke: #bc8cff } .mark.hami { stroke: #ff9b63 } .mark.mps { stroke: #3fb950 } .mark.slices { stroke: #d29922 }
}
"""


def across(percent):
    return LEFT + min(percent, 150) / 150 * WIDTH


def up(times, most):
    """A logarithmic scale; what is beyond it stands at its top, with its figure."""
    return TOP + HEIGHT - math.log(min(max(times, 1), most)) / math.log(most) * HEIGHT


def mark(kernel, left, top, css):
    return f'<path class="mark {css}" transform="translate({left:.1f} {top:.1f})" d="{KERNELS[kernel]}"/>'


def text(left, top, words, css="", anchor="start"):
    return f'<text x="{left:.1f}" y="{top:.1f}" class="{css}" text-anchor="{anchor}">{words}</text>'


def frame(most):
    corner = up(1.25, most)
    yield f'<rect class="aim" x="{across(90):.1f}" y="{corner:.1f}" width="{across(150) - across(90):.1f}" height="{up(1, most) - corner:.1f}"/>'
    for percent in (0, 50, 90, 100, 150):
        yield f'<path class="grid" d="M{across(percent):.1f} {up(1, most):.1f}V{TOP}"/>'
    for percent in (0, 50, 100, 150):
        yield text(across(percent), up(1, most) + 20, f"{percent} %", "small", "middle")
    for times in (one for one in TIMES if one <= most):
        yield f'<path class="grid" d="M{across(0)} {up(times, most):.1f}H{across(150)}"/>'
        yield text(across(0) - 8, up(times, most) + 4, f"{times:g}x", "small", "end")
    yield text(LEFT, 28, "Latency beside batch work", "title")
    yield text(LEFT, 48, "requests of 1.64 ms at 30 percent of one card; shaded: what is to be reached", "small")
    yield text(across(75), up(1, most) + 44, "batch work, of what the requests leave", anchor="middle")
    yield f'<text transform="translate(16 {TOP + HEIGHT / 2}) rotate(-90)" text-anchor="middle">requests\' p99, of alone</text>'


def legend(systems):
    left, top = LEFT + WIDTH + 36, TOP + 16
    for number, system in enumerate(systems):
        yield mark("3 ms", left + 6, top + 24 * number - 4, SYSTEMS[system][1])
        yield text(left + 22, top + 24 * number, SYSTEMS[system][0])
    top += 24 * len(systems) + 24
    yield text(left, top, "beside kernels of", "small")
    for number, kernel in enumerate(KERNELS):
        yield mark(kernel, left + 6, top + 24 + 24 * number - 4, "")
        yield text(left + 22, top + 24 + 24 * number, kernel)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        cells = [line.rstrip("\n").split("\t") for line in file]
    rows = [(system, kernel, float(rest), float(tail) / 100) for table, kernel, system, rest, tail in cells if table == TABLE and rest != "nan"]
    most = min(100, max(10, 1.2 * max(tail for *_, tail in rows)))
    width, height = LEFT + WIDTH + 230, TOP + HEIGHT + 60
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">')
    print("<title>Latency beside batch work: the requests' tail against what the batch work has, by system</title>")
    print(f'<style>{STYLE}</style>\n<rect class="paper" width="{width}" height="{height}" rx="6"/>')
    points = [mark(kernel, across(rest), up(tail, most), SYSTEMS[system][1]) for system, kernel, rest, tail in rows]
    points += [text(across(rest) + 10, up(tail, most) + 4, f"{tail:.0f}x", "small") for *_, rest, tail in rows if tail > most]
    print("\n".join([*frame(most), *points, *legend([one for one in SYSTEMS if any(row[0] == one for row in rows)]), "</svg>"]))


main()
