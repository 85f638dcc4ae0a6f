"""Writes test sentences of about PIECES source pieces: python scripts/by_length.py DATA PIECES --output OUT

DATA is a prepared folder. OUT.SOURCE and OUT.TARGET, named by language, get the sentences of its test split whose
sources have at most 20 % fewer or more pieces; with --low SHARE, at least that share of them.
"""

import argparse
from pathlib import Path

from padir.data.prepared import load_manifest, load_tokenizer, read_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("pieces", type=int)
    parser.add_argument("--output", required=True)
    parser.add_argument("--low", type=float, default=0.8)
    args = parser.parse_args()
    sides = read_text(args.data, "test")
    counts = [len(ids) for ids in load_tokenizer(args.data).encode_batch(sides[0])]
    kept = [i for i, count in enumerate(counts) if args.low * args.pieces <= count <= 1.2 * args.pieces]
    for language, texts in zip(load_manifest(args.data).source.languages, sides, strict=True):
        Path(f"{args.output}.{language}").write_text("".join(f"{texts[i]}\n" for i in kept), encoding="utf-8")
    print(f"{len(kept)} sentences, {sum(counts[i] for i in kept) / max(1, len(kept)):.1f} pieces on average")


if __name__ == "__main__":
    main()
