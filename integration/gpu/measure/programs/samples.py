"""CUDA samples: built with this machine's compiler, run outside and inside."""

import glob
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

from measure.node import call, host_environment, tool
from measure.programs.compare import FAILED, PASSED, SKIPPED, settled
from measure.programs.places import NO_FOLDER, SIDES, versions

NAME = "cuda-samples"
# A sample that the machine is not made for says so by this exit status.
WAIVED = 2
# What needs a display, another language's library, or another system.
LEFT_OUT = re.compile("OpenGL|GLUT|Vulkan|MPI_CXX|NvSci|EGL|FreeImage|QNX|D3D|nvvm", re.IGNORECASE)
# Those that are of another kind where there are two cards.
TWO_CARDS = ("simpleP2P", "simpleIPC", "simpleMultiGPU", "streamOrderedAllocationP2P",
             "streamOrderedAllocationIPC", "p2pBandwidthLatencyTest", "memMapIPCDrv",
             "conjugateGradientMultiDeviceCG", "MonteCarloMultiGPU", "topologyQuery")


def compile_command(nvcc, common, folder, built):
    """Returns the command that builds a sample; None where it is left out."""
    with open(f"{folder}/CMakeLists.txt", encoding="utf-8") as file:
        recipe = file.read()
    sources = sorted(glob.glob(f"{folder}/*.cu") + glob.glob(f"{folder}/*.cpp"))
    if not sources or LEFT_OUT.search(recipe):
        return None
    libraries = set(re.findall(r"CUDA::(\w+)", recipe)) - {"cudart", "cudart_static", "cuda_driver"}
    linked = [f"-l{name}" for name in ("cuda", *sorted(libraries))]
    options = ["-std=c++17", "-arch=native", "-w", f"-I{common}"]
    if "OpenMP" in recipe:
        options += ["-Xcompiler", "-fopenmp"]
    if "CUDA_SEPARABLE_COMPILATION ON" in recipe:
        options += ["-rdc=true", "-lcudadevrt"]
    name = os.path.basename(folder)
    return [nvcc, *options, "-o", f"{built}/{name}", *sources, *linked]


class Samples:
    def __init__(self, places, settings):
        self.places, self.seconds = places, settings.suite_seconds
        self.root = f"{places.folder}/{NAME}"
        self.built = f"{places.shared}/{NAME}"

    def build(self):
        """Builds the samples that this machine can build, all at once; once for both shares."""
        if os.path.isdir(self.built):
            return
        os.makedirs(self.built)
        folders = {os.path.basename(os.path.dirname(path)): os.path.dirname(path) for path in
                   glob.glob(f"{self.root}/Samples/*/*/CMakeLists.txt")}
        wanted = {name: compile_command(tool("nvcc"), f"{self.root}/Common", folder, self.built)
                  for name, folder in sorted(folders.items())}
        begun = time.monotonic()

        def build(command):
            if time.monotonic() - begun < 2 * self.seconds:
                call(["timeout", "200", *command], env=host_environment())

        commands = [command for command in wanted.values() if command]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(build, commands))
        left_out = [name for name, command in wanted.items() if not command]
        print(f"{len(os.listdir(self.built))} samples were built, of {len(commands)} tried; left "
              f"out: {' '.join(left_out)}")

    def outcome(self, side, name):
        folders = glob.glob(f"{self.root}/Samples/*/{name}")
        end = self.places.run(side, [f"{self.built}/{name}"], 60, folder=folders[0])
        return {0: PASSED, WAIVED: SKIPPED}.get(end.code, FAILED)

    def run(self, rows):
        names = sorted(os.listdir(self.built))
        if self.places.cards > 1:
            names = [name for name in names if name in TWO_CARDS]
        found, begun = {side: {} for side in SIDES}, time.monotonic()
        for name in names:
            if time.monotonic() - begun < 2 * self.seconds:
                for side in SIDES:
                    found[side][name] = self.outcome(side, name)
        late = [name for name in names if name not in found["outside"]]
        if late:
            print(f"{len(late)} samples were not begun: no time was left")
        if not names:
            return rows.skip(NAME, self.places.cards, "none could be built")
        outcomes = settled(*found.values(), self.outcome)
        both = [name for name, end in outcomes[0].items() if end == FAILED == outcomes[1][name]]
        print("fail in both places:", *both)
        version = versions(self.places.folder).get(NAME, "")
        return rows.judge(NAME, version, self.places.cards, *outcomes)


def samples(places, rows, settings):
    if not places.folder:
        return rows.skip(NAME, places.cards, NO_FOLDER)
    if not os.path.isdir(f"{places.folder}/{NAME}/Samples"):
        return rows.skip(NAME, places.cards, f"it is not in {places.folder}")
    if not tool("nvcc"):
        return rows.skip(NAME, places.cards, "nvcc is not installed")
    run = Samples(places, settings)
    run.build()
    return run.run(rows)
