"""The common part of all measurements: the node, the report, the settings."""

import traceback


class Suite:
    def __init__(self, node, report, settings):
        self.node, self.report, self.settings = node, report, settings

    def run(self, part):
        """Runs one measurement; one that breaks off fails, and the others go on."""
        try:
            part(self)
        except Exception:
            self.report.check(f"{part.__name__} runs to its end", False, traceback.format_exc())
            self.node.end_programs()
            self.node.stop_all()

    def needs_torch(self, name):
        if not self.node.has_torch:
            self.report.skip(f"{name}: no PyTorch")
        return self.node.has_torch

    def kernel_log_since(self, before, most=0):
        """Checks that the driver wrote no more lines into the kernel's log than this."""
        self.report.title("the kernel's log")
        log = self.node.kernel_log()
        if log is None or before is None:
            return self.report.skip("mediation fills no log: it cannot be read")
        new = log[len(before):]
        print(f"{len(new)} new lines of the driver", *new[:20], sep="\n")
        return self.report.check("mediation fills no log", len(new) <= most)

    def drifts(self):
        """Counts how often accounts and driver were found to disagree, in all containers."""
        return sum(event["count"] for event in self.node.json("events", "--kind", "drift"))

    def check_drained(self, *containers):
        self.report.check("nothing is charged any more", all(map(self.is_drained, containers)))

    def is_drained(self, container):
        """Waits until a container holds nothing.

        What was exported stays charged for a minute, as it may be on its way through a socket; when
        that took long, it is said.
        """
        for seconds in range(76):
            used = self.node.used_mib(container)
            if used == 0:
                if seconds >= 3:
                    print(f"{container} was charged for {seconds} s after its last program")
                return True
            self.node.sleep(1)
        print(f"{container} is still charged with {used} MiB; nvidia-smi says of the card, and of "
              "processes:")
        print(self.card_memory())
        print(self.node.nvidia_smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader"))
        return False

    def card_memory(self):
        return self.node.nvidia_smi("--query-gpu=memory.used", "--format=csv,noheader")
