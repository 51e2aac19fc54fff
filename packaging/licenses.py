#!/usr/bin/env python3
"""Collects the licences of all that is linked into the programs; fails where one is missing.

usage: packaging/licenses.py TARGET SYSROOT FOLDER

What is linked are the crates that are neither built for tests nor run by the compiler, Rust's
standard library, and libseccomp of the SYSROOT's Debian package. FOLDER gets `copyright` (Debian's
machine-readable form), `third-party-licenses.txt` (all texts, each once) and
`rust-standard-library.html`.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
LICENCE_FILE = re.compile(r"(licen[sc]e|copying|unlicense|notice|copyright)([-_.].*)?", re.IGNORECASE)
# Crates whose archives have no licence file: the one that holds, and where its text comes from.
APACHE = (REPOSITORY / "LICENSE").read_text()
MIT = (REPOSITORY / "packaging/MIT.txt").read_text()
WITHOUT_FILE = {"Apache-2.0": APACHE, "MIT OR Apache-2.0": APACHE, "MIT": MIT}

# A crate that names its licence by a file alone.
BY_FILE = {"rust-criu": "MIT"}


class Fault(Exception):
    """A licence that is missing, or that nobody has agreed to."""


def is_allowed(expression: str, allowed: set[str]) -> bool:
    """Returns whether an SPDX expression can be met with the licences allowed."""
    words = re.findall(r"[()]|[^\s()]+", expression.replace(" WITH ", "_WITH_"))
    if not words:
        return False
    python = {"AND": "and", "OR": "or", "(": "(", ")": ")"}
    return bool(eval(" ".join(python.get(word) or str(word in allowed) for word in words)))  # only these words


def linked(target: str) -> set[tuple[str, str]]:
    """Name and version of each crate in the programs."""
    tree = subprocess.check_output(
        ["cargo", "tree", "--locked", "--package", "egpu-shim", "--package", "egpu-cli", "--package", "egpu-kubelet-plugin", "--package", "egpu-scorer",
         "--package", "egpu-webhook", "--edges", "normal,no-proc-macro", "--target", target, "--prefix", "none", "--format", "{p}"], cwd=REPOSITORY, text=True)
    return {(words[0], words[1].removeprefix("v")) for words in map(str.split, tree.splitlines()) if words}


def crates(target: str) -> list[dict]:
    """The packages of others that are linked, as cargo describes them."""
    data = json.loads(subprocess.check_output(
        ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target], cwd=REPOSITORY))
    wanted = linked(target)
    found = [package for package in data["packages"] if (package["name"], package["version"]) in wanted]
    for package in found:
        licence = package["license"] or BY_FILE.get(package["name"], "")
        package["license"] = re.sub(r"\s*/\s*", " OR ", licence)  # as older crates write it
    return sorted((package for package in found if package["source"]), key=lambda package: (package["name"], package["version"]))


def texts(package: dict) -> list[str]:
    """The licence texts of a crate."""
    folder = Path(package["manifest_path"]).parent
    files = sorted(path for path in folder.iterdir() if path.is_file() and LICENCE_FILE.fullmatch(path.name))
    if files:
        return [path.read_text(errors="replace").strip() for path in files]
    text = WITHOUT_FILE.get(package["license"])
    if text is None:
        raise Fault(f"{package['name']} {package['version']} ({package['license']}) has no licence file")
    return ["Authors: " + ", ".join(package["authors"] or [package["repository"] or package["name"]]) + "\n\n" + text.strip()]


def check(package: dict, rules: dict) -> None:
    """Refuses a crate whose licence deny.toml does not allow."""
    extra = [name for rule in rules["exceptions"] if rule["crate"] == package["name"] for name in rule["allow"]]
    if not is_allowed(package["license"], {*rules["allow"], *extra}):
        raise Fault(f"{package['name']} {package['version']}: deny.toml does not allow {package['license']!r}")


def third_party(packages: list[dict], libseccomp: str, lgpl: str) -> str:
    """All licence texts, each once, with what it is of."""
    users: dict[str, list[str]] = {}
    for package in packages:
        for text in texts(package):
            users.setdefault(text, []).append(f"{package['name']} {package['version']} ({package['license']})")
    rule = "\n\n" + "=" * 80 + "\n"
    parts = [", ".join(names) + "\n" + "-" * 80 + "\n" + text for text, names in users.items()]
    parts.append("libseccomp\n" + "-" * 80 + "\n" + libseccomp.strip() + "\n\n" + lgpl.strip())
    return rule.join(["Licences of what is linked into egpu's programs.", *parts]) + "\n"


def machine_readable(packages: list[dict], head: str) -> str:
    """Debian's copyright file: a stanza for each licence under which crates are."""
    crates_of: dict[str, list[str]] = {}
    for package in packages:
        licence = package["license"].replace(" OR ", " or ").replace(" AND ", " and ").replace(" WITH ", " with ")
        crates_of.setdefault(licence, []).append(f"{package['name']}-{package['version']}")
    stanzas = [
        "Files: " + "\n ".join(f"vendor/{crate}/*" for crate in names) + "\nCopyright: the authors of each crate\n"
        f"License: {licence}\n The texts are in third-party-licenses.txt beside this file."
        for licence, names in sorted(crates_of.items())
    ]
    return "\n\n".join([head.strip(), *stanzas]) + "\n"


def main() -> int:
    target, sysroot, folder = sys.argv[1], Path(sys.argv[2] or "/"), Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        rules = tomllib.loads((REPOSITORY / "deny.toml").read_text())["licenses"]
        packages = crates(target)
        for package in packages:
            check(package, rules)
        libseccomp = (sysroot / "usr/share/doc/libseccomp-dev/copyright").read_text()
        lgpl = Path("/usr/share/common-licenses/LGPL-2.1").read_text()
        (folder / "third-party-licenses.txt").write_text(third_party(packages, libseccomp, lgpl))
        head = (REPOSITORY / "packaging/debian/copyright").read_text()
        (folder / "copyright").write_text(machine_readable(packages, head))
        rust = subprocess.check_output(["rustc", "--print", "sysroot"], cwd=REPOSITORY, text=True).strip()
        shutil.copyfile(f"{rust}/share/doc/rust/COPYRIGHT-library.html", folder / "rust-standard-library.html")
    except (Fault, OSError) as fault:
        print(f"licenses: {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
