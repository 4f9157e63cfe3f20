"""Finds the heads of the cloud model that look from a question to the sentences that answer it.

`heads.py CHECKPOINT TOKENIZER CORPUS GGUF OUT`: 64 probes on held-out documents of about 2,000 tokens give each
(layer, head) its attention mass on a gold sentence minus that on a random one, both as shares of the mass on the
document; the best heads, weighted by that difference, go to OUT with the model file's hash. Then it reports how
many of the gold sentences are among the kept ones on other documents, at r = 0.1 and 0.25, beside uniform heads.
"""

import argparse
import hashlib
import json
import math

import numpy as np
import torch
from tokenizers import Tokenizer

from layout import QUESTION_MARK, Corpus, Layout
from net import load

KINDS = ("long", "short", "two_hop")


def probes(program, first, count, words):
    """Documents with one question each, kinds in turn: (text, question)."""
    out = []
    for document in Corpus(program, ["--from", first, "--count", 4 * count, "--words", words]):
        kind = KINDS[len(out) % 3] if len(out) % 8 else "long"
        question = next((q for q in document["questions"] if q["kind"] == kind), None)
        if question:
            out.append((document["text"], question))
        if len(out) == count:
            break
    return out


def sentences(text):
    """Sentences of a generated document: (start, end, is title, paragraph)."""
    out, start = [], 0
    for paragraph, line in enumerate(text.split("\n")):
        end, at = start + len(line), start
        while at < end:
            stop = text.find(". ", at, end)
            stop = end if stop < 0 or line.startswith("#") else stop + 1
            out.append((at, stop, line.startswith("#"), paragraph))
            at = stop + 1
        start = end + 1
    return out


@torch.no_grad()
def scores(model, layout, text, question):
    """Mean attention of the question's window, per (layer, head), on each document token; and the tokens' spans."""
    encoded = layout.tokenizer.encode(text)
    window = min(32, len(layout.cached(QUESTION_MARK + question)))
    head = len(layout.head)
    ids = layout.prompt(encoded.ids, question)[:-2]  # Without the template's tail.
    layers = range(model.shape["layers"])
    rows = []
    for q, k in model(torch.tensor([ids]), torch.arange(len(ids))[None], keep=layers)[1]:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        s = q[0, :, -window:] @ k[0].transpose(-1, -2) / math.sqrt(q.shape[-1])
        later = torch.arange(len(ids))[None] > torch.arange(len(ids) - window, len(ids))[:, None]
        rows.append(s.masked_fill(later, -1e9).softmax(-1).mean(1)[:, head : head + len(encoded.ids)])
    mass = torch.stack(rows).numpy()  # [layer, head, token]
    for index, (start, end) in enumerate(encoded.offsets):
        if index < 4 - min(4, head) or not any(c.isalnum() for c in text[start:end]):
            mass[:, :, index] = 0
    return mass / (mass.sum(-1, keepdims=True) + 1e-9), encoded.offsets


def tokens_of(spans, offsets):
    """Sentence index of each token, -1 outside."""
    owner = np.full(len(offsets), -1)
    for index, (start, end, *_) in enumerate(spans):
        for token, (a, b) in enumerate(offsets):
            if a < end and b > start and (owner[token] < 0 or a >= start):
                owner[token] = index
    return owner


