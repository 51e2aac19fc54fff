"""Pins memory in several threads, by allocation and by registration.

Checks what comes back from the card through it; memory that one thread registers another uses at
once. Prints "checked N" and "register US", the median time in microseconds of registering and
unregistering 1 MiB."""

import mmap
import queue
import statistics
import sys
import threading
import time

import torch

THREADS, ROUNDS = 8, int(sys.argv[1]) if len(sys.argv) > 1 else 20
runtime = torch.cuda.cudart()
checked, lock = [], threading.Lock()


def pages(size):
    """Memory of the program's, and a tensor in it."""
    memory = mmap.mmap(-1, size)
    return memory, torch.frombuffer(memory, dtype=torch.int32)


def register(tensor):
    error = runtime.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)
    assert int(error) == 0, error


def unregister(tensor):
    error = runtime.cudaHostUnregister(tensor.data_ptr())
    assert int(error) == 0, error


def round_trip(there, back):
    """Copies to the card, adds one there, and copies back."""
    with torch.cuda.stream(torch.cuda.Stream()):
        on_card = there.to("cuda", non_blocking=True)
        on_card += 1
        back.copy_(on_card, non_blocking=True)
        torch.cuda.current_stream().synchronize()
    assert torch.equal(back, there + 1)
    with lock:
        checked.append(there.numel())


def work(seed):
    generator = torch.Generator().manual_seed(seed)
    for at in range(ROUNDS):
        size = 1 << 20 << (seed + at) % 6
        values = torch.randint(1 << 30, (size // 4,), dtype=torch.int32, generator=generator)
        round_trip(values.pin_memory(), torch.empty_like(values, pin_memory=True))
        memory, tensor = pages(size)
        register(tensor)
        tensor.copy_(values)
        round_trip(tensor, torch.empty_like(values, pin_memory=True))
        unregister(tensor)


def hand_over(rounds):
    """One thread registers, the other uses it at once."""
    handed, done = queue.Queue(), queue.Queue()

    def use():
        for _ in range(rounds):
            tensor = handed.get()
            round_trip(tensor, torch.empty_like(tensor))
            done.put(True)

    user = threading.Thread(target=use)
    user.start()
    for at in range(rounds):
        memory, tensor = pages(2 << 20)
        register(tensor)
        tensor.fill_(at)
        handed.put(tensor)
        done.get()
        unregister(tensor)
    user.join()


torch.zeros(1, device="cuda")
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
hand_over(ROUNDS * 5)
assert len(checked) == THREADS * ROUNDS * 2 + ROUNDS * 5, len(checked)
times = []
for _ in range(200):
    memory, tensor = pages(1 << 20)
    tensor.fill_(1)
    begun = time.perf_counter()
    register(tensor)
    unregister(tensor)
    times.append((time.perf_counter() - begun) * 1e6)
print("checked", len(checked))
print("register", round(statistics.median(times), 1))
