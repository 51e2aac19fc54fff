"""Trains a network of large matrix products, and prints how far it is.

usage: matrix_load.py SECONDS float32|bfloat16|breaks. A line "MICROSECONDS STEPS" (CLOCK_MONOTONIC,
sum) after each step; the next step is queued before the one before is over. "breaks": products of a
quarter of a millisecond, with a break of a millisecond after each.
"""

import collections
import sys
import time

import torch
from torch import nn

WIDTH, BATCH, LAYERS = 4096, 4096, 4
seconds = float(sys.argv[1])
if sys.argv[2] == "breaks":
    factor, steps = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        factor @ factor
        torch.cuda.synchronize()
        steps += 1
        print(time.monotonic_ns() // 1000, steps, flush=True)
        time.sleep(0.001)
    sys.exit()
kind = getattr(torch, sys.argv[2])
torch.backends.cuda.matmul.allow_tf32 = False
torch.manual_seed(0)
network = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)))
network = network.to("cuda", kind)
optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
inputs = torch.randn(BATCH if kind is torch.bfloat16 else BATCH // 4, WIDTH, device="cuda", dtype=kind)
queued, steps = collections.deque(), 0
end = time.monotonic() + seconds
while time.monotonic() < end:
    optimizer.zero_grad(set_to_none=True)
    network(inputs).square().mean().backward()
    optimizer.step()
    queued.append(torch.cuda.Event())
    queued[-1].record()
    if len(queued) == 2:
        queued.popleft().synchronize()
        steps += 1
        print(time.monotonic_ns() // 1000, steps, flush=True)
