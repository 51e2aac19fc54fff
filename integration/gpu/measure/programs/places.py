"""Places that a program runs in: this machine, and a share of one card of it or of two."""

import glob
import json
import os

from measure.memory import card
from measure.node import NCCL, NCCL_OPTIONS

DEVICES = {1: "0", 2: "0,1"}
MEMORY = "24GiB"
SIDES = ("outside", "inside")
NO_FOLDER = "EGPU_GPU_PROGRAMS_FOLDER names no folder (python3 -m measure.programs.fetch)"
TIME_IS_OVER = (124, 137)


class Places:
    """Both places, with a folder that is at the same path in both.

    All programs use the cards of a share, and the same settings of NCCL, wherever they run.
    """

    def __init__(self, node, cards, folder):
        self.node, self.cards, self.folder = node, cards, folder
        self.container, self.shared = f"programs{cards}", shared(node)

    def __enter__(self):
        options = list(NCCL_OPTIONS)
        for path in (self.shared, self.folder):
            if path:
                options += ["--mount", f"type=bind,src={path},dst={path},options=rbind:rw"]
        self.node.launch(self.container, card(DEVICES[self.cards], MEMORY, *NCCL), options=options)
        return self

    def __exit__(self, *_):
        self.node.stop(self.container)

    def run(self, side, command, seconds=60, settings=(), folder=None):
        """Runs a command in one place; @ stands for the folder that both have."""
        where = folder or self.shared
        settings = [f"CUDA_VISIBLE_DEVICES={DEVICES[self.cards]}", *NCCL, *settings]
        if side == "inside":
            settings = settings[1:]
        full = ["env", "-C", where, *settings, "timeout", "--kill-after", "5", str(int(seconds))]
        full += [part.replace("@", f"{self.shared}/") if part.startswith("@") else part
                 for part in command]
        return self.node.outcome(self.container if side == "inside" else None, *full)

    def both(self, command, seconds=60, settings=(), folder=None):
        """Runs a command outside, then inside; returns both ends."""
        return {side: self.run(side, command, seconds, settings, folder) for side in SIDES}


def shared(node):
    return f"{node.work}/shared"


def python_path(folder):
    """Returns the setting with which fetched packages are found."""
    found = sorted(glob.glob(f"{folder}/python/*/")) if folder else []
    return "PYTHONPATH=" + ":".join(found)


def versions(folder):
    """Reads what a folder of fetched programs has: a version for each name."""
    try:
        with open(f"{folder}/versions.json", encoding="utf-8") as file:
            return json.load(file)
    except OSError:
        return {}
