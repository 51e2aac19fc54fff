"""llama.cpp's server: it answers, and with the same words inside and outside."""

import os
import re
import shutil

from measure.node import call, host_environment
from measure.programs.compare import outcome
from measure.programs.fetch import versions
from measure.programs.places import SIDES, tool
from measure.programs.tools import show

NAME = "llama.cpp server"


def server_of(places, seconds):
    """Returns the server's program: a built one, or one that is built now; None without."""
    source = f"{places.folder}/llama.cpp"
    for path in (f"{source}/build/bin/llama-server", f"{source}/llama-server"):
        if os.access(path, os.X_OK):
            return path
    cmake, nvcc = shutil.which("cmake"), tool("nvcc")
    if not (os.path.isfile(f"{source}/CMakeLists.txt") and cmake and nvcc):
        return None
    built = f"{places.shared}/llama.cpp"
    options = ["-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native",
               f"-DCMAKE_CUDA_COMPILER={nvcc}", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DBUILD_SHARED_LIBS=OFF"]
    steps = ([cmake, "-S", source, "-B", built, *options],
             [cmake, "--build", built, "--target", "llama-server", "-j", str(os.cpu_count())])
    for step in steps:
        end = call(["timeout", str(int(seconds)), *step], env=host_environment())
        if end.code:
            print(*end.text.splitlines()[-20:], sep="\n")
            return None
    return f"{built}/bin/llama-server"


def llama(places, rows, settings):
    model = f"{places.folder}/model.gguf"
    if not places.folder or not os.path.exists(model):
        return rows.skip(NAME, 1, "model.gguf is not in EGPU_GPU_PROGRAMS_FOLDER")
    server = server_of(places, 4 * settings.suite_seconds)
    if not server:
        return rows.skip(NAME, 1, "there is no llama-server, and it cannot be built")
    ends = places.both(["python3", "@llama_server.py", server, model], seconds=180)
    said = {side: re.findall("^says (.*)$", ends[side].text, re.MULTILINE) for side in SIDES}
    found = {side: {"answers": outcome("fine" in ends[side].text.splitlines()),
                    "with the same words as outside": outcome(
                        said[side] and said[side] == said["outside"])} for side in SIDES}
    if said["inside"] != said["outside"] or not said["outside"]:
        show(ends)
    version = versions(places.folder).get("llama.cpp", "")
    return rows.judge(NAME, version, 1, *found.values())
