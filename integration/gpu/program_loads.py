"""Short programs of PyTorch and JAX, each of which prints "fine" at its end.

usage: program_loads.py copy|nccl|profiler|jax|vllm, or rmm CARDS
"""

import os
import sys


def copy():
    """Copies between the two cards, with the allocator that the environment names."""
    import torch

    here = torch.ones(1 << 24, device="cuda:0")
    there = here.to("cuda:1")
    total = (there + here.to("cuda:1")).sum().item()
    print("allocator", torch.cuda.get_allocator_backend(), total)
    assert total == 2.0 * (1 << 24), total


def reduce(rank):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    data = torch.ones(1 << 26, device="cuda")
    for _ in range(4):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    assert data[0].item() == 16.0, data[0].item()
    dist.destroy_process_group()


def nccl():
    import torch.multiprocessing as processes

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29513")
    processes.spawn(reduce, nprocs=2)


def profiler():
    """Counts the kernels that CUPTI sees."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    left = torch.randn(512, 512, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(20):
            left = (left @ left).tanh()
        torch.cuda.synchronize()
    kernels = sum(str(one.device_type).endswith("CUDA") for one in seen.events())
    print("kernels", kernels)
    assert kernels >= 20, kernels


def jax():
    """Sums on each card, and what was copied from one to the other."""
    import jax as of
    import jax.numpy as numbers

    cards = of.devices("gpu")
    print("cards", len(cards), "bytes", (cards[0].memory_stats() or {}).get("bytes_limit"))
    parts = [of.device_put(numbers.ones(1 << 22), card) for card in cards]
    moved = of.device_put(parts[0], cards[-1])
    total = float((moved + parts[-1]).sum())
    assert total == 2.0 * (1 << 22), total


def rmm(count):
    """Fills and copies buffers of each kind of pool; has one on each of so many cards."""
    import rmm as of

    kinds = [("pool", lambda: of.mr.PoolMemoryResource(of.mr.CudaMemoryResource(), 1 << 28)),
             ("async", of.mr.CudaAsyncMemoryResource),
             ("async, exported", lambda: of.mr.CudaAsyncMemoryResource(enable_ipc=True)),
             ("managed", of.mr.ManagedMemoryResource)]
    for name, make in kinds:
        of.mr.set_current_device_resource(make())
        buffers = [of.DeviceBuffer.to_device(bytes([number]) * (1 << 20)) for number in range(64)]
        assert all(one.tobytes()[:2] == bytes([number]) * 2 for number, one in enumerate(buffers))
        print(name, "ok")
        del buffers
    of.reinitialize(pool_allocator=True, initial_pool_size=1 << 28, devices=list(range(int(count))))
    print("pools of", count, "cards")


def vllm():
    """Continues a prompt with a small Llama of made-up weights."""
    import json
    import tempfile

    from vllm import LLM, SamplingParams

    shape = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512,
             "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
             "num_key_value_heads": 8, "vocab_size": 4096, "max_position_embeddings": 2048,
             "rms_norm_eps": 1e-5, "torch_dtype": "float16"}
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/config.json", "w", encoding="utf-8") as file:
            json.dump(shape, file)
        model = LLM(folder, load_format="dummy", skip_tokenizer_init=True, max_model_len=512,
                    gpu_memory_utilization=0.3, seed=1)
        asked = [{"prompt_token_ids": [1, 2, 3, number]} for number in range(8)]
        orders = SamplingParams(temperature=0, max_tokens=32, detokenize=False)
        for one in model.generate(asked, orders):
            print("answer", *one.outputs[0].token_ids)


if __name__ == "__main__":
    LOADS = {"copy": copy, "nccl": nccl, "profiler": profiler, "jax": jax, "rmm": rmm, "vllm": vllm}
    LOADS[sys.argv[1]](*sys.argv[2:])
    print("fine")
