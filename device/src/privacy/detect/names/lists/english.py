"""Makes english.gz: the words of a spell checker's English dictionary, one a line, sorted, in gzip.

Source: the npm package dictionary-en (Hunspell's en_US of SCOWL, MIT and BSD; english.license).

    npm pack dictionary-en && tar xzf dictionary-en-*.tgz
    python3 english.py package english.gz

Only words that are written with a small letter are taken: the dictionary has names too, with a capital one.
"""

import gzip
import re
import sys
from pathlib import Path

SUFFIX = re.compile(r"(SFX|PFX) (\S) +(\S+) +(\S+) +(\S+)")
WORD = re.compile(r"[a-z]{3,24}")


def rules(text):
    """Returns the affixes of each flag: (is it a prefix, what is removed, what is added, condition)."""
    found = {}
    for kind, flag, removed, added, condition in SUFFIX.findall(text):
        removed = "" if removed == "0" else removed
        found.setdefault(flag, []).append((kind == "PFX", removed, added, condition))
    return found


def forms(word, flags, affixes):
    """Returns a word with each of its suffixes, and all of them with each of its prefixes."""
    words = {word}
    for prefix in (False, True):
        for is_prefix, removed, added, condition in (rule for flag in flags for rule in affixes.get(flag, [])):
            if is_prefix != prefix:
                continue
            if prefix:
                words |= {added + form for form in words}
            elif word.endswith(removed) and re.search(condition + "$", word):
                words.add(word[: len(word) - len(removed)] + added)
    return words


def main():
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    affixes = rules((folder / "index.aff").read_text("utf-8"))
    words = set()
    for line in (folder / "index.dic").read_text("utf-8").splitlines()[1:]:
        word, _, flags = line.partition("/")
        if WORD.fullmatch(word):
            words |= forms(word, flags, affixes)
    text = "\n".join(sorted(form for form in words if WORD.fullmatch(form))) + "\n"
    out.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{text.count(chr(10))} words, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
