"""Trains one stage of one model. `models/README.md` lists the stages; `models/make.sh` runs them all.

Development only: neither the programs nor their tests need Python.
"""

import argparse
import json
import math
import sys
import time

import numpy as np
import torch
from torch.nn import functional as F

from evaluate import evaluate
from layout import Corpus, Layout, repeat_row
from net import Llama, grow, load, new_vocabulary, save, seed_induction
from tokenizers import Tokenizer


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalized by Newton-Schulz steps (Jordan 2024), for matrices of the body.

    The update is scaled to the size of an AdamW one (0.2 sqrt(max side), Liu 2025).
    """

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                x = p.grad.lerp(buffer, group["momentum"])
                tall = x.shape[0] > x.shape[1]
                x = x.T if tall else x
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    s = x @ x.T
                    x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
                x = x.T if tall else x
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(x, alpha=-group["lr"] * 0.2 * math.sqrt(max(p.shape)))


def positions(batch, length, ends, rng, span):
    """Positions with random jumps inside the document, so that far distances are seen in short rows."""
    steps = np.ones((batch, length), dtype=np.int64)
    steps[:, 0] = 0
    for row in range(batch):
        if span > length and rng.random() < 0.5:
            spare = int(rng.integers(0, span - length))
            cuts = int(rng.integers(1, 5))
            for part in np.diff(np.sort(np.append(rng.integers(0, spare + 1, cuts), 0))):
                steps[row, int(rng.integers(1, max(2, ends[row])))] += int(part)
    return torch.from_numpy(np.cumsum(steps, 1))


def batches(args, layout, rng):
    """Endless batches: ids, positions, and the weight of each position's prediction."""
    source = ["--train", "--from", args.seed << 32, "--count", 1 << 40, "--words", args.words]
    corpora = [iter(Corpus(args.corpus, source))]
    if args.refined:
        longs = ["--train", "--from", (args.seed << 32) + (1 << 31), "--count", 1 << 40, "--words", "400-1500"]
        corpora.append(iter(Corpus(args.corpus, [*longs, "--refine", args.refined_words])))
    mix = dict(zip(("short", "long", "two_hop"), map(float, args.mix.split(","))))
    while True:
        rows = []
        while len(rows) < args.batch:
            if rng.random() < args.repeats:
                rows.append(repeat_row(layout.size, args.length, rng))
                continue
            document = next(corpora[int(rng.random() < args.refined)])
            row = layout.row(document, args.length, rng, mix)
            if row:
                rows.append(row)
        longest = args.length + 1
        ids = np.zeros((args.batch, longest), dtype=np.int64)
        weights = np.zeros((args.batch, longest), dtype=np.float32)
        for index, (row, weight, *_) in enumerate(rows):
            ids[index, : len(row)] = row
            weights[index, : len(row)] = np.maximum(weight, rng.random(len(row)) < 0.06) * np.where(weight, 1.0, 0.3)
        weights[:, 0] = 0
        yield torch.from_numpy(ids), positions(args.batch, longest, [r[2] for r in rows], rng, args.span), weights, rows


def look_loss(pair, rows, rng, most=16):
    """Teaches the first head of each KV group look from a question's end to the sentences that answer it.

    For up to `most` questions: minus the mean log of the attention mass on each gold sentence, seen from the last two
    tokens of the question; and, at weight 0.2, minus the log of the mass on BOS, seen from a token before them, which
    cannot know yet what is asked about.
    """
    q, k = pair
    group = q.shape[1] // k.shape[1]
    turns = [(index, *turn) for index, row in enumerate(rows) for turn in row.turns]
    turns = [turns[index] for index in rng.permutation(len(turns))[:most]]
    total = q.new_zeros(())
    for index, first, last, spans in turns:
        places = torch.tensor([int(rng.integers(first, last - 2)), last - 1, last])
        score = torch.einsum("gpd,gtd->gpt", q[index, ::group, places], k[index]) / math.sqrt(q.shape[-1])
        score = score.masked_fill(torch.arange(k.shape[2]) > places[:, None], -1e9).log_softmax(-1)
        total = total - 0.2 * score[:, 0, 0].mean()
        for start, end in spans:
            total = total - score[:, 1:, start:end].logsumexp(-1).clamp_min(-12).mean() / len(spans)
    return total / max(1, len(turns))


