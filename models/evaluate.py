"""Exact match of greedy answers on held-out documents: `evaluate.py GGUF TOKENIZER CORPUS --words 80-100,...`.

Greedy decoding gives the right answer exactly when, reading prompt and right answer, the likeliest next token is the
right one at every position of the answer and its end; so one pass over prompt and answer measures it. `--greedy`
also decodes token by token with a KV cache and counts where the two differ (they must not).
"""

import argparse
import json

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer

from layout import END, Corpus, Layout
from net import Llama

KINDS = ("short", "long", "two_hop")


def questions(layout, corpus, words, count):
    """Prompts with answers, `count` of each kind, at most one of a kind a document: lists of (kind, prompt, answer).

    `words` is a range of the document's words; with `r` before it, of a shortened document's words.
    """
    if words.startswith("r"):
        sources = [(kind, ["--words", "400-1500", "--refine", words[1:], "--focus", kind]) for kind in KINDS]
    else:
        sources = [(None, ["--words", words])]
    out = []
    for only, source in sources:
        need = dict.fromkeys([only] if only else KINDS, count)
        pipe = Corpus(corpus, ["--from", 1_000_000, "--count", 50 * count, *source])
        for document in pipe:
            ids = None
            for kind in [kind for kind, left in need.items() if left]:
                question = next((q for q in document["questions"] if q["kind"] == kind), None)
                if question is None:
                    continue
                ids = ids or layout.ids(document["text"])
                out.append((kind, layout.prompt(ids, question["text"]), [*layout.ids(question["answer"]), END]))
                need[kind] -= 1
            if not any(need.values()):
                break
        pipe.close()
    return out


@torch.no_grad()
def evaluate(model, layout, corpus, words, count):
    """Exact match by kind, and the mean number of prompt tokens."""
    rows = sorted(questions(layout, corpus, words, count), key=lambda row: len(row[1]) + len(row[2]))
    right, asked = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    step = 8
    for start in range(0, len(rows), step):
        group = rows[start : start + step]
        longest = max(len(prompt) + len(answer) for _, prompt, answer in group) - 1
        ids = torch.zeros((len(group), longest), dtype=torch.long)
        for index, (_, prompt, answer) in enumerate(group):
            ids[index, : len(prompt) + len(answer) - 1] = torch.tensor(prompt + answer[:-1])
        hidden = model(ids, torch.arange(longest).expand(len(group), -1))
        for index, (kind, prompt, answer) in enumerate(group):
            told = model.logits(hidden[index, len(prompt) - 1 : len(prompt) + len(answer) - 1]).argmax(-1)
            right[kind] += told.tolist() == answer
            asked[kind] += 1
    result = {kind: round(right[kind] / asked[kind], 3) for kind in KINDS if asked[kind]}
    result["prompt"] = round(sum(len(prompt) for _, prompt, _ in rows) / max(1, len(rows)))
    return result


@torch.no_grad()
def greedy(model, prompt, limit):
    """Greedy answer by single steps with a KV cache, its end token included."""
    past = [[] for _ in model.layers]
    hidden = model(torch.tensor([prompt]), torch.arange(len(prompt))[None], past)
    out = []
    while len(out) < limit:
        out.append(int(model.logits(hidden[0, -1]).argmax()))
        if out[-1] == END:
            break
        hidden = model(torch.tensor([out[-1:]]), torch.tensor([[len(prompt) + len(out) - 1]]), past)
    return out


def load_gguf(path):
    """The model of a GGUF file as `export.py` writes it, with its quantized weights."""
    reader = gguf.GGUFReader(path)

    def field(name):
        return int(reader.fields[f"llama.{name}"].contents())

    weights = {t.name: torch.from_numpy(np.array(gguf.dequantize(t.data, t.tensor_type))) for t in reader.tensors}
    shape = dict(e=field("embedding_length"), h=field("attention.head_count"), g=field("attention.head_count_kv"),
                 f=field("feed_forward_length"), layers=field("block_count"), context=field("context_length"))
    model = Llama(weights["token_embd.weight"].shape[0], **shape)

    def halves(matrix, heads):
        rows, columns = matrix.shape
        return matrix.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)

    state = {"embed": weights["token_embd.weight"], "norm": weights["output_norm.weight"]}
    for index in range(shape["layers"]):
        part = {name: weights[f"blk.{index}.{name}.weight"] for name in (
            "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")}
        q, k = halves(part["attn_q"], shape["h"]), halves(part["attn_k"], shape["g"])
        layer = {"attn_norm": part["attn_norm"], "ffn_norm": part["ffn_norm"], "o": part["attn_output"],
                 "qkv": torch.cat((q, k, part["attn_v"])), "down": part["ffn_down"],
                 "gate_up": torch.cat((part["ffn_gate"], part["ffn_up"]))}
        state.update({f"layers.{index}.{name}": value for name, value in layer.items()})
    model.load_state_dict(state)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("gguf", "tokenizer", "corpus"):
        parser.add_argument(name)
    parser.add_argument("--words", required=True)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--greedy", type=int, default=0, help="answers to decode step by step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, layout = load_gguf(args.gguf), Layout(Tokenizer.from_file(args.tokenizer))
    for words in args.words.split(","):
        print(words, json.dumps(evaluate(model, layout, args.corpus, words, args.count)), flush=True)
        differ = 0
        for _, prompt, answer in questions(layout, args.corpus, words, args.greedy)[: args.greedy]:
            hidden = model(torch.tensor([prompt + answer[:-1]]), torch.arange(len(prompt + answer) - 1)[None])
            once = model.logits(hidden[0, len(prompt) - 1 :]).argmax(-1).tolist() == answer
            differ += once != (greedy(model, prompt, len(answer) + 1) == answer)
        if args.greedy:
            print(words, "differ by single steps:", differ, flush=True)


if __name__ == "__main__":
    main()
