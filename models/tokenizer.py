"""Trains a tokenizer on generated documents: `tokenizer.py CORPUS_PROGRAM SIZE OUT FIRST_SEED`."""

import sys

from layout import QUESTION_MARK, SYSTEM_TEXT, Corpus, train_tokenizer


def texts(program, first):
    for document in Corpus(program, ["--train", "--from", first, "--count", 4000, "--words", "200-600"]):
        yield document["text"]
        yield SYSTEM_TEXT
        for question in document["questions"][:20]:
            yield QUESTION_MARK + question["text"]
            yield question["answer"]


if __name__ == "__main__":
    program, size, out, first = sys.argv[1:5]
    train_tokenizer(texts(program, int(first)), int(size)).save(out)
