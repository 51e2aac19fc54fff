"""Uses blocks of 1 GiB, which have addresses on the NVLink fabric where there is one.

Written, copied between cards, given to another process, made and mapped by hand (cuMemCreate) for
every card, summed by NCCL. Prints one line "ok NAME" for each that comes back as it should, else
"failed NAME: REASON"."""

import ctypes
import os
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

BYTES = 1 << 30
VALUES = BYTES // 4
cuda = ctypes.CDLL("libcuda.so.1")


def driver(name, *args):
    error = getattr(cuda, name)(*args)
    assert error == 0, f"{name} says {error}"


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp; pinned memory of a device, to be shared by a file descriptor."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("security", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


def is_all(tensor, value):
    return bool((tensor == value).all())


def written(card):
    block = torch.full((VALUES,), card + 1, dtype=torch.int32, device=card)
    assert is_all(block, card + 1)
    free, total = torch.cuda.mem_get_info(card)
    assert total - free >= BYTES, (free, total)


def copied(source, target):
    there = torch.full((VALUES,), 7, dtype=torch.int32, device=source)
    assert is_all(there.to(target), 7)


def add_one(blocks, done):
    block = blocks.get()
    block += 1
    torch.cuda.synchronize()
    done.put(is_all(block, 4))


def given(card):
    block = torch.full((VALUES,), 3, dtype=torch.int32, device=card)
    start = processes.get_context("spawn")
    blocks, done = start.Queue(), start.Queue()
    child = start.Process(target=add_one, args=(blocks, done))
    child.start()
    blocks.put(block)
    assert done.get(timeout=60)
    child.join(60)
    assert is_all(block, 4)


def mapped_by_hand(cards):
    """Made on the first card, exported, imported again, mapped, and written and read by each card."""
    size, address = ctypes.c_size_t(BYTES), ctypes.c_ulonglong()
    made, imported, fd = ctypes.c_ulonglong(), ctypes.c_ulonglong(), ctypes.c_int(-1)
    properties = Properties(type=1, handle_types=1, location=Location(1, 0))
    driver("cuMemCreate", ctypes.byref(made), size, ctypes.byref(properties), ctypes.c_ulonglong(0))
    driver("cuMemExportToShareableHandle", ctypes.byref(fd), made, 1, ctypes.c_ulonglong(0))
    driver("cuMemImportFromShareableHandle", ctypes.byref(imported), ctypes.c_void_p(fd.value), 1)
    os.close(fd.value)
    driver("cuMemRelease", made)
    driver("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), ctypes.c_ulonglong(0), ctypes.c_ulonglong(0))
    driver("cuMemMap", address, size, ctypes.c_size_t(0), imported, ctypes.c_ulonglong(0))
    access = (Access * cards)(*[Access(Location(1, card), 3) for card in range(cards)])
    driver("cuMemSetAccess", address, size, access, ctypes.c_size_t(cards))
    for card in range(cards):
        torch.cuda.set_device(card)
        driver("cuMemsetD32_v2", address, 40 + card, ctypes.c_size_t(VALUES))
        torch.cuda.synchronize()
        seen = ctypes.c_uint(0)
        driver("cuMemcpyDtoH_v2", ctypes.byref(seen), ctypes.c_ulonglong(address.value + BYTES - 4), ctypes.c_size_t(4))
        assert seen.value == 40 + card, seen.value
    torch.cuda.set_device(0)
    driver("cuMemUnmap", address, size)
    driver("cuMemRelease", imported)
    driver("cuMemAddressFree", address, size)


def sum_up(rank, cards):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=cards)
    block = torch.full((VALUES,), rank + 1, dtype=torch.int32, device=rank)
    dist.all_reduce(block)
    assert is_all(block, cards * (cards + 1) // 2)
    dist.destroy_process_group()


def summed(cards):
    processes.spawn(sum_up, (cards,), nprocs=cards)


def check(what, work, *args):
    try:
        work(*args)
        print("ok", what, flush=True)
    except Exception as error:  # Whatever it is, the next ones are tried, too.
        traceback.print_exc()
        print(f"failed {what}: {error!r}".splitlines()[0], flush=True)
    torch.cuda.empty_cache()


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29541")
    cards = torch.cuda.device_count()
    for card in range(cards):
        check(f"written on card {card}", written, card)
    check("given to another process", given, 0)
    check("made and mapped by hand", mapped_by_hand, cards)
    if cards > 1:
        print("peers", torch.cuda.can_device_access_peer(0, 1), flush=True)
        check("copied to the other card", copied, 0, 1)
        check("copied back", copied, 1, 0)
        check("summed by NCCL", summed, cards)
