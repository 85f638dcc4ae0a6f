"""Writes sentence pairs of the built-in corpus as plain text files, for trying what needs text of one's own.

python scripts/write_toy_text.py FOLDER --train 20000 --held_out 500
"""

import argparse
import itertools
from pathlib import Path

from padir.data.sources import get_source

NAMES = {"train": "train", "validation": "valid", "test": "test"}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where train.de, train.en, valid.de ... go")
    parser.add_argument("--train", type=int, default=20_000, help="training pairs (20,000)")
    parser.add_argument("--held_out", type=int, default=500, help="pairs of the validation and the test split (500)")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for split, name in NAMES.items():
        count = args.train if split == "train" else args.held_out
        pairs = list(itertools.islice(get_source("toy_de_en").pairs(split), count))
        for side, language in enumerate(("de", "en")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (args.folder / f"{name}.{language}").write_text(text, encoding="utf-8")
