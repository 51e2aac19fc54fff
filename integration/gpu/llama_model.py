"""Writes a small model of the Llama architecture with made-up weights, for llama.cpp.

usage: llama_model.py MODEL.gguf. It speaks nonsense, and the same nonsense each time.
"""

import sys

import gguf
import numpy

LAYERS, WIDTH, HEADS, INNER, CONTEXT = 4, 512, 8, 1024, 2048
SPECIAL = ["<unk>", "<s>", "</s>"]


def tokens():
    """Bytes, and words that answers are made of: text, score, and kind of each."""
    kinds = gguf.TokenType
    yield from ((SPECIAL[0], 0.0, kinds.UNKNOWN), (SPECIAL[1], 0.0, kinds.CONTROL),
                (SPECIAL[2], 0.0, kinds.CONTROL))
    yield from ((f"<0x{byte:02X}>", 0.0, kinds.BYTE) for byte in range(256))
    letters = "abcdefghijklmnopqrstuvwxyz"
    yield from ((f"\u2581{first}{second}", -float(number), kinds.NORMAL)
                for number, (first, second) in enumerate((a, b) for a in letters for b in letters))


def write(path):
    writer = gguf.GGUFWriter(path, "llama")
    vocabulary = list(tokens())
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _, _ in vocabulary])
    writer.add_token_scores([score for _, score, _ in vocabulary])
    writer.add_token_types([kind for _, _, kind in vocabulary])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    numbers = numpy.random.default_rng(1)

    def add(name, *shape):
        data = numbers.standard_normal(shape) / numpy.sqrt(shape[-1])
        writer.add_tensor(f"{name}.weight", data.astype(numpy.float16))

    def add_norm(name):
        writer.add_tensor(f"{name}.weight", numpy.ones(WIDTH, dtype=numpy.float32))

    add("token_embd", len(vocabulary), WIDTH)
    add("output", len(vocabulary), WIDTH)
    add_norm("output_norm")
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}", WIDTH, WIDTH)
        add(f"blk.{layer}.ffn_gate", INNER, WIDTH)
        add(f"blk.{layer}.ffn_up", INNER, WIDTH)
        add(f"blk.{layer}.ffn_down", WIDTH, INNER)
        add_norm(f"blk.{layer}.attn_norm")
        add_norm(f"blk.{layer}.ffn_norm")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(sys.argv[1])
