"""llama.cpp's server: it answers, and with the same words inside and outside."""

import os
import re
import shutil

from measure.node import call, host_environment, tool
from measure.programs.compare import outcome
from measure.programs.places import NO_FOLDER, SIDES, python_path, versions
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
               f"-DCMAKE_CUDA_COMPILER={nvcc}", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
               "-DBUILD_SHARED_LIBS=OFF"]
    steps = ([cmake, "-S", source, "-B", built, *options],
             [cmake, "--build", built, "--target", "llama-server", "-j", str(os.cpu_count())])
    for step in steps:
        end = call(["timeout", str(int(seconds)), *step], env=host_environment())
        if end.code:
            print(*end.text.splitlines()[-20:], sep="\n")
            return None
    return f"{built}/bin/llama-server"


def model_of(places):
    """Returns the model that was given, or makes a small one; None without."""
    given, made = f"{places.folder}/model.gguf", f"{places.shared}/model.gguf"
    if os.path.exists(given):
        return given
    command = ["python3", "@llama_model.py", made]
    end = places.run("outside", command, settings=[python_path(places.folder)])
    if end.code:
        print(end.text[-500:])
    return None if end.code else made


def llama(places, rows, settings):
    if not places.folder:
        return rows.skip(NAME, 1, NO_FOLDER)
    server = server_of(places, 4 * settings.suite_seconds)
    if not server:
        return rows.skip(NAME, 1, "there is no llama-server, and it cannot be built")
    model = model_of(places)
    if not model:
        return rows.skip(NAME, 1, "there is no model, and none can be made")
    ends = places.both(["python3", "@llama_server.py", server, model], seconds=180)
    said = {side: re.findall("^says (.*)$", ends[side].text, re.MULTILINE) for side in SIDES}
    found = {side: {"answers": outcome("fine" in ends[side].text.splitlines()),
                    "with the same words as outside": outcome(
                        said[side] and said[side] == said["outside"])} for side in SIDES}
    if said["inside"] != said["outside"] or not said["outside"]:
        show(ends)
    version = versions(places.folder).get("llama.cpp", "")
    return rows.judge(NAME, version, 1, *found.values())
