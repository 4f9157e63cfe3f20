"""Records the paper's choice of sentences, computed by NumPy 2: `python3 record_paper.py > data/paper.json`.

The method is P/D-Device, section 3.2, with SnapKV (Li 2024, listing 1). The softmax of the last queries over all keys is
averaged over the queries and max-pooled with a kernel of 7. Every head votes for its top r |C| content positions. A
sentence's value is the number of votes for its tokens divided by its length. Sentences fill the budget by value, the
earlier first; a sentence that does not fit is skipped. Scores are rounded to multiples of 2^-20 before the choice, so
that every program reads the same numbers.
"""

import json

import numpy as np

CASES = 28
SCALE = 1 << 20
POOL_REACH = 3


def window_scores(rng, heads, keys, window, d):
    """Returns the mean softmax weight of the last queries on every key, `[heads, keys]`; a few keys have large weights."""
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
    """Max-pools over adjacent positions; positions outside do not count."""
    padded = np.pad(scores, ((0, 0), (POOL_REACH, POOL_REACH)), constant_values=-1)
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * POOL_REACH + 1, axis=1).max(-1)


def chosen(scores, first, lengths, ratio):
    """Returns the votes for each content token, and the indices of the kept sentences."""
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
            scores //= 4000  # Makes many ties.
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
