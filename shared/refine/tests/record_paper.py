"""Records what the paper's choice of sentences is, by NumPy: `python3 record_paper.py > data/paper.json` (numpy 2).

P/D-Device section 3.2 as SnapKV (Li 2024, listing 1) has it: softmax of the last queries against all keys, summed over
the queries, max-pooled by a kernel of 7, the top r |C| content positions of every head; a sentence's value is how many
times its tokens are among them over its length; sentences fill the budget by value, the earlier first, and what does not
fit is skipped. Scores are kept as whole multiples of 2^-20 before anything is chosen, so that they are the same numbers
wherever they are read.
"""

import json

import numpy as np

CASES = 28
SCALE = 1 << 20
POOL_REACH = 3


def window_scores(rng, heads, keys, window, d):
    """Mean softmax weight of the last queries on every key, `[heads, keys]`, with a few keys that stand out."""
    q = rng.standard_normal((heads, window, d))
    k = rng.standard_normal((heads, keys, d))
    for head in range(heads):
        for key in rng.integers(0, keys, 4):
            k[head, key] += 1.5 * q[head].mean(0) * rng.random()
    logits = np.einsum("hwd,hkd->hwk", q, k) / np.sqrt(d)
    later = np.arange(keys)[None] > np.arange(keys - window, keys)[:, None]
    logits[:, later] = -np.inf
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.rint(weights.mean(1) * SCALE).astype(np.int64)


def max_pooled(scores):
    """Max-pooling over neighbours, positions outside counting nothing."""
    padded = np.pad(scores, ((0, 0), (POOL_REACH, POOL_REACH)), constant_values=-1)
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * POOL_REACH + 1, axis=1).max(-1)


def chosen(scores, first, lengths, ratio):
    """Votes of each content token, and the indices of the kept sentences."""
    content = int(sum(lengths))
    budget = int(np.floor(ratio * content + 1e-6))
    pooled = max_pooled(scores)[:, first : first + content]
    top = np.argsort(-pooled, axis=1, kind="stable")[:, :budget]
    votes = np.bincount(top.ravel(), minlength=content)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    values = np.add.reduceat(votes, starts) / np.array(lengths)
    kept, left = [], budget
    for unit in np.argsort(-values, kind="stable"):
        if lengths[unit] <= left:
            kept.append(int(unit))
            left -= lengths[unit]
    return votes.tolist(), sorted(kept)


def main():
    rng = np.random.default_rng(2024)
    cases = []
    for index in range(CASES):
        lengths = rng.integers(2, 15, int(rng.integers(5, 22))).tolist()
        first, suffix = int(rng.integers(0, 12)), int(rng.integers(3, 24))
        keys, heads = first + sum(lengths) + suffix, int(rng.integers(1, 5))
        scores = window_scores(rng, heads, keys, min(32, keys), 8)
        if index % 7 == 6:
            scores //= 4000  # Many ties.
        ratio = [0.1, 0.25, 0.5, 0.3][index % 4]
        while ratio * sum(lengths) < min(lengths):
            ratio = 0.5
        votes, kept = chosen(scores, first, lengths, ratio)
        cases.append({"first": first, "lengths": lengths, "ratio": ratio, "scores": scores.tolist(),
                      "votes": votes, "kept": kept})
    rows = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    print('{"scale":%d,"cases":[\n%s\n]}' % (SCALE, rows))


if __name__ == "__main__":
    main()
