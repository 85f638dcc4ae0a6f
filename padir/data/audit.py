"""Filters for training pairs, and warnings about pairs that filters would drop or that somebody gave by mistake."""

from __future__ import annotations

import array
import collections
import hashlib
import logging
import re

import numpy as np

from padir.text.identify import LANGUAGES, language_of
from padir.text.languages import is_foreign, primary, script

_WARN_SHARE = 0.05  # share of pairs that a filter would drop, from which a warning names the filter
_WARN_RATIO = 3.0  # ratio of the numbers of tokens of two sides
_IDENTIFIED = 10_000  # pairs of a corpus whose languages are identified
_ENOUGH = 10  # lines in another language from which there is a warning
_PIECES = re.compile(r"\w@@(?: |$)|(?:^| )▁\w|\w￭|￭\w")  # subwords of subword-nmt, SentencePiece and OpenNMT
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_WARNINGS = {
    "duplicate": ("come more than once", "--dedupe drops them"),
    "equal": ("have equal sides", "--set drop=equal drops them"),
    "script": ("are not in the script of their language", "--set drop=script drops them"),
    "ratio": (f"have lengths with a ratio above {_WARN_RATIO:g}", "--set max_length_ratio=3 drops them"),
    "pieces": ("are cut into subwords", "join them, as with sed 's/@@ //g' or spm_decode"),
    "quotes": ("stand in double quotes", "remove these, or name a file with columns .csv"),
}

_log = logging.getLogger("padir")


class Audit:
    """Filters for the pairs of a training split, and counts for warnings about all splits."""

    def __init__(self, languages: tuple[str, str], drop: tuple[str, ...] = ()):
        self._languages = languages
        self._scripts = tuple(script(language) for language in languages)
        self._drop = drop
        self._seen: set[int] = set()  # filled only where duplicates are dropped
        self._train = np.zeros(0, np.int64)

    def begin(self, split: str) -> None:
        """Begins a split; training comes first."""
        self._split = split
        self._read = 0
        self._controls: list[int] = []  # numbers of pairs with control characters
        self._hashes = array.array("q")
        self._found: collections.Counter[str] = collections.Counter()
        # Lines of a corpus and a side, by their language.
        self._lines: dict[tuple[str, int], collections.Counter[str]] = collections.defaultdict(collections.Counter)

    def reason_to_drop(self, corpus: str, pair: tuple[str, str], lengths: tuple[int, int], original: str) -> str | None:
        """The first filter that drops a pair of a corpus, or None.

        Args:
          pair: both sides in plain form.
          lengths: their numbers of tokens with EOS.
          original: the text of both sides.
        """
        self._read += 1
        if _CONTROL.search(original):
            self._controls.append(self._read)
        source = pair[0].strip()
        target = pair[1].strip()
        if not source or not target:
            return None
        hashed = int.from_bytes(hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=8).digest(), signed=True)
        self._hashes.append(hashed)
        for side, text in enumerate((source, target)):
            if self._lines[corpus, side].total() < _IDENTIFIED:
                self._lines[corpus, side][language_of(text)] += 1
        if self._split != "train":
            return None
        facts = {
            "equal": source == target,
            "script": any(map(is_foreign, (source, target), self._scripts)),
            "ratio": max(lengths) > _WARN_RATIO * min(lengths),
            "pieces": any(map(_PIECES.search, (source, target))),
            "quotes": all(len(text) > 1 and text[0] == text[-1] == '"' for text in (source, target)),
        }
        found = [name for name, true in facts.items() if true]
        self._found.update(found)
        if "duplicate" in self._drop:
            if hashed in self._seen:
                return "duplicate"
            self._seen.add(hashed)
        return next((name for name in found if name in self._drop), None)

    def end(self, max_length_ratio: float | None) -> None:
        """Ends a split; warns of pairs that filters would have dropped, and of other problems with its pairs."""
        hash_N = np.frombuffer(self._hashes, np.int64)
        self._check_languages()
        if self._controls:
            some = f"{len(self._controls):,} of {self._read:,} pairs, such as pair {self._controls[0]:,},"
            _log.warning("%s: %s have control characters, which become spaces: check the encoding", self._split, some)
        if self._split != "train":
            known = int(np.isin(hash_N, self._train).sum())
            if known:
                _log.warning("%s: %s of %s pairs are also in train", self._split, f"{known:,}", f"{self._read:,}")
            return
        self._train = np.unique(hash_N)
        self._found["duplicate"] = len(hash_N) - len(self._train)
        for name, (what, remedy) in _WARNINGS.items():
            active = name in self._drop or (name == "ratio" and max_length_ratio is not None)
            count = self._found[name]
            if not active and count > _WARN_SHARE * self._read:
                share = f"{count:,} of {self._read:,} pairs ({100 * count / self._read:.0f} %)"
                _log.warning("train: %s %s: %s", share, what, remedy)

    def _check_languages(self) -> None:
        """Warns of sides with more than twice as many lines in another language as in their own."""
        for (corpus, side), lines in self._lines.items():
            language = self._languages[side]
            total = lines.total()
            del lines[""]
            for other, count in lines.most_common(1):
                own = lines[primary(language)]
                if primary(language) in LANGUAGES and count > max(_ENOUGH, 2 * own):
                    where = f"{count:,} of {total:,} lines of the {('source', 'target')[side]} of {corpus}"
                    _log.warning("%s: %s look like %s, not %s: check its files", self._split, where, other, language)
