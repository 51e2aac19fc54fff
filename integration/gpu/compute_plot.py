"""Draws what was achieved against what was asked: compute_plot.py ROWS.tsv > PICTURE.svg. Needs nothing but Python.

A row: TABLE, LOAD, WHO, ASKED (percent of what the load does alone), ACHIEVED (the same), tabs between."""

import sys
from xml.sax.saxutils import escape

SIZE, MARGIN, LEGEND = 520, 60, 330
COLOURS = ["#1b6ca8", "#c8553d", "#2a9d5c", "#8e5bb5", "#c99a17", "#4d4d4d", "#d16ba5", "#3aa6b9", "#7a8b2f", "#a0522d"]
MARKS = ["circle", "square", "triangle", "cross"]


def at(percent):
    return MARGIN + percent / 100 * SIZE


def y(percent):
    return MARGIN + SIZE - percent / 100 * SIZE


def mark(shape, left, top, colour):
    if shape == "circle":
        return f'<circle cx="{left:.1f}" cy="{top:.1f}" r="5" fill="none" stroke="{colour}" stroke-width="2"/>'
    if shape == "square":
        return f'<rect x="{left - 4.5:.1f}" y="{top - 4.5:.1f}" width="9" height="9" fill="none" stroke="{colour}" stroke-width="2"/>'
    if shape == "triangle":
        points = f"{left:.1f},{top - 6:.1f} {left - 5.5:.1f},{top + 4:.1f} {left + 5.5:.1f},{top + 4:.1f}"
        return f'<polygon points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
    return f'<path d="M{left - 5:.1f} {top - 5:.1f}l10 10m0 -10l-10 10" stroke="{colour}" stroke-width="2"/>'


def main():
    rows = []
    for line in open(sys.argv[1], encoding="utf-8"):
        table, load, _, asked, achieved = line.rstrip("\n").split("\t")[:5]
        rows.append((f"{table}: {load}", float(asked), float(achieved)))
    names = list(dict.fromkeys(name for name, *_ in rows))
    width, height = SIZE + 2 * MARGIN + LEGEND, SIZE + 2 * MARGIN
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="13">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for percent in range(0, 101, 10):
        out.append(f'<path d="M{at(percent)} {y(0)}V{y(100)}M{at(0)} {y(percent)}H{at(100)}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{at(percent)}" y="{y(0) + 20}" text-anchor="middle">{percent}</text>')
        out.append(f'<text x="{at(0) - 8}" y="{y(percent) + 4}" text-anchor="end">{percent}</text>')
    out.append(f'<path d="M{at(0)} {y(0)}L{at(100)} {y(100)}" stroke="#999" stroke-dasharray="5 4"/>')
    out.append(f'<text x="{at(50)}" y="{y(0) + 42}" text-anchor="middle">asked, percent of the card</text>')
    out.append(f'<text transform="translate(18 {y(50)}) rotate(-90)" text-anchor="middle">achieved, percent of the same alone</text>')
    for number, name in enumerate(names):
        colour, shape = COLOURS[number % len(COLOURS)], MARKS[number // len(COLOURS) % len(MARKS)] if len(names) > len(COLOURS) else MARKS[number % len(MARKS)]
        out += [mark(shape, at(asked), y(min(achieved, 100)), colour) for other, asked, achieved in rows if other == name]
        top = MARGIN + 10 + number * 20
        out.append(mark(shape, SIZE + MARGIN + 30, top, colour))
        out.append(f'<text x="{SIZE + MARGIN + 44}" y="{top + 4}">{escape(name)}</text>')
    print("\n".join([*out, "</svg>"]))


main()
