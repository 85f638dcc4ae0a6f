"""Results of decoding: a sentence's translation, and the log-probability of a given target."""

from __future__ import annotations

import dataclasses
import html
from typing import Any, NamedTuple

from padir.reporting.trace import Step, Trace


@dataclasses.dataclass(frozen=True)
class Translation:
    """One sentence's translation.

    Attributes:
      text: the text of the best hypothesis.
      score: the score by `Decoding.rerank`, by default the mean log-probability per token; for a causal model, the
        score by its search, by default the log-probability, EOS included, divided by a length penalty.
      length: target length in tokens, EOS included.
      passes: number of decoder passes of the best row (for a causal model one per position); 0 for an empty line.
      hypotheses: number of drafts that were refined, or of rows that were searched.
      trace: if requested, (pieces, log-probabilities) of the draft and of every step; None for an empty line.
      truncated: True if the source was cut to the length that the model takes.
      candidates: if requested (`Decoding.n_best`), texts and scores of the best hypotheses, best first.
      candidate_lengths: the target lengths of the candidates.
      oscillated: True if the strategy ended the row because it oscillated between two canvases.
      draft_passes: number of decoder passes of the drafter's model, if the translation was verified.
      whole_text: the text before repeated tokens were dropped; None if nothing drops any, as for a causal model.
    """

    text: str
    score: float
    length: int
    passes: int
    hypotheses: int = 1
    trace: tuple[tuple[tuple[str, ...], tuple[float | None, ...]], ...] | None = None
    truncated: bool = False
    candidates: tuple[tuple[str, float], ...] = ()
    candidate_lengths: tuple[int, ...] = ()
    oscillated: bool = False
    whole_text: str | None = None
    draft_passes: int = 0

    @staticmethod
    def of_json(row: dict[str, Any]) -> Translation:
        """A translation of `dataclasses.asdict`, also after a way through JSON, which makes lists of tuples.

        >>> import json
        >>> one = Translation("a", -0.5, 2, 1, candidates=(("a", -0.5), ("b", -1.0)))
        >>> Translation.of_json(json.loads(json.dumps(dataclasses.asdict(one)))) == one
        True
        """
        return Translation(**{name: _tuples(value) for name, value in row.items()})

    def _repr_html_(self) -> str:
        """HTML of the translation for notebooks: every step if the translation has a trace, otherwise its text."""
        if not self.trace:
            return f"<p>{html.escape(self.text)}</p>"
        return Trace("", tuple(Step(*step) for step in self.trace), self.text)._repr_html_()


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


EMPTY_LINE = Translation("", 0.0, 1, 0, 0)


class TargetScore(NamedTuple):
    """The log-probability of a given target, EOS included, and its number of tokens."""

    log_prob: float
    tokens: int
