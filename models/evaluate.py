"""Exact match of greedy answers on held-out documents.

Greedy decoding gives the right answer exactly when, reading prompt and right answer, the likeliest next token is the
right one at every position of the answer and its end; so one pass over prompt and answer measures it.
"""

import torch

from layout import END, Corpus

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
