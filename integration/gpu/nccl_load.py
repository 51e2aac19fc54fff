"""Sums 64 MiB over two cards again and again, with some arithmetic in between.

One process for each card. usage: nccl_load.py SECONDS [PORT]; every 50 ms a line "MICROSECONDS
ROUNDS" of the first card's process."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

QUEUED = 4


def main(rank, seconds):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    data = torch.randn(16 << 20, device="cuda")
    left = torch.randn(2048, 2048, device="cuda")
    right = torch.randn(2048, 2048, device="cuda")
    begin = time.monotonic()
    queue, issued, rounds, next_line = [], 0, 0, 0.0
    while True:
        for _ in range(4):
            torch.mm(left, right)
        dist.all_reduce(data)
        data.mul_(0.5)
        event = torch.cuda.Event()
        event.record()
        queue.append(event)
        issued += 1
        while queue and (queue[0].query() or len(queue) >= QUEUED):
            queue.pop(0).synchronize()
            rounds += 1
        if rank == 0 and time.monotonic() >= next_line:
            next_line = time.monotonic() + 0.05
            print(f"{time.monotonic() * 1e6:.0f} {rounds}", flush=True)
        # All ask in the same round and leave after it: what has completed by then differs from one
        # to the other, what was issued does not.
        if issued % 100 == 0:
            over = torch.tensor([time.monotonic() > begin + seconds], dtype=torch.int32, device="cuda")
            dist.all_reduce(over)
            if over.item():
                break


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", sys.argv[2] if len(sys.argv) > 2 else "29511")
    processes.spawn(main, (float(sys.argv[1]),), nprocs=2)
