"""Results of decoding: a sentence's translation, and the log-probability of a given target."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from padir.reporting.trace import Step, Trace
from padir.text.cleaning import one_line
from padir.text.normalise import Normalised


@dataclasses.dataclass(frozen=True)
class Translation:
    """One sentence's translation.

    Attributes:
      text: the text of the best hypothesis.
      score: the score by `Decoding.rerank`; by default, and for a single draft, the mean log-probability per token. For
        a causal model, the score by its search; by default the log-probability, EOS included, divided by a length
        penalty. Where a canvas is no sentence, its positions count as tokens.
      length: target length in tokens, EOS included, before repeated tokens were dropped.
      passes: number of decoder passes of the best row (for a causal model one per position), and of what was written
        again for lost spans, terms or unknown words; 0 for an empty line.
      hypotheses: number of refined drafts, of sentences read out of one canvas, or of rows that were searched.
      trace: if requested, the draft and every step; None for an empty line and for a text that was written again
        because it lost a span or had an unknown word.
      truncated: True if the source was cut to the length that the model takes.
      candidates: if requested (`Decoding.n_best`), the best hypotheses as translations of their own: this one, then the
        others by falling rank. A text that several hypotheses have is listed once, where it comes first;
        a text that needs no translation has none.
      oscillated: True if the strategy ended the row because it oscillated between two canvases.
      fell_back: True if it was written from left to right, because refining left an unknown word (`Fusion.fallback`).
      broken: number of U+FFFD that were left out of the text; each stands for written bytes that are no character.
        The best hypothesis without such bytes is taken, if there is one.
      alignment: if requested, links of source words and words of the text, as pairs of numbers in the order of the text
        (`Translator.align`).
      read_again: True if the causal side of a dual model read the hypotheses and chose (`CausalScore`).
      whole_text: the text before repeated tokens were dropped; None if no tokens are dropped, as for a causal model, or
        if terms replaced words of the text.
    """

    text: str
    score: float
    length: int
    passes: int
    hypotheses: int = 1
    trace: tuple[Step, ...] | None = None
    truncated: bool = False
    candidates: tuple[Translation, ...] = ()
    oscillated: bool = False
    fell_back: bool = False
    whole_text: str | None = None
    broken: int = 0
    alignment: tuple[tuple[int, int], ...] | None = None
    read_again: bool = False

    @staticmethod
    def of_json(row: dict[str, Any]) -> Translation:
        """Makes a translation from `dataclasses.asdict`, also if JSON has turned its tuples into lists.

        >>> import json
        >>> one = Translation("a", -0.5, 2, 1, candidates=(Translation("a", -0.5, 2, 1),))
        >>> Translation.of_json(json.loads(json.dumps(dataclasses.asdict(one)))) == one
        True
        """
        fields = {name: _tuples(value) for name, value in row.items() if name != "candidates"}
        fields["trace"] = fields["trace"] and tuple(Step(*step) for step in fields["trace"])
        return Translation(**fields, candidates=tuple(map(Translation.of_json, row["candidates"])))

    def rewritten(self, change: Callable[[str], str]) -> Translation:
        """Changes the texts of a translation; of candidates whose texts become equal, the first stays."""
        listed: dict[str, Translation] = {}
        for each in self.candidates:
            changed = each.rewritten(change)
            listed.setdefault(changed.text, changed)
        return dataclasses.replace(
            self,
            text=change(self.text),
            candidates=tuple(listed.values()),
            whole_text=None if self.whole_text is None else change(self.whole_text),
        )

    def _repr_html_(self) -> str:
        """HTML of the translation for notebooks: every step if the translation has a trace, otherwise its text."""
        if not self.trace:
            return f"<p>{html.escape(self.text)}</p>"
        return Trace("", self.trace, self.text)._repr_html_()


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


EMPTY_LINE = Translation("", 0.0, 1, 0, 0)


def restored(result: Translation, read: Normalised, kinds: Sequence[str]) -> Translation:
    """The translation of a sentence that was read in plain form, with what stood around it in the text."""
    if read == Normalised(read.text):
        return result
    if result.alignment is not None:
        more = read.words_before
        moved = tuple((source + more, target + more) for source, target in result.alignment)
        result = dataclasses.replace(result, alignment=moved)
    return result.rewritten(lambda text: one_line(read.restored(text, kinds)))


class TargetScore(NamedTuple):
    """The log-probability of a given target, EOS included, and its number of tokens."""

    log_prob: float
    tokens: int

    @property
    def mean(self) -> float:
        """Log-probability per token."""
        return self.log_prob / max(self.tokens, 1)
