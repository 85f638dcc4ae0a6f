"""Writes the pairs of a test set whose source has no near twin among the training sources.

    python scripts/without_twins.py --train train.de --test test.de test.en --output test_without_twins

writes test_without_twins.de and test_without_twins.en (with the endings of the files of --test). A twin is a training
source whose `difflib.SequenceMatcher.ratio()` with the test source is at least --ratio; case is ignored. Files may be
plain text or .gz.
"""

import argparse
import difflib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from padir.cli.console import read_lines
from padir.storage.files import write_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", nargs="+", required=True, metavar="FILE", help="training sources")
    parser.add_argument("--test", nargs=2, required=True, metavar=("SOURCES", "TARGETS"), help="the test set")
    parser.add_argument("--ratio", type=float, default=0.8, help="least similarity of a twin, 0 to 1 (0.8)")
    parser.add_argument("--output", required=True, metavar="NAME", help="name of the files to write, without ending")
    args = parser.parse_args()
    outputs = [f"{args.output}{Path(path.removesuffix('.gz')).suffix}" for path in args.test]
    if outputs[0] == outputs[1]:
        parser.error(f"the files of --test must have two endings, got {' and '.join(args.test)}")
    train = list(dict.fromkeys(line.lower() for path in args.train for line in read_lines(path)))
    sources, targets = map(read_lines, args.test)
    twins = Twins(train, args.ratio)
    kept = [pair for pair in zip(sources, targets, strict=True) if not twins.has(pair[0].lower())]
    for output, lines in zip(outputs, zip(*kept, strict=True), strict=True):
        write_text(output, "".join(f"{line}\n" for line in lines))
    share = 1 - len(kept) / len(sources)
    print(f"{len(kept):,} of {len(sources):,} pairs have no twin ({100 * share:.1f} % have one)")


class Twins:
    """Training lines, with the number of times that each has each character.

    The matching blocks of two lines have at most as many characters as the lines share, whatever their order: only
    lines that share enough are compared.
    """

    def __init__(self, lines: Sequence[str], ratio: float):
        self.lines, self.ratio = lines, ratio
        self.lengths = np.array([len(line) for line in lines])
        self.columns = {character: i for i, character in enumerate(sorted(set("".join(lines))))}
        self.counts = np.zeros((len(self.columns), len(lines)), np.uint8)
        for i, line in enumerate(lines):
            for character, count in Counter(line).items():
                self.counts[self.columns[character], i] = min(count, 255)

    def has(self, line: str) -> bool:
        """True if a training line is similar enough."""
        shared = np.zeros(len(self.lines), np.int32)
        for character, count in Counter(line).items():
            if character in self.columns:
                shared += np.minimum(self.counts[self.columns[character]], count)
        total = self.lengths + len(line)
        bound = np.where(total > 0, 2 * shared / np.maximum(total, 1), 1.0)  # two empty lines are equal
        matcher = difflib.SequenceMatcher(b=line, autojunk=False)
        for i in sorted(np.flatnonzero(bound >= self.ratio), key=bound.__getitem__, reverse=True):
            matcher.set_seq1(self.lines[i])
            if matcher.ratio() >= self.ratio:
                return True
        return False


if __name__ == "__main__":
    main()
