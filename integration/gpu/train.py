"""Trains a convolutional network on made-up images: usage: train.py SECONDS [MIB].

Prints "examples/s RATE peak MIB", or "out of memory: REASON". MIB: the batch is chosen so that a
step takes about that much memory in all, the context included (default: a batch of 64)."""

import sys
import time

import torch
from torch import nn

seconds = float(sys.argv[1])
wanted = int(sys.argv[2]) if len(sys.argv) > 2 else None


def block(channels_in, channels_out, stride):
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False), nn.BatchNorm2d(channels_out), nn.ReLU(inplace=True)
    )


try:
    torch.manual_seed(0)
    network = nn.Sequential(
        block(3, 64, 2), block(64, 64, 1), block(64, 128, 2), block(128, 128, 1), block(128, 256, 2), block(256, 256, 1),
        block(256, 512, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000),
    ).cuda()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    loss = nn.CrossEntropyLoss()

    def step(images, labels):
        optimizer.zero_grad(set_to_none=True)
        loss(network(images), labels).backward()
        optimizer.step()

    def batch(size):
        return torch.randn(size, 3, 224, 224, device="cuda"), torch.randint(1000, (size,), device="cuda")

    size = 64
    if wanted is not None:
        # What one image takes on a card with room to spare; the context takes 0.6 GiB.
        per_image = 54
        size = max(8, (wanted - 700) // per_image)
    data = batch(size)
    for _ in range(5):
        step(*data)
    torch.cuda.synchronize()
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for _ in range(5):
            step(*data)
        torch.cuda.synchronize()
        steps += 5
    rate = steps * size / (time.perf_counter() - begin)
    free, total = torch.cuda.mem_get_info()
    print(f"examples/s {rate:.1f} batch {size} peak {torch.cuda.max_memory_reserved() >> 20} MiB, card {(total - free) >> 20} of {total >> 20} MiB")
except torch.OutOfMemoryError as error:
    print("out of memory:", str(error).split(".")[0], "|", next((part.strip() for part in str(error).split(".") if "capacity" in part), ""))
    sys.exit(2)
