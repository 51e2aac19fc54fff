"""Requests that latency-load served, and what a queue would make of them."""

import math
import re
from dataclasses import dataclass

from measure.figures import quantile

REQUEST = re.compile(r"^(-?[0-9]+) ([0-9]+) ([0-9]+) (-?[0-9]+)$", re.MULTILINE)
END = re.compile(r"^served ([0-9]+) requests in \S+ s from ([0-9]+) to ([0-9]+)$", re.MULTILINE)
# Who waited for less than this for an earlier request found nobody before itself.
IDLE_US = 100


@dataclass
class Served:
    """Microseconds of each request: arrival, latency, until its first kernel, and waited before."""

    requests: list
    begin_us: int
    end_us: int

    def latency_ms(self, part):
        return quantile([request[1] / 1000 for request in self.requests], part)

    def first_ms(self, part, is_idle=None):
        """Returns how long it was to the first kernel: of all, or of those that found nobody."""
        firsts = [first / 1000 for _, _, first, waited in self.requests
                  if is_idle in (None, waited < IDLE_US)]
        return quantile(firsts, part)

    def five_parts(self):
        """Returns the 99th percentile of each fifth of the requests, in ms."""
        each = len(self.requests) // 5
        times = [request[1] / 1000 for request in self.requests]
        fifths = (times[each * part: each * (part + 1)] for part in range(5 if each else 0))
        return [quantile(fifth, 0.99) for fifth in fifths]

    def service_us(self):
        """Returns how long each took from its first call to its end."""
        return [latency - waited for _, latency, _, waited in self.requests]

    def percent_of_card(self):
        """Returns in percent how long some request was served."""
        return 100 * sum(self.service_us()) / max(self.end_us - self.begin_us, 1)

    def queued_ms(self, more_us, behind_us, part):
        """Returns a quantile of the latencies if each request took longer, by Lindley's recursion.

        behind_us: by how much, if it waits for an earlier one; more_us: else.
        """
        latencies, free = [], -math.inf
        for (arrival, *_), service in zip(self.requests, self.service_us()):
            free = max(arrival, free) + service + (behind_us if free > arrival else more_us)
            latencies.append((free - arrival) / 1000)
        return quantile(latencies, part)


def read(said):
    """Reads what latency-load printed; None where it did not come to its end, or served nobody."""
    end, requests = END.search(said), REQUEST.findall(said)
    if not end or not requests or len(requests) != int(end[1]):
        return None
    return Served([tuple(map(int, one)) for one in requests], int(end[2]), int(end[3]))
