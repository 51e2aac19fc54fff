"""Fetches other people's programs and tests, by name and version, into a folder.

usage: python3 -m measure.programs.fetch FOLDER [NAME...]   (in integration/gpu, with network)

The folder is carried to the machine with the card, where EGPU_GPU_PROGRAMS_FOLDER names it. What
cannot be had is told and left out; FOLDER/versions.json says what is there.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from measure.programs.places import versions

PYTHON = "3.12"
PLATFORMS = ("manylinux_2_24_x86_64", "manylinux_2_27_x86_64", "manylinux_2_28_x86_64",
             "manylinux2014_x86_64", "any")


@dataclass
class Source:
    """A repository at a tag: the paths of it that are wanted."""

    name: str
    version: str
    url: str
    tag: str
    paths: tuple


@dataclass
class Package:
    """A Python package, without what it depends on."""

    name: str
    version: str


GITHUB = "https://github.com"
# Everything that is fetched, in the versions that are tried: those of the machines' PyTorch, CuPy
# and CUDA. numba-cuda brings its tests along, but not what they import. vLLM is too large to carry: it is taken where python3
# has it. llama.cpp's server gets FOLDER/model.gguf, or a model that gguf writes.
TABLE = [
    Source("pytorch", "2.11.0", f"{GITHUB}/pytorch/pytorch", "v2.11.0",
           ("test/*.py", "test/profiler/*.py", "test/distributed/*.py", "test/inductor/*.py")),
    Source("cupy", "14.2.0", f"{GITHUB}/cupy/cupy", "v14.2.0", ("/tests/",)),
    Source("cuda-samples", "13.0", f"{GITHUB}/NVIDIA/cuda-samples", "v13.0",
           ("/Common/", "/Samples/")),
    Source("rmm", "26.10.0", f"{GITHUB}/rapidsai/rmm", "v26.10.00", ("/python/rmm/rmm/tests/",)),
    Source("llama.cpp", "b10103", f"{GITHUB}/ggml-org/llama.cpp", "b10103", ("/*",)),
    Package("expecttest", "0.3.0"), Package("rmm-cu13", "26.10.0"),
    Package("librmm-cu13", "26.10.0"), Package("rapids-logger", "0.3.0"),
    Package("gguf", "0.19.0"), Package("filecheck", "1.0.6"), Package("cffi", "2.1.1"),
    Package("pycparser", "3.12")]


def commands(one, folder):
    """Returns the commands that fetch a source or a package, in order."""
    if isinstance(one, Package):
        target = ["--target", f"{folder}/python/{one.name}", "--python-version", PYTHON]
        platforms = [part for name in PLATFORMS for part in ("--platform", name)]
        return [[sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
                 "--only-binary", ":all:", *target, *platforms, f"{one.name}=={one.version}"]]
    git = ["git", "-C", f"{folder}/{one.name}"]
    return [["git", "clone", "--quiet", "--depth", "1", "--filter=blob:none", "--no-checkout",
             "--branch", one.tag, one.url, f"{folder}/{one.name}"],
            [*git, "sparse-checkout", "set", "--no-cone", *one.paths],
            [*git, "checkout", "--quiet"]]


def fetch(one, folder):
    """Fetches one; returns the reason for which it cannot be had, if any."""
    place = f"{folder}/python/{one.name}" if isinstance(one, Package) else f"{folder}/{one.name}"
    shutil.rmtree(place, ignore_errors=True)
    for command in commands(one, folder):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            shutil.rmtree(place, ignore_errors=True)
            lines = done.stdout.decode(errors="replace").strip().splitlines()
            return lines[-1] if lines else f"exit {done.returncode}"
    shutil.rmtree(f"{place}/.git", ignore_errors=True)
    return ""


def main(folder, names):
    os.makedirs(folder, exist_ok=True)
    had, missing = versions(folder), 0
    for one in TABLE:
        if names and one.name not in names:
            continue
        why = fetch(one, folder)
        missing += bool(why)
        had.pop(one.name, None)
        if not why:
            had[one.name] = one.version
        print(f"{one.name} {one.version}: {why or 'fetched'}")
    with open(f"{folder}/versions.json", "w", encoding="utf-8") as file:
        json.dump(had, file, indent=1)
    return 1 if missing else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(os.path.abspath(sys.argv[1]), sys.argv[2:]))
