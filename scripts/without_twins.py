"""Writes the pairs of a test set whose source and target have no near twin in the training text.

    python scripts/without_twins.py --train train.de train.en --test test.de test.en --output test_without_twins

writes test_without_twins.de and test_without_twins.en (with the endings of the files of --test). A twin of a source is
a training source whose `difflib.SequenceMatcher.ratio()` with it is at least --ratio; a twin of a target is a training
target. Case is ignored. Files may be plain text or .gz.
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
    parser.add_argument("--train", nargs="+", required=True, metavar="FILE", help="sources, targets, sources, ...")
    parser.add_argument("--test", nargs=2, required=True, metavar=("SOURCES", "TARGETS"), help="the test set")
    parser.add_argument("--ratio", type=float, default=0.8, help="least similarity of a twin, 0 to 1 (0.8)")
    parser.add_argument("--output", required=True, metavar="NAME", help="name of the files to write, without ending")
    args = parser.parse_args()
    outputs = [f"{args.output}{Path(path.removesuffix('.gz')).suffix}" for path in args.test]
    if outputs[0] == outputs[1]:
        parser.error(f"the files of --test must have two endings, got {' and '.join(args.test)}")
    if len(args.train) % 2:
        parser.error(f"--train needs a file of targets for each file of sources, got {len(args.train)} files")
    kept = list(zip(*map(read_lines, args.test), strict=True))
    counts = [len(kept)]
    for side in (0, 1):
        train = dict.fromkeys(line.lower() for path in args.train[side::2] for line in read_lines(path))
        twins = Twins([*train], args.ratio)
        kept = [pair for pair in kept if not twins.has(pair[side].lower())]
        counts.append(len(kept))
    for output, lines in zip(outputs, zip(*kept, strict=True), strict=True):
        write_text(output, "".join(f"{line}\n" for line in lines))
    print("{:,} pairs, {:,} without a twin of the source, {:,} also without a twin of the target".format(*counts))


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
