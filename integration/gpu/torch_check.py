"""Prints the cards that PyTorch sees, "card UUID NAME", and multiplies matrices on each of them."""

import torch

print("cards", torch.cuda.device_count())
for index in range(torch.cuda.device_count()):
    properties = torch.cuda.get_device_properties(index)
    print("card", f"GPU-{properties.uuid}", properties.name)
    device = torch.device("cuda", index)
    left = torch.randn(512, 512, device=device, dtype=torch.float64)
    right = torch.randn(512, 512, device=device, dtype=torch.float64)
    difference = ((left @ right).cpu() - left.cpu() @ right.cpu()).abs().max().item()
    assert difference < 1e-9, difference
    free, total = torch.cuda.mem_get_info(index)
    print("memory", free >> 20, "MiB free of", total >> 20)
print("computed")
