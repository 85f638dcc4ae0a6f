"""Writes the training pairs of a prepared or distilled folder as text: python scripts/distilled_text.py DATA OUT

OUT.SOURCE and OUT.TARGET, named by language, have one sentence in each line, for `padir prepare --placeholders`.
With --joined N there are N pairs instead, each made of several that are drawn at random and joined by a space:
a model that is to translate long lines needs such rows.
"""

import argparse
import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader

from padir.data.prepared import load_manifest, load_tokenizer


class Pair(NamedTuple):
    """A pair, and the greater of its sides' numbers of tokens."""

    source: str
    target: str
    tokens: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("output")
    parser.add_argument("--joined", type=int, metavar="N")
    parser.add_argument("--most", type=int, default=9, help="the largest number of pairs that are joined")
    parser.add_argument("--tokens", type=int, default=92, help="limit of a joined side")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    pairs = read(args.data)
    if args.joined is not None:
        rng = random.Random(args.seed)
        pairs = [joined(rng, pairs, args.most, args.tokens) for _ in range(args.joined)]
    for side, language in enumerate(load_manifest(args.data).source.languages):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        Path(f"{args.output}.{language}").write_text(text, encoding="utf-8")


def read(folder: Path) -> list[Pair]:
    """The training pairs of a folder: a record has the source's number of ids, the source's ids, the target's ids."""
    decode, pairs = load_tokenizer(folder).decode, []
    for shard in load_manifest(folder).splits["train"].shards:
        for record in ArrayRecordReader(str(folder / shard)).read_all():
            count, *ids = np.frombuffer(record, "<i4").tolist()
            source, target = (decode(side[:-1]).replace("\n", " ") for side in (ids[:count], ids[count:]))  # no EOS
            pairs.append(Pair(source, target, max(count, len(ids) - count)))
    return pairs


def joined(rng: random.Random, pairs: list[Pair], most: int, tokens: int) -> Pair:
    """A pair of 2 to `most` random pairs, as many of them as fit, and at least two."""
    while True:
        some = rng.sample(pairs, rng.randint(2, most))
        while sum(pair.tokens for pair in some) > tokens:
            some.pop()
        if len(some) > 1:
            sources, targets, _ = zip(*some, strict=True)
            return Pair(" ".join(sources), " ".join(targets), 0)


if __name__ == "__main__":
    main()
