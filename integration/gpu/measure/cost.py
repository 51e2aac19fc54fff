"""Cost of a container: the same program outside, in a container of runc, and in one of egpu."""

from measure.figures import (
    at_least, at_most, first_figures, median, ratio, ratio_of_means, text)


class Comparison:
    """Containers of egpu and, where the bundle carries it, of runc, in which programs are timed.

    runc's has all of the machine's devices and rights: the cost of a container without egpu.
    """

    def __init__(self, suite):
        self.suite, self.node, self.settings = suite, suite.node, suite.settings

    def __enter__(self):
        self.node.launch("cost", ["EGPU_DEVICES=0", "EGPU_MEMORY=40GiB"])
        self.places = ["out", "runc", "in"]
        if self.node.launch_runc():
            print(self.node.exec("runc", "/tmp/cuda-load", "info"))
        else:
            self.places.remove("runc")
            print("no container of runc can be had: it is left out")
        return self

    def __exit__(self, *_):
        self.node.stop("cost", *(["runc"] if "runc" in self.places else []))

    def run(self, place, command):
        """Runs a command in one place; @ stands for the folder of the programs."""
        folder = f"{self.node.tools}/" if place == "out" else "/tmp/"
        command = [folder + part[1:] if part[0] == "@" else part for part in command]
        if place == "out":
            return self.node.on_host(*command)
        return self.node.exec("runc" if place == "runc" else "cost", *command)

    def measure(self, name, *command, pairs=None, lines=1, pause=0):
        """Prints the medians of what a command's lines begin with, in each place in turn."""
        figures = {place: [] for place in self.places}
        for _ in range(pairs or self.settings.pairs):
            for place in self.places:
                self.node.sleep(pause)
                said = self.run(place, command)
                figures[place] += first_figures(said, lines)
                if self.settings.verbose:
                    print(f"  {place}: {' '.join(said.splitlines())}")
        numbers = {place: [float(figure) for figure in of] for place, of in figures.items()}
        outside, inside = median(numbers["out"]), median(numbers["in"])
        more = None if outside is None or inside is None else inside - outside
        print(f"{name:<28} outside {text(outside):>12} inside {text(inside):>12} "
              f"in/out {text(ratio(inside, outside), 4)} difference {text(more, 2)}")
        if "runc" in self.places:
            runc = median(numbers["runc"])
            print(f"{'':<28} in runc {text(runc):>12} runc/out {text(ratio(runc, outside), 4)} "
                  f"in/runc {text(ratio(inside, runc), 4)}")
        for place in self.places:
            print(f"  each, {place}: {' '.join(figures[place])}")
        return numbers, ratio(inside, outside), more


def launches(suite):
    """One process launches a tenth faster or slower than another: the means of many short ones."""
    times, pairs = 10, 2 * suite.settings.pairs
    suite.report.title(f"memory: kernel launches, {pairs * times} processes in each place")
    with Comparison(suite) as compared:
        command = ("@cuda-load", "launch", "30000", str(times))
        numbers, *_ = compared.measure("launches_per_s", *command, lines=times, pairs=pairs)
        means, error = ratio_of_means(numbers["in"], numbers["out"])
        print(f"means, in/out: {means:.4f} +- {error:.4f}")
        if "runc" in numbers:
            runc, error = ratio_of_means(numbers["runc"], numbers["out"])
            print(f"means, runc/out: {runc:.4f} +- {error:.4f}")
        suite.report.check("kernel launches: at least 0.995x", at_least(means, 0.995))


def initialisation(suite):
    pairs = 2 * suite.settings.pairs
    suite.report.title(f"memory: CUDA initialisation, median of {pairs} pairs")
    with Comparison(suite) as compared:
        # What the one before has left in the driver (unified memory has the card registered for as
        # long as anybody has) is gone after the pause. Single starts differ by a tenth.
        command = ("@cuda-load", "init")
        _, times, _ = compared.measure("init_ms", *command, pairs=pairs, pause=2.5)
        suite.report.check("CUDA initialisation: at most 1.05x", at_most(times, 1.05))


def allocation(suite):
    suite.report.title(f"memory: malloc and free, median of {suite.settings.pairs} pairs")
    with Comparison(suite) as compared:
        _, _, more = compared.measure("malloc_4MiB_us", "@cuda-load", "malloc", "4096", "3000")
        suite.report.check("malloc and free of 4 MiB: at most 45 us more", at_most(more, 45))
        _, times, _ = compared.measure("malloc_1GiB_us", "@cuda-load", "malloc", "1048576", "200")
        suite.report.check("malloc and free of 1 GiB: at most 1.05x", at_most(times, 1.05))


def training(suite):
    if not suite.needs_torch("training"):
        return
    suite.report.title(f"memory: a training job, median of {suite.settings.pairs} pairs")
    with Comparison(suite) as compared:
        _, times, _ = compared.measure("examples_per_s", "python3", "@train.py", "4")
        suite.report.check("PyTorch training: at least 0.995x", at_least(times, 0.995))
