"""Writes a model of 2.8 thousand million parameters in float16 with made-up weights.

usage: decoder_model.py GGUF_FOLDER MODEL.gguf. It has no vocabulary, only numbers of tokens.
"""

import sys

sys.path.insert(0, sys.argv[1])
import gguf  # noqa: E402
import numpy  # noqa: E402

LAYERS, WIDTH, HEADS, INNER, WORDS = 24, 3072, 24, 8192, 32000
numbers = numpy.random.default_rng(1).standard_normal(1 << 24).astype(numpy.float16)


def weights(*shape):
    size = int(numpy.prod(shape))
    many = numpy.resize(numbers, size).reshape(shape)
    return (many / numpy.float16(shape[-1] ** 0.5)).astype(numpy.float16)


writer = gguf.GGUFWriter(sys.argv[2], "llama")
writer.add_context_length(2048)
writer.add_embedding_length(WIDTH)
writer.add_block_count(LAYERS)
writer.add_feed_forward_length(INNER)
writer.add_head_count(HEADS)
writer.add_head_count_kv(HEADS)
writer.add_rope_dimension_count(WIDTH // HEADS)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_vocab_size(WORDS)
writer.add_tokenizer_model("no_vocab")
writer.add_tensor("token_embd.weight", weights(WORDS, WIDTH))
writer.add_tensor("output.weight", weights(WORDS, WIDTH))
writer.add_tensor("output_norm.weight", numpy.ones(WIDTH, numpy.float32))
for layer in range(LAYERS):
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        writer.add_tensor(f"blk.{layer}.{name}.weight", weights(WIDTH, WIDTH))
    writer.add_tensor(f"blk.{layer}.ffn_gate.weight", weights(INNER, WIDTH))
    writer.add_tensor(f"blk.{layer}.ffn_up.weight", weights(INNER, WIDTH))
    writer.add_tensor(f"blk.{layer}.ffn_down.weight", weights(WIDTH, INNER))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.{layer}.{name}.weight", numpy.ones(WIDTH, numpy.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
