"""A program whose memory leaves the card and comes back: program.py torch|jax|llm GIB. Prints "READY", and for each line on its
standard input "BEGAN TIME" and "RIGHT TIME" or "WRONG ..."; each line also changes what it has."""

import os
import sys
import time

kind, gib = sys.argv[1], float(sys.argv[2])


def torch_program():
    import torch
    torch.manual_seed(1)
    KIB, PIECE = 1 << 10, 16 << 20
    sizes = [KIB] * 64 + [1536 * KIB] * 32 + [20 << 20] * 16 + [200 << 20] * 8
    while sum(sizes) < gib * (1 << 30):
        sizes.append(1 << 30)
    added = 7

    def expected(index, begin, end):
        return torch.arange(begin, end, dtype=torch.int32, device="cuda") * 1640531527 + (index * 65537 + added)

    def pieces(tensor):
        return ((begin, min(begin + PIECE, tensor.numel())) for begin in range(0, tensor.numel(), PIECE))

    tensors = [torch.empty(size // 4, dtype=torch.int32, device="cuda") for size in sizes]
    for index, tensor in enumerate(tensors):
        for begin, end in pieces(tensor):
            tensor[begin:end] = expected(index, begin, end)

    # A graph that was captured before anything left; of whole numbers, so that its result does not depend on the order of sums.
    x, w1, w2 = (torch.randint(-1, 2, (4096, 4096), device="cuda").to(torch.bfloat16) for _ in range(3))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.relu(x @ w1) @ w2
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.relu(x @ w1) @ w2
    graph.replay()
    wanted = y.cpu()

    # A network that is trained on.
    network = torch.nn.Sequential(torch.nn.Linear(2048, 8192), torch.nn.GELU(), torch.nn.Linear(8192, 2048)).cuda()
    twin = torch.nn.Sequential(torch.nn.Linear(2048, 8192), torch.nn.GELU(), torch.nn.Linear(8192, 2048)).cuda()
    twin.load_state_dict(network.state_dict())
    optimizer, twins = torch.optim.Adam(network.parameters()), torch.optim.Adam(twin.parameters())
    batch = torch.randn(512, 2048, device="cuda")

    def step(module, with_optimizer):
        with_optimizer.zero_grad()
        loss = module(batch).square().mean()
        loss.backward()
        with_optimizer.step()
        return loss.item()

    losses = [step(twin, twins) for _ in range(64)]
    del twin, twins
    torch.cuda.empty_cache()

    inputs = x, w1, w2  # of the graph: nothing else keeps them

    def check():
        nonlocal added
        assert inputs
        for index, tensor in enumerate(tensors):
            for begin, end in pieces(tensor):
                if not torch.equal(tensor[begin:end], expected(index, begin, end)):
                    return f"tensor {index} of {len(tensors)}"
        y.zero_()
        graph.replay()
        if not torch.equal(y.cpu(), wanted):
            return f"the graph's result: {int((y.cpu() != wanted).sum())} words"
        loss = step(network, optimizer)
        if abs(loss / (wanted_loss := losses.pop(0)) - 1) > 1e-3:
            return f"the network's loss: {loss} for {wanted_loss}"
        for tensor in tensors:
            tensor.add_(1)
        added += 1
        return None

    return check


def jax_program():
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str((gib + 2) / (float(os.environ.get("CARD_GIB", "139"))))
    import jax
    import jax.numpy as jnp
    make = jax.jit(lambda add: jnp.arange(1 << 28, dtype=jnp.uint32) * jnp.uint32(2654435761) + add)
    differ = jax.jit(lambda array, add: jnp.sum(array != jnp.arange(1 << 28, dtype=jnp.uint32) * jnp.uint32(2654435761) + add))
    more = jax.jit(lambda array: array + jnp.uint32(1), donate_argnums=0)
    arrays = [make(jnp.uint32(index)) for index in range(int(gib))]
    weights = jax.random.normal(jax.random.key(1), (4096, 4096))
    product = jax.jit(lambda a: jax.nn.softmax(a @ a))
    wanted = jax.device_get(product(weights))
    added = 0

    def check():
        nonlocal added
        for index in range(len(arrays)):
            if int(differ(arrays[index], jnp.uint32(index + added))):
                return f"array {index}"
            arrays[index] = more(arrays[index])
        added += 1
        return None if (jax.device_get(product(weights)) == wanted).all() else "the product"

    return check


def llm_program():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(1)
    layers = max(1, round((gib * (1 << 30) / 2 - 262e6) / 202.4e6))
    config = LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=layers, num_attention_heads=32, vocab_size=32000)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).eval()
    print(f"  {sum(p.numel() for p in model.parameters()) / 1e9:.2f} thousand million parameters, {layers} layers")
    question = torch.randint(0, 32000, (4, 512), device="cuda")

    @torch.inference_mode()
    def answer():
        return model.generate(question, attention_mask=torch.ones_like(question), max_new_tokens=16, min_new_tokens=16, do_sample=False, pad_token_id=0).cpu()

    @torch.inference_mode()
    def logits():
        return model(question).logits[:, -1].float().cpu()

    def sums():
        return [int(p.view(torch.int16).sum(dtype=torch.int64)) for p in model.parameters()]

    wanted, wanted_sums = logits(), sums()
    answer()

    def check():
        answer()
        if sums() != wanted_sums:
            return "the weights"
        differ = float((logits() - wanted).abs().max() / wanted.abs().max())
        return None if differ < 0.02 else f"the logits, by {differ}"

    return check


check = {"torch": torch_program, "jax": jax_program, "llm": llm_program}[kind]()
wrong = check()
print("READY" if wrong is None else f"WRONG {wrong}", flush=True)
for line in sys.stdin:
    print(f"BEGAN {time.monotonic():.6f}", flush=True)
    wrong = check()
    print(f"RIGHT {time.monotonic():.6f}" if wrong is None else f"WRONG {wrong}", flush=True)
