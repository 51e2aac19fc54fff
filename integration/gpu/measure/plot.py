"""The picture of what was achieved against what was asked, as SVG."""

from xml.sax.saxutils import escape

SIZE, MARGIN, LEGEND = 520, 60, 330
COLOURS = ["#1b6ca8", "#c8553d", "#2a9d5c", "#8e5bb5", "#c99a17", "#4d4d4d", "#d16ba5", "#3aa6b9",
           "#7a8b2f", "#a0522d"]
MARKS = ["circle", "square", "triangle", "cross"]


def x(percent):
    return MARGIN + percent / 100 * SIZE


def y(percent):
    return MARGIN + SIZE - percent / 100 * SIZE


def mark(shape, left, top, colour):
    style = f'fill="none" stroke="{colour}" stroke-width="2"'
    if shape == "circle":
        return f'<circle cx="{left:.1f}" cy="{top:.1f}" r="5" {style}/>'
    if shape == "square":
        corner = f'x="{left - 4.5:.1f}" y="{top - 4.5:.1f}"'
        return f'<rect {corner} width="9" height="9" {style}/>'
    if shape == "triangle":
        base = f"{left - 5.5:.1f},{top + 4:.1f} {left + 5.5:.1f},{top + 4:.1f}"
        return f'<polygon points="{left:.1f},{top - 6:.1f} {base}" {style}/>'
    return f'<path d="M{left - 5:.1f} {top - 5:.1f}l10 10m0 -10l-10 10" {style}/>'


def text(left, top, content, anchor="middle"):
    return f'<text x="{left}" y="{top}" text-anchor="{anchor}">{escape(str(content))}</text>'


def grid():
    for percent in range(0, 101, 10):
        lines = f"M{x(percent)} {y(0)}V{y(100)}M{x(0)} {y(percent)}H{x(100)}"
        yield f'<path d="{lines}" stroke="#e4e4e4"/>'
        yield text(x(percent), y(0) + 20, percent)
        yield text(x(0) - 8, y(percent) + 4, percent, "end")
    yield f'<path d="M{x(0)} {y(0)}L{x(100)} {y(100)}" stroke="#999" stroke-dasharray="5 4"/>'
    yield text(x(50), y(0) + 42, "asked, percent of the card")
    turned = f'transform="translate(18 {y(50)}) rotate(-90)" text-anchor="middle"'
    yield f"<text {turned}>achieved, percent of the same alone</text>"


def svg(rows):
    """Draws rows (table, load, who, asked, achieved), in percent of what the load does alone."""
    points = [(f"{table}: {load}", float(asked), float(achieved))
              for table, load, _, asked, achieved in rows]
    names = list(dict.fromkeys(name for name, *_ in points))
    width, height = SIZE + 2 * MARGIN + LEGEND, SIZE + 2 * MARGIN
    size = f'width="{width}" height="{height}"'
    font = 'font-family="sans-serif" font-size="13"'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
           f'<rect {size} fill="white"/>', *grid()]
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        shape = MARKS[number // (len(COLOURS) if len(names) > len(COLOURS) else 1) % len(MARKS)]
        out += [mark(shape, x(asked), y(min(achieved, 100)), colour)
                for other, asked, achieved in points if other == name and achieved == achieved]
        top = MARGIN + 10 + number * 20
        out.append(mark(shape, SIZE + MARGIN + 30, top, colour))
        out.append(text(SIZE + MARGIN + 44, top + 4, name, "start"))
    return "\n".join([*out, "</svg>", ""])
