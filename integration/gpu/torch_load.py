"""Trains ResNet-50 on made-up images, and prints how far it is.

Each step is a CUDA graph so that the host does not hold it up. Every 50 ms a line "MICROSECONDS
EXAMPLES" (CLOCK_MONOTONIC, sum).

usage: torch_load.py SECONDS BATCH [BATCH...]   (with several: each for SECONDS in turn, "batch
                                                BATCH" before it)
       torch_load.py SECONDS small              a small network in plain float32, far from the
                                                card's power limit
With AT=MICROSECONDS in the environment it begins with the first batch at that instant, and keeps to
the clock after that."""

import os
import sys
import time

import torch
from torch import nn

seconds, batches = float(sys.argv[1]), sys.argv[2:]
QUEUED = 8


def small():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    def block(channels_in, channels_out):
        return nn.Sequential(nn.Conv2d(channels_in, channels_out, 3, 2, 1, bias=False), nn.BatchNorm2d(channels_out), nn.ReLU(inplace=True))
    return nn.Sequential(block(3, 32), block(32, 64), block(64, 128), block(128, 256), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000)).cuda()


def resnet():
    import torchvision
    return torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)


def main():
    torch.manual_seed(0)
    is_small = batches == ["small"]
    network = small() if is_small else resnet()
    sizes = [96] if is_small else [int(batch) for batch in batches]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    loss = nn.CrossEntropyLoss()

    def step(images, labels):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16, enabled=not is_small, cache_enabled=False):
            value = loss(network(images), labels)
        value.backward()
        optimizer.step()

    # A graph keeps the addresses of what it reads, not the memory.
    steps, inputs, pool = {}, [], torch.cuda.graph_pool_handle()
    for size in sizes:
        images = torch.randn(size, 3, 224, 224, device="cuda")
        if not is_small:
            images = images.to(memory_format=torch.channels_last)
        labels = torch.randint(1000, (size,), device="cuda")
        inputs.append((images, labels))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(images, labels)
        torch.cuda.current_stream().wait_stream(side)
        if is_small:
            steps[size] = lambda images=images, labels=labels: step(images, labels)
        else:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                step(images, labels)
            steps[size] = graph.replay
    torch.cuda.synchronize()
    print("ready", flush=True)
    at = int(os.environ.get("AT", 0)) / 1e6
    while time.monotonic() < at:
        time.sleep(0.001)
    begin = at or time.monotonic()
    examples, next_line = 0, 0.0
    for phase, size in enumerate(sizes, 1):
        print("batch", size, flush=True)
        queue = []
        while time.monotonic() < begin + seconds * phase:
            steps[size]()
            event = torch.cuda.Event()
            event.record()
            queue.append(event)
            while queue and (queue[0].query() or len(queue) >= QUEUED):
                queue.pop(0).synchronize()
                examples += size
            if time.monotonic() >= next_line:
                next_line = time.monotonic() + 0.05
                print(f"{time.monotonic() * 1e6:.0f} {examples}", flush=True)
        torch.cuda.synchronize()
        examples += size * len(queue)


main()
