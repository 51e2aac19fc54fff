"""docs/compatibility.md, made of the rows of kept results.

usage: python3 -m measure.programs.compatibility   (in integration/gpu of the repository)

The newest row counts for each program, driver, card, and number of cards.
"""

import glob
import json
import os

from measure.containerd import write

DOCS = os.path.realpath(f"{os.path.dirname(__file__)}/../../../../docs")
DOCUMENT = f"{DOCS}/compatibility.md"
HEAD = """# Programs that were tried in a share

Each row compares a program, or a third-party test suite, in a share with the same command outside,
on the same cards. `make compatibility` generates this page from the results of runs, and a test
checks it. `EGPU_GPU_ONLY=programs` makes such results ([how](../CONTRIBUTING.md#a-real-card)).

- **works**: everything that works outside works in a share, test by test.
- **a limit**: everything that fails only in a share is a known [limit](limits.md#what-a-share-refuses).
- **fails inside**: something else fails only in a share.
- **fails outside, too**: the result says nothing about shares.
- **not run**: the next column says why.
"""
COLUMNS = ("program", "version", "driver", "card", "cards", "verdict", "what differs, or was tried",
           "run, build")


def kept(folder):
    """Reads the kept results with rows, and names the file that says what each run printed."""
    for path in sorted(glob.glob(f"{folder}/*-programs*.json")):
        stem = path.removesuffix(".json")
        said = next((one for one in (f"{stem}.txt", f"{stem}.md") if os.path.exists(one)), path)
        with open(path, encoding="utf-8") as file:
            yield os.path.basename(path), {**json.load(file), "run": os.path.basename(said)}


def newest(results):
    """Returns the newest row for each program, driver, card, and number of cards, as cells."""
    rows = {}
    for _, of in sorted(results, key=lambda one: (one[1]["date"], one[0])):
        for row in of["rows"]:
            key = (row["program"], of["driver"], of["card"], row["cards"])
            # A run that could not try a program takes no verdict away.
            if row["verdict"] == "not run" and rows.get(key, row)["verdict"] != "not run":
                continue
            rows[key] = {**row, "driver": of["driver"], "card": of["card"],
                         "run": f"[{of['date']}](results/{of['run']}) {of['build']}".strip()}
    return [rows[key] for key in sorted(rows, key=lambda key: (key[0].lower(), *key[1:]))]


def cell(text):
    """A table's cell: on one line, with nothing that Markdown would take for its own."""
    text = " ".join(str(text).split())
    return "".join(f"\\{letter}" if letter in "|<*[_" else letter for letter in text)


def document(results):
    results = list(results)
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for row in newest(results):
        first = [cell(row[name]) for name in ("program", "version", "driver", "card", "cards")]
        cells = [*first, f"**{row['verdict']}**", cell(row["differs"]), row["run"]]
        lines.append(f"| {' | '.join(cells)} |")
    names = ", ".join(f"[{name}](results/{name})" for name, _ in results)
    return "\n".join([HEAD, *lines, "", f"Made of {names}.", ""])


if __name__ == "__main__":
    write(DOCUMENT, document(kept(f"{DOCS}/results")))
