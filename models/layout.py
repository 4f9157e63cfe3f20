"""The chat layout and the training rows: everything that turns documents into token ids.

Each segment of a prompt is tokenized alone and the ids are joined, exactly as the programs do it at run time.
"""

import json
import subprocess
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CONTROL = ["<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
BOS, END, SYSTEM, USER, ASSISTANT = range(5)
SYSTEM_TEXT = "You answer from the document."
QUESTION_MARK = "\n\nQuestion: "
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(texts, size):
    """Byte-level BPE as in GPT-2: all 256 bytes are entries, so every text encodes; control tokens come first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=CONTROL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return tokenizer


class Corpus:
    """Documents of the generator, read from the pipe of a `baton-corpus` process."""

    def __init__(self, program, args):
        self.process = subprocess.Popen([program, *map(str, args)], stdout=subprocess.PIPE)

    def __iter__(self):
        for line in self.process.stdout:
            yield json.loads(line)

    def close(self):
        self.process.stdout.close()
        self.process.terminate()
        self.process.wait()


class Row(NamedTuple):
    """Token ids, their weights (1 for what the model must say, 0 else), where the document ends, and the turns: first
    and last position of the question, and the token spans `[sentences, 2]` of its gold sentences."""

    ids: list
    weights: list
    document_end: int
    turns: list


class Layout:
    """Prompts and rows of one tokenizer."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.size = tokenizer.get_vocab_size()
        self.cache = {}
        self.head = [BOS, SYSTEM, *self.ids(SYSTEM_TEXT), END, USER]

    def ids(self, text):
        return self.tokenizer.encode(text).ids

    def cached(self, text):
        """Ids of a short text; questions and values come back often."""
        if text not in self.cache:
            if len(self.cache) > 200_000:
                self.cache.clear()
            self.cache[text] = self.ids(text)
        return self.cache[text]

    def prompt(self, document_ids, question):
        return [*self.head, *document_ids, *self.cached(QUESTION_MARK + question), END, ASSISTANT]

    def row(self, document, length, rng, mix):
        """A `Row` of a document and as many of its questions as fit; None if none fits.

        `mix` gives the share of each kind of question. Later questions are further turns of the same chat.
        """
        encoded = self.tokenizer.encode(document["text"])
        starts = np.array([start for start, _ in encoded.offsets])
        ids = [*self.head, *encoded.ids]
        weights = [0] * len(ids)
        by_kind = {"short": [], "long": [], "two_hop": []}
        for question in document["questions"]:
            by_kind[question["kind"]].append(question)
        turns = []
        document_end = len(ids)
        while True:
            kinds = [kind for kind, questions in by_kind.items() if questions]
            if not kinds:
                break
            shares = np.array([mix[kind] for kind in kinds]) + 1e-9
            kind = kinds[rng.choice(len(kinds), p=shares / shares.sum())]
            question = by_kind[kind].pop(0)
            ask = [*self.cached(QUESTION_MARK + question["text"]), END, ASSISTANT]
            if turns:
                ask = [USER, *ask]
            answer = [*(self.ids(question["answer"]) if kind == "long" else self.cached(question["answer"])), END]
            if len(ids) + len(ask) + len(answer) > length:
                if kind != "short" and by_kind["short"]:
                    by_kind[kind] = []
                    continue
                break
            gold = np.array(question["gold"])
            spans = np.searchsorted(starts, gold[:, 0], "right") - 1, np.searchsorted(starts, gold[:, 1])
            turns.append((len(ids), len(ids) + len(ask) - 3, np.stack(spans, 1) + len(self.head)))
            ids += ask + answer
            weights += [0] * len(ask) + [1] * len(answer)
        if not turns:
            return None
        return Row(ids, weights, document_end, turns)


def repeat_row(size, length, rng):
    """A row of random strings repeated with small gaps; weight 1 on what a reader of the row can know.

    Half of the rows draw from a small alphabet, so that one earlier token does not tell what comes next.
    """
    alphabet = np.arange(len(CONTROL), size)
    small = rng.random() < 0.5
    if small:
        alphabet = rng.choice(alphabet, int(rng.integers(12, 120)), replace=False)
    longest = 30 if rng.random() < 0.7 else max(30, min(120, length // 3))
    count = 1 + int(rng.integers(0, max(1, length // 100) + 1))
    strings = [rng.choice(alphabet, int(rng.integers(6, longest + 1))) for _ in range(count)]
    seen = [False] * count
    known_from = 3 if small else 1
    ids, weights = [BOS], [0]
    while len(ids) < length:
        index = int(rng.integers(count))
        gap = alphabet[rng.integers(0, len(alphabet), int(rng.integers(0, 6)))]
        ids += gap.tolist() + strings[index].tolist()
        known = np.zeros(len(gap) + len(strings[index]), dtype=int)
        if seen[index]:
            known[len(gap) + known_from :] = 1
        weights += known.tolist()
        seen[index] = True
    return Row(ids[:length], weights[:length], length, [])
