"""Samples NVML's account of a card's processes until standard input ends.

usage: python3 -m measure.nvml CARD LIMIT_BYTES [card]
With "card", the whole card's memory in use, beyond what it was at the start: managed memory is no
process's.
Prints how many samples were taken, the largest sum, and how many were above the limit. Exit
status 1 when one was.
"""

import ctypes
import select
import sys


class Process(ctypes.Structure):
    """nvmlProcessInfo_v2_t"""

    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong),
                ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)]


class Memory(ctypes.Structure):
    """nvmlMemory_t"""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def used_by_processes(nvml, device, table=(Process * 512)()):
    count = ctypes.c_uint(512)
    found = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), table)
    assert found == 0, found
    return sum(one.used for one in table[: count.value] if one.used != 2**64 - 1)


def used_of_card(nvml, device):
    memory = Memory()
    assert nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0
    return memory.used


def main(card, limit, of_card):
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    assert nvml.nvmlInit_v2() == 0
    device = ctypes.c_void_p()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(card, ctypes.byref(device)) == 0
    used_now = used_of_card if of_card else used_by_processes
    before = used_now(nvml, device) if of_card else 0
    samples, most, above = 0, 0, 0
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        used = used_now(nvml, device) - before
        samples += 1
        most = max(most, used)
        above += used > limit
    sizes = f"most {most / 2**20:.1f} MiB, limit {limit / 2**20:.1f} MiB"
    print(f"{samples} samples, {sizes}, above it {above}")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), "card" in sys.argv[3:]))
