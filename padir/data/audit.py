"""Checks pairs while they are prepared: filters drop some, and warnings say what filters would drop."""

from __future__ import annotations

import array
import collections
import hashlib
import logging
import re

import numpy as np

from padir.text.languages import UNSPACED, is_foreign, same, script

FILTERS = ("duplicate", "equal", "script")
_WARN_SHARE = 0.05  # of pairs
_WARN_RATIO = 3.0  # of the tokens of two sides
_WORD_PAIRS = 10_000  # pairs of a corpus whose words are counted
_ENOUGH_WORDS = 50  # on each side, to tell whether their language is the same
_ALIKE = 0.9  # cosine of the counts of words of two sides
_WORD = re.compile(r"[^\W\d_]+")

_log = logging.getLogger("padir")


class Audit:
    """Filters for the pairs of a training split, and counts for warnings about all splits.

    Args:
      languages: codes of source and target.
      drop: filters of `FILTERS` to apply: "duplicate" drops a pair that came before; "equal" drops two equal sides;
        "script" drops a side with fewer than half of its letters in the script of its language.
    """

    def __init__(self, languages: tuple[str, str], drop: tuple[str, ...] = ()):
        self._scripts = tuple(script(language) for language in languages)
        self._by_character = tuple(each in UNSPACED for each in self._scripts)
        self._told_apart = not same(*languages)
        self._drop = drop
        self._seen: set[int] = set()  # filled only where duplicates are dropped
        self._train = np.zeros(0, np.int64)

    def begin(self, split: str) -> None:
        """Begins a split; training comes first."""
        self._split, self._read = split, 0
        self._hashes = array.array("q")
        self._found: collections.Counter[str] = collections.Counter()
        self._words: dict[str, tuple[collections.Counter[str], collections.Counter[str]]] = {}
        self._counted: collections.Counter[str] = collections.Counter()

    def reason_to_drop(self, corpus: str, pair: tuple[str, str], lengths: tuple[int, int]) -> str | None:
        """The first filter that drops a pair, or None.

        Args:
          corpus: name of the pair's corpus.
          lengths: numbers of tokens of both sides, with EOS.
        """
        self._read += 1
        source, target = pair[0].strip(), pair[1].strip()
        hashed = int.from_bytes(hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=8).digest(), signed=True)
        self._hashes.append(hashed)
        if self._counted[corpus] < _WORD_PAIRS:
            self._counted[corpus] += 1
            for counts, text, by_character in zip(
                self._words.setdefault(corpus, (collections.Counter(), collections.Counter())),
                (source, target),
                self._by_character,
                strict=True,
            ):
                counts.update(text if by_character else _WORD.findall(text.lower()))
        if self._split != "train" or not source or not target:
            return None
        found = []
        if source == target:
            found.append("equal")
        if any(map(is_foreign, (source, target), self._scripts)):
            found.append("script")
        if max(lengths) > _WARN_RATIO * min(lengths):
            found.append("ratio")
        self._found.update(found)
        if "duplicate" in self._drop:
            if hashed in self._seen:
                return "duplicate"
            self._seen.add(hashed)
        return next((name for name in found if name in self._drop), None)

    def end(self, max_length_ratio: float | None) -> None:
        """Ends a split; warns of pairs that filters would have dropped, and of other problems with its pairs.

        Args:
          max_length_ratio: the limit of lengths that was applied.
        """
        hash_N = np.frombuffer(self._hashes, np.int64)
        for corpus, counts in self._words.items():
            if self._told_apart and _alike(*counts):
                _log.warning("%s: both sides of %s look like one language", self._split, corpus)
        if self._split != "train":
            known = int(np.isin(hash_N, self._train).sum())
            if known:
                _log.warning("%s: %s of %s pairs are also in train", self._split, f"{known:,}", f"{self._read:,}")
            return
        self._train = np.unique(hash_N)
        self._found["duplicate"] = len(hash_N) - len(self._train)
        about = {
            "duplicate": ("come more than once", "--dedupe"),
            "equal": ("have equal sides", "--set drop=equal"),
            "script": ("are not in the script of their language", "--set drop=script"),
            "ratio": (f"have lengths with a ratio above {_WARN_RATIO:g}", "--set max_length_ratio=3"),
        }
        for name, (what, remedy) in about.items():
            active = name in self._drop or (name == "ratio" and max_length_ratio is not None)
            if not active and self._found[name] > _WARN_SHARE * self._read:
                share = f"{100 * self._found[name] / self._read:.0f} %"
                _log.warning("train: %s of the pairs %s: %s drops them", share, what, remedy)


def _alike(source: collections.Counter[str], target: collections.Counter[str]) -> bool:
    """True if two texts share so many words that they must be in one language."""
    if min(source.total(), target.total()) < _ENOUGH_WORDS:
        return False
    product = sum(count * target[word] for word, count in source.items())
    norms = [sum(count * count for count in counts.values()) for counts in (source, target)]
    return product > _ALIKE * (norms[0] * norms[1]) ** 0.5
