"""Writes a checkpoint as GGUF: `export.py CHECKPOINT TOKENIZER OUT NAME [--context N]`.

Matrices are Q8_0 (rows are multiples of 32), norms f32. The Q and K rows go from the half-split order of the trainer
to the interleaved order of GGUF's `llama` architecture.
"""

import argparse
import hashlib
import json

import gguf
import numpy as np

from layout import BOS, CONTROL, END, TEMPLATE
from net import EPS, ROPE_BASE, load


def interleave(matrix, heads):
    rows, columns = matrix.shape
    return matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tensors(model):
    shape = model.shape
    d = shape["e"] // shape["h"]
    state = {name: value.float().numpy() for name, value in model.state_dict().items()}
    yield "token_embd.weight", state["embed"]
    yield "output_norm.weight", state["norm"]
    for index in range(shape["layers"]):
        q, k, v = np.split(state[f"layers.{index}.qkv"], [shape["h"] * d, (shape["h"] + shape["g"]) * d])
        gate, up = np.split(state[f"layers.{index}.gate_up"], 2)
        named = {
            "attn_norm": state[f"layers.{index}.attn_norm"],
            "attn_q": interleave(q, shape["h"]),
            "attn_k": interleave(k, shape["g"]),
            "attn_v": v,
            "attn_output": state[f"layers.{index}.o"],
            "ffn_norm": state[f"layers.{index}.ffn_norm"],
            "ffn_gate": gate,
            "ffn_up": up,
            "ffn_down": state[f"layers.{index}.down"],
        }
        for name, value in named.items():
            yield f"blk.{index}.{name}.weight", value


def write(checkpoint, tokenizer_path, out, name, context):
    model, _ = load(checkpoint)
    shape = model.shape
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_name(name)
    writer.add_license("apache-2.0")
    writer.add_context_length(context)
    writer.add_embedding_length(shape["e"])
    writer.add_block_count(shape["layers"])
    writer.add_feed_forward_length(shape["f"])
    writer.add_head_count(shape["h"])
    writer.add_head_count_kv(shape["g"])
    writer.add_rope_dimension_count(shape["e"] // shape["h"])
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_vocab_size(shape["vocab"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    with open(tokenizer_path, encoding="utf-8") as file:
        bpe = json.load(file)["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    kinds = [gguf.TokenType.CONTROL if token in CONTROL else gguf.TokenType.NORMAL for token in tokens]
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for tensor, value in tensors(model):
        if value.ndim == 1:
            writer.add_tensor(tensor, value)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(tensor, gguf.quantize(np.ascontiguousarray(value), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("tokenizer")
    parser.add_argument("out")
    parser.add_argument("name")
    parser.add_argument("--context", type=int, default=4096)
    args = parser.parse_args()
    write(args.checkpoint, args.tokenizer, args.out, args.name, args.context)
    with open(args.out, "rb") as file:
        data = file.read()
    print(json.dumps({"file": args.out, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}))
