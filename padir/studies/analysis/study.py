"""Shared parts of all subjects of `padir analyse`: their options and findings, and refined drafts of a test set."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from padir import checks
from padir.decoding.hypothesis import SourceSentence
from padir.decoding.loaded import EncodedBatch
from padir.decoding.options import Decoding
from padir.errors import PadirError
from padir.evaluation import TestSet
from padir.models.config import ModelConfig
from padir.options import LENGTHS
from padir.reporting.page import Section, render
from padir.storage.files import atomic_file, write_json, write_text
from padir.text.ids import EOS, sorted_batches
from padir.translator import Translator

Row = dict[str, Any]
Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class AnalysisOptions:
    """Extent of an analysis. Only the subjects in brackets read an option.

    Attributes:
      sentences: how many sentences of the test set are analysed, from the first on.
      examples: how many sentences are shown, as maps (attention) or drafts (refinement).
      strategies: strategies as the command line names them (refinement). None runs all that the model supports, at
        temperature 0.
      passes: numbers of decoder passes that every strategy gets (refinement).

    Raises:
      PadirError: a value out of its range.
    """

    sentences: int = 200
    examples: int = 3
    strategies: tuple[str, ...] | None = None
    passes: tuple[int, ...] = (1, 2, 4, 10)

    def __post_init__(self):
        checks.counts(1, passes=min(self.passes, default=0))
        checks.counts(0, examples=self.examples)


@dataclasses.dataclass(frozen=True)
class Findings:
    """Results of one subject.

    Attributes:
      rows: rows of the table.
      metrics: further metrics for the JSON file, by name.
      sections: sections of the page.
    """

    rows: list[Row]
    metrics: dict[str, Any]
    sections: list[Section]


def written(about: dict[str, Any], findings: Findings, output: str | None) -> dict[str, Any]:
    """Facts about a run, its metrics and rows, after SUBJECT.json, .html and PNG files are written into a folder."""
    result = _finite({**about, **findings.metrics, "rows": findings.rows})
    if output:
        folder, subject = Path(output), about["subject"]
        for section in findings.sections:
            for picture, data in section.pictures.items():
                with atomic_file(folder / f"{subject}_{picture.replace(' ', '_')}.png", binary=True) as file:
                    file.write(data)
        write_json(folder / f"{subject}.json", result)
        write_text(folder / f"{subject}.html", render(f"padir: {subject}", about, findings.sections))
    return result


def _finite(value: Any) -> Any:
    """A copy of a value for JSON, with None for NaN, such as the correlation with a constant, and for infinity."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


MOST_TOKENS = 16  # longer sentences are shown only if there are too few of at most this length


def check_model(config: ModelConfig) -> None:
    """Refuses a model whose passes over a draft cannot be analysed.

    Raises:
      PadirError: the model is causal or decontextualised, or its canvas is not the sentence.
    """
    if config.causal:
        raise PadirError("an autoregressive model has no refinement to analyse: give a refinement model")
    config.check_sentence("be analysed", 'give a model with the readout "plain"')
    if config.decontextualised:
        raise PadirError(
            "in a decontextualised decoder each position sees its own set of tokens, which a trace does not keep:"
            " analyse a model with an ordinary decoder"
        )


class Pass(NamedTuple):
    """A refined batch, one draft of each sentence.

    Attributes:
      numbers: the sentences' numbers in the test set.
      batch: the encoded sentences; rows that only pad the batch come last.
      length_B: target lengths in tokens, EOS included.
      tokens_TBL, score_TBL: the canvas before the first step and after each (`padir.refinement.loop.Refined`).
      passes_B: decoder passes that each row took.
    """

    numbers: list[int]
    batch: EncodedBatch
    length_B: Int[np.ndarray, " B"]
    tokens_TBL: Int[np.ndarray, "T B L"]
    score_TBL: Float[np.ndarray, "T B L"]
    passes_B: Int[np.ndarray, " B"]

    def rows(self) -> Iterator[tuple[int, int]]:
        """Pairs (row, number of the row's sentence), without the rows that only pad the batch."""
        return enumerate(self.numbers)


def refined(
    translator: Translator,
    test_set: TestSet,
    decoding: Decoding,
    lengths: Sequence[int] | None = None,
) -> Iterator[Pass]:
    """Refines one draft of each sentence that is not empty, batch by batch, shortest first.

    Sources that are longer than the model takes are cut.

    Args:
      decoding: the options, except that each sentence gets one length and one draft.
      lengths: target length of each sentence in tokens, EOS included; None: the most likely one.

    Raises:
      PadirError: no sentence has text, the options do not fit the model, or the model is causal.
    """
    decoding = decoding.without(*LENGTHS, "num_drafts")
    refiner = translator.refiner(translator.resolved(decoding), trace=True)
    tokens, _ = translator.loaded.source_tokens(test_set.sources, truncate=True)
    filled = [i for i, text in enumerate(test_set.sources) if text.strip()]
    if not filled:
        raise PadirError("there are no sentences to analyse: give some")
    for places in sorted_batches(filled, decoding.batch_size, lambda i: len(tokens[i])):
        sources = [SourceSentence(test_set.sources[i], tokens[i], lengths[i] if lengths else None) for i in places]
        batch = refiner.encode(sources)
        drafts = refiner.refine(batch, refiner.plan_drafts(sources, batch))
        assert drafts.trace_TRL is not None
        tokens_TBL, score_TBL = (np.asarray(part)[: decoding.num_steps + 1] for part in drafts.trace_TRL)
        yield Pass(places, batch, drafts.length_R, tokens_TBL, score_TBL, drafts.passes_R)


def reference_tokens(translator: Translator, test_set: TestSet) -> list[list[int]]:
    """The references' tokens with EOS; longer references are cut to the model's `max_length`."""
    limit = translator.card.config.max_length
    return [[*tokens[: limit - 1], EOS] for tokens in translator.tokenizer.encode_batch(test_set.references)]


def first_sentences(test_set: TestSet, limit: int | None) -> TestSet:
    """The test set's first `limit` sentences; None: all.

    Raises:
      PadirError: the limit is below 1.
    """
    if limit is None:
        return test_set
    if limit < 1:
        raise PadirError("the number of sentences", "at least 1", limit)
    return dataclasses.replace(test_set, sources=test_set.sources[:limit], references=test_set.references[:limit])


def pieces(translator: Translator, tokens_L: Sequence[int] | np.ndarray) -> list[str]:
    """The pieces of tokens, without the "▁" that marks the beginning of a word; a piece that is only "▁" stays."""
    return [translator.tokenizer.pieces[i].lstrip("▁") or "▁" for i in tokens_L]


def examples(translator: Translator, test_set: TestSet, decoding: Decoding, count: int) -> list[tuple[Pass, int, int]]:
    """(batch, row, sentence number) of the sentences that took the most steps; among equals, the longest first.

    Maps and drafts of more than `MOST_TOKENS` tokens are unreadable, so longer sentences are left out unless all are
    longer; then the shortest come first.
    """
    found: list[tuple[tuple[int, ...], Pass, int]] = []
    for one in refined(translator, test_set, decoding):
        for row, number in one.rows():
            passes = int(one.passes_B[row])
            length = int(one.length_B[row])
            if length > 2:
                order = (1, passes, length) if length <= MOST_TOKENS else (0, -length, 0)
                found.append(((*order, -number), one, row))
        # A batch without examples is dropped, because it holds the encoder's output.
        found = sorted(found, key=lambda each: each[0], reverse=True)[:count]
    return [(one, row, -order[-1]) for order, one, row in found if order[0] == found[0][0][0]]