def select(x, owner, spans, budget):
    """Indices of the kept sentences: refiner's steps 5 and 6."""
    values, lengths = [], []
    for index in range(len(spans)):
        part = np.sort(x[owner == index])[::-1]
        lengths.append(len(part))
        values.append(part[: max(4, -(-len(part) // 2))].sum() / max(len(part), 8))
    better = []
    for index, (*_, paragraph) in enumerate(spans):
        near = [values[n] for n in (index - 1, index + 1) if 0 <= n < len(spans) and spans[n][3] == paragraph]
        better.append(values[index] + 0.25 * max(near, default=0.0))
    kept, used = set(), 0
    for index in sorted((i for i in range(len(spans)) if not spans[i][2]), key=lambda i: (-better[i], i)):
        title = next((i for i in range(index, -1, -1) if spans[i][2]), None)
        cost = lengths[index] + (lengths[title] if title is not None and title not in kept else 0)
        if used + cost <= budget:
            kept |= {index} | ({title} if title is not None else set())
            used += cost
    return kept


def recall(model, layout, cases, beta):
    """Shares of gold sentences kept, and of questions whose gold was kept as a whole, by r and kind."""
    out = {}
    for text, question in cases:
        mass, offsets = scores(model, layout, text, question["text"])
        spans = sentences(text)
        owner = tokens_of(spans, offsets)
        x = np.tensordot(beta, mass, ((0, 1), (0, 1)))
        gold = {i for i, span in enumerate(spans) for g in question["gold"] if span[0] == g[0]}
        for r in (0.1, 0.25):
            kept = select(x, owner, spans, int(r * len(offsets)))
            out.setdefault((r, question["kind"]), []).append((len(gold & kept) / len(gold), gold <= kept))
    return {f"r={r} {kind}": {"sentences": round(float(np.mean([a for a, _ in v])), 3),
                              "whole": round(float(np.mean([b for _, b in v])), 3), "cases": len(v)}
            for (r, kind), v in sorted(out.items())}


def calibrate(model, layout, cases, count):
    rng = np.random.default_rng(1)
    shape = (model.shape["layers"], model.shape["h"])
    gains = np.zeros(shape)
    for text, question in cases:
        mass, offsets = scores(model, layout, text, question["text"])
        spans = sentences(text)
        owner = tokens_of(spans, offsets)
        starts = {g[0] for g in question["gold"]}
        gold = [i for i, span in enumerate(spans) if span[0] in starts]
        other = [i for i, span in enumerate(spans) if span[0] not in starts and not span[2]]
        # A head must serve the gold sentence that it sees least: long answers need them all.
        gains += np.mean([mass[:, :, owner == i].sum(-1) for i in gold], 0)
        gains -= mass[:, :, owner == other[rng.integers(len(other))]].sum(-1)
    gains /= len(cases)
    order = np.argsort(-gains.ravel())[:count]
    beta = np.zeros(gains.size)
    beta[order] = np.maximum(gains.ravel()[order], 0)
    return (beta / beta.sum()).reshape(shape), gains


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("checkpoint", "tokenizer", "corpus", "gguf", "out"):
        parser.add_argument(name)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--words", default="1400-1700")
    parser.add_argument("--cases", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, _ = load(args.checkpoint)
    layout = Layout(Tokenizer.from_file(args.tokenizer))
    seed = 3_000_000
    beta, gains = calibrate(model, layout, probes(args.corpus, seed, 64, args.words), args.heads)
    print("gain by layer and head", np.round(gains, 4).tolist())
    with open(args.gguf, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    heads = [{"layer": int(l), "head": int(h), "weight": round(float(beta[l, h]), 6)}
             for l, h in sorted(zip(*np.nonzero(beta)), key=lambda at: -beta[at])]
    heads[0]["weight"] = round(heads[0]["weight"] + 1 - sum(head["weight"] for head in heads), 6)
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump({"model_sha256": digest, "heads": heads, "probes": 64, "seed": seed}, file, indent=1)
        file.write("\n")
    cases = probes(args.corpus, seed + 100_000, args.cases, args.words)
    print("calibrated", json.dumps(recall(model, layout, cases, beta), indent=1))
    layers = model.shape["layers"]
    uniform = np.zeros_like(beta)
    uniform[math.ceil(0.3 * layers) : math.floor(0.8 * layers) + 1] = 1
    print("uniform", json.dumps(recall(model, layout, cases, uniform / uniform.sum()), indent=1))


if __name__ == "__main__":
    main()