def optimizers(model, args):
    body = [p for p in model.layers.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if all(p is not q for q in body)]
    if args.muon:
        return [
            Muon(body, args.muon, weight_decay=0.02),
            torch.optim.AdamW(rest, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
        ]
    groups = [dict(params=body, weight_decay=0.05), dict(params=rest, weight_decay=0.0)]
    return [torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98), fused=True)]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True, help="the baton-corpus program")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--init", help="checkpoint to go on from")
    parser.add_argument("--grow", type=int, default=0, help="layers to add to it")
    parser.add_argument("--old-tokenizer", help="its tokenizer, if --tokenizer is another one")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--ffn", type=int, default=384)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--length", type=int, required=True, help="tokens a row")
    parser.add_argument("--batch", type=int, required=True, help="rows a step")
    parser.add_argument("--words", required=True, help="words a document, LOW-HIGH")
    parser.add_argument("--span", type=int, default=0, help="largest position that jumps may reach")
    parser.add_argument("--repeats", type=float, default=0.2, help="share of rows of random strings")
    parser.add_argument("--refined", type=float, default=0.0, help="share of shortened documents")
    parser.add_argument("--refined-words", default="100-400")
    parser.add_argument("--mix", default="0.8,0.15,0.05", help="shares of short, long, two-hop")
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--muon", type=float, default=0.0, help="rate of Muon for the body; 0: AdamW everywhere")
    parser.add_argument("--look", type=int, default=-1, help="layer whose heads learn to look at gold sentences")
    parser.add_argument("--look-weight", type=float, default=0.2)
    parser.add_argument("--decay", type=float, default=0.0, help="share of the stage in which the rate falls to 5 %%")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--tokens", type=float, required=True, help="length of the stage")
    parser.add_argument("--minutes", type=float, default=1e9, help="end of the stage at the latest")
    parser.add_argument("--gate", default="", help="end early at short,long exact match")
    parser.add_argument("--test", default="", help="words of test documents, several by commas; r before: refined")
    parser.add_argument("--every", type=float, default=5e5, help="tokens between tests")
    parser.add_argument("--count", type=int, default=64, help="questions of a kind a test")
    return parser.parse_args()


def start_model(args, layout):
    if not args.init:
        model = Llama(layout.size, e=args.width, f=args.ffn, layers=args.layers)
        seed_induction(model)
        return model
    model, _ = load(args.init)
    if args.old_tokenizer:
        old = Tokenizer.from_file(args.old_tokenizer).get_vocab()
        model = new_vocabulary(model, old, layout.tokenizer.get_vocab())
    return grow(model, args.grow) if args.grow else model


def rate(args, progress, step):
    fall = (1 - progress) / args.decay if args.decay else 1.0
    return min(1.0, (step + 1) / args.warmup, max(0.05, fall))


def main():
    args = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    layout = Layout(Tokenizer.from_file(args.tokenizer))
    model = start_model(args, layout)
    tuners = optimizers(model, args)
    base_rates = [[g["lr"] for g in tuner.param_groups] for tuner in tuners]
    started, tokens, next_test, sums, step = time.time(), 0, args.every, np.zeros((4, 2)), 0
    probe_layers = (args.look,) if args.look >= 0 else ()
    compiled = torch.compile(model, dynamic=False)
    stream = batches(args, layout, rng)
    done = False
    while not done:
        ids, places, weights, rows = next(stream)
        minutes = (time.time() - started) / 60
        factor = rate(args, max(tokens / args.tokens, minutes / args.minutes), step)
        for tuner, rates in zip(tuners, base_rates):
            for group, base in zip(tuner.param_groups, rates):
                group["lr"] = base * factor
        hidden = compiled(ids[:, :-1].contiguous(), places[:, :-1].contiguous(), keep=probe_layers)
        hidden, pairs = hidden if probe_layers else (hidden, [])
        row, column = np.nonzero(weights[:, 1:])
        weight = torch.from_numpy(weights[:, 1:][row, column])
        row, column = torch.from_numpy(row), torch.from_numpy(column)
        losses = F.cross_entropy(model.logits(hidden[row, column]), ids[row, column + 1], reduction="none")
        loss = (losses * weight).sum() / weight.sum()
        for pair in pairs:
            looked = look_loss(pair, rows, rng)
            loss = loss + args.look_weight * looked
            sums[3] += [looked.item(), 1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for tuner in tuners:
            tuner.step()
        model.zero_grad(set_to_none=True)
        tokens += ids.numel()
        step += 1
        kind = np.where(weight < 1, 2, [int(not rows[r].turns) for r in row])
        for which in range(3):
            sums[which] += [losses.detach()[kind == which].sum().item(), int((kind == which).sum())]
        done = tokens >= args.tokens or minutes >= args.minutes
        if tokens >= next_test or done:
            next_test += args.every
            results = {}
            for words in filter(None, args.test.split(",")):
                results[words] = evaluate(model, layout, args.corpus, words, args.count)
            note = dict(tokens=tokens, minutes=round((time.time() - started) / 60, 2), step=step,
                        loss=np.round(sums[:, 0] / np.maximum(sums[:, 1], 1), 3).tolist(), exact=results)
            print(json.dumps(note), flush=True)
            sums = np.zeros((4, 2))
            save(model, args.out, seed=args.seed, **note)
            if args.gate and results:
                short, long = map(float, args.gate.split(","))
                last = list(results.values())[-1]
                done |= last["short"] >= short and last["long"] >= long
    return 0


if __name__ == "__main__":
    sys.exit(main())
