"""Draws the picture of the README: asked_and_achieved.py ROWS.tsv > PICTURE.svg. Standard library only.

A row of the file: TABLE, LOAD, WHO, ASKED and ACHIEVED (both in percent of what the load does alone)."""

import sys

LEFT, TOP, SIDE = 64, 64, 440
SYSTEMS = {"egpu, one cap": "egpu", "HAMi-core": "hami"}
# The name of each load for people, and the outline of its mark around (0, 0).
LOADS = {
    "short": ("kernels of 0.7 ms", "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z"),
    "long": ("kernels of 300 ms", "M-4.5 -4.5h9v9h-9z"),
    "graph": ("CUDA graphs", "M0 -6L5.5 4.5h-11z"),
    "cooperative": ("cooperative launches", "M0 -6.5L6.5 0L0 6.5L-6.5 0z"),
    "training": ("PyTorch training", "M-5 -5l10 10m0 -10l-10 10"),
}
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 12px; fill: #59636e }
.title { font-size: 16px; font-weight: 600 } .grid { stroke: #d1d9e0; fill: none } .exact { stroke: #59636e; stroke-dasharray: 5 4 }
.mark { fill: none; stroke-width: 2 } .line { fill: none; stroke-width: 1; opacity: .45 }
.egpu { stroke: #0969da } .hami { stroke: #d4582a } text.egpu { fill: #0969da; stroke: none } text.hami { fill: #d4582a; stroke: none }
text.egpu, text.hami { font-weight: 600 } .load { stroke: #59636e } .paper { fill: #ffffff }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } .grid { stroke: #30363d } .exact, .load { stroke: #9198a1 } .paper { fill: #0d1117 }
  .egpu { stroke: #58a6ff } .hami { stroke: #ff9b63 } text.egpu { fill: #58a6ff } text.hami { fill: #ff9b63 }
}
"""


def across(percent):
    return LEFT + percent / 100 * SIDE


def up(percent):
    return TOP + SIDE - min(percent, 100) / 100 * SIDE


def mark(load, left, top, css):
    return f'<path class="mark {css}" transform="translate({left:.1f} {top:.1f})" d="{LOADS[load][1]}"/>'


def text(left, top, words, css="", anchor="start"):
    return f'<text x="{left}" y="{top}" class="{css}" text-anchor="{anchor}">{words}</text>'


def frame():
    for percent in range(0, 101, 25):
        yield f'<path class="grid" d="M{across(percent)} {up(0)}V{up(100)}M{across(0)} {up(percent)}H{across(100)}"/>'
        yield text(across(percent), up(0) + 20, f"{percent} %", "small", "middle")
        yield text(across(0) - 8, up(percent) + 4, f"{percent} %", "small", "end")
    yield f'<path class="exact" d="M{across(0)} {up(0)}L{across(100)} {up(100)}"/>'
    yield text(LEFT, 28, "Compute caps: asked and achieved", "title")
    yield text(LEFT, 48, "one capped container on an NVIDIA H200, in percent of the same load alone; the dashed line is exact", "small")
    yield text(across(50), up(0) + 44, "asked", anchor="middle")
    yield f'<text transform="translate(16 {up(50)}) rotate(-90)" text-anchor="middle">achieved</text>'


def legend(rows):
    left, top = LEFT + SIDE + 36, TOP + 16
    worst = {system: max(abs(asked - achieved) for s, _, asked, achieved in rows if s == system) for system in SYSTEMS.values()}
    yield text(left, top, "egpu", "egpu")
    yield text(left, top + 20, f"at most {worst['egpu']:.2f} points off")
    yield text(left, top + 56, "HAMi-core", "hami")
    yield text(left, top + 76, f"up to {worst['hami']:.0f} points off")
    yield text(left, top + 96, "8f3a89c, preloaded, policy force", "small")
    for number, (load, (name, _)) in enumerate(LOADS.items()):
        yield mark(load, left + 6, top + 140 + 24 * number, "load")
        yield text(left + 22, top + 144 + 24 * number, name)
    for number, line in enumerate(["driver 580.159.04, period 100 ms,", "2026-11-21: docs/results"]):
        yield text(left, TOP + SIDE - 20 + 18 * number, line, "small")


def points(rows):
    for system in reversed(SYSTEMS.values()):
        for load in LOADS:
            places = sorted((asked, achieved) for s, l, asked, achieved in rows if (s, l) == (system, load))
            path = "L".join(f"{across(asked):.1f} {up(achieved):.1f}" for asked, achieved in places)
            yield f'<path class="line {system}" d="M{path}"/>'
            yield from (mark(load, across(asked), up(achieved), system) for asked, achieved in places)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        cells = [line.rstrip("\n").split("\t") for line in file]
    rows = [(SYSTEMS[table], load, float(asked), float(achieved)) for table, load, _, asked, achieved in cells if table in SYSTEMS]
    width, height = LEFT + SIDE + 270, TOP + SIDE + 60
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">')
    print("<title>Compute caps, asked and achieved: egpu is on the line, HAMi-core above it</title>")
    print(f'<style>{STYLE}</style>\n<rect class="paper" width="{width}" height="{height}" rx="6"/>')
    print("\n".join([*frame(), *points(rows), *legend(rows), "</svg>"]))


main()
