"""Share of translations with a non-word: a word that human text of the target language does not have.

A model that writes all pieces of a word in parallel may join pieces that do not belong together, such as "childrenren".
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from padir.errors import PadirError
from padir.metrics.scores import Score
from padir.text.sentences import UNSPACED

# A run of letters, possibly with apostrophes inside; a word with a hyphen counts as several.
_LETTERS = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


@dataclasses.dataclass(frozen=True, eq=False)
class NonWords:
    """Metric of `padir evaluate`: percentage of outputs, or of words, that hold a word outside a list.

    Case is ignored, and numbers are no words. Names and rare words of the references are outside the list, too:
    compare with the value of the references, which the metric gives with `of_references`.

    Attributes:
      known: number of times that each word occurs in the text that the list comes from, as `count_known` gives it.
      least: minimum number of times that a word must occur to be in the list.
      by_word: give the percentage of words instead of the percentage of outputs.
      of_references: score the references in place of the outputs.
    """

    known: Mapping[str, int]
    least: int = 1
    by_word: bool = False
    of_references: bool = False

    @property
    def name(self) -> str:
        """Name of the score: "non_words", with the options that differ from their defaults."""
        words = [
            "reference_" if self.of_references else "",
            "non_words",
            "_by_word" if self.by_word else "",
            f"_{self.least}" if self.least > 1 else "",
        ]
        return "".join(words)

    def __call__(self, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
        """The percentage, 0 to 100.

        >>> NonWords({"a": 3, "child": 1})(["A child.", "a childild", "a 7"], ["a", "a", "a"]).value
        33.333333333333336
        """
        lines = references if self.of_references else hypotheses
        wrong = [[word not in self._list for word in words(line)] for line in lines]
        parts = [one for line in wrong for one in line] if self.by_word else [any(line) for line in wrong]
        unit = "word" if self.by_word else "output"
        signature = f"case:folded|unit:{unit}|list:{len(self._list)}|count:{self.least}"
        return Score(self.name, 100 * sum(parts) / max(len(parts), 1), signature)

    @functools.cached_property
    def _list(self) -> frozenset[str]:
        return frozenset(word for word, count in self.known.items() if count >= self.least)


def words(line: str) -> list[str]:
    """The words of a line, case-folded.

    >>> words("Don’t re-read Chapter 7!")
    ["don't", 're', 'read', 'chapter']
    """
    return _LETTERS.findall(unicodedata.normalize("NFC", line.casefold()).replace("’", "'"))


def count_known(lines: Iterable[str]) -> dict[str, int]:
    """Counts the words of human text, such as the target side of training data.

    Raises:
      PadirError: the text has no words.
    """
    counts = collections.Counter(word for line in lines for word in words(line))
    if not counts:
        raise PadirError("the text of known words", "at least one word", "none", "name files of the target language")
    return dict(counts)


def non_words(lines: Iterable[str], language: str = "") -> list[NonWords]:
    """All variants of the metric for one text: outputs or words, seen once or twice, outputs or references.

    Args:
      language: the code of the text's language.

    Raises:
      PadirError: the language writes no spaces between words, or the text has no words.
    """
    if language in UNSPACED:
        raise PadirError(f"non-words need words with spaces between them, got text in {language!r}: leave them out")
    known = count_known(lines)
    return [
        NonWords(known, least, by_word, of_references)
        for of_references in (False, True)
        for by_word in (False, True)
        for least in (1, 2)
    ]
