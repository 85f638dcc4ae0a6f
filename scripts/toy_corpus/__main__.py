"""Writes the corpus `toy_de_en`: compressed tables of German, the English that was drawn, and all right translations.

    python scripts/toy_corpus padir/data/toy

`grammar` has the rules, `lexicon` the words (`tables`), `sampler` draws sentences. The spelling of a sentence
determines its split. Translations are in the files of validation and test only, the likeliest first.
"""

from __future__ import annotations

import argparse
import itertools
import lzma
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

from grammar import NounPhrase, Reference, Sentence
from sampler import sample

SIZES = {"train": 100_000, "validation": 500, "test": 1_000}


def rows(split: str) -> Iterator[list[str]]:
    """German, the drawn English and all right translations, the same in every process and version of Python."""
    rng = random.Random(f"toy_de_en 0 {split}")  # a text seeds by its sha512, not by hash()
    seen: set[str] = set()
    while True:
        sentence = sample(rng)
        if has_unseen_pair(sentence) != (split != "train" and len(seen) % 2 == 0):
            continue
        german = sentence.german()
        if german in seen or _split_of(german) != split:
            continue
        seen.add(german)
        choices = sentence.references()
        yield [german, _draw(rng, choices), *(choice.text for choice in choices)]


def _split_of(german: str) -> str:
    return {0: "test", 1: "validation"}.get(zlib.crc32(german.encode()) % 8, "train")


def _draw(rng: random.Random, choices: tuple[Reference, ...]) -> str:
    draw = rng.random()
    for reference in choices:
        draw -= reference.probability
        if draw < 0:
            return reference.text
    return choices[-1].text


def has_unseen_pair(sentence: Sentence) -> bool:
    """True if the sentence has a pair of a verb and an object noun that no training sentence has."""
    pairs = (
        f"{clause.verb.prefix}{clause.verb.infinitive} {clause.object.noun.singular}"
        for clause in (sentence.main, sentence.other)
        if clause is not None and isinstance(clause.object, NounPhrase)
    )
    return any(zlib.crc32(pair.encode()) % 10 == 0 for pair in pairs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where train.tsv.xz, validation.tsv.xz and test.tsv.xz go")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in SIZES.items():
        columns = 2 if split == "train" else None
        text = "".join("\t".join(row[:columns]) + "\n" for row in itertools.islice(rows(split), size))
        (folder / f"{split}.tsv.xz").write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
