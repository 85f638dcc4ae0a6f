"""Rows of a table of systems: each of several models with each set of decoding options, on one test set."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from padir.decoding.lengths import LengthSearch
from padir.decoding.options import OF_CAUSAL, OF_REFINING, Decoding
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.evaluation.evaluation import Evaluation, Metric, evaluate, length_recall, warm_up
from padir.evaluation.test_set import TestSet
from padir.metrics.scores import Score


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table of systems.

    Attributes:
      model: name of the model in the table.
      decoding: decoding options, with the model's own strategy and canvas filled in.
      oracle_lengths: True if sentences got the lengths of their references.
      evaluation: None if the model cannot decode with these options.
      note: reason why `evaluation` is None.
      causal: True if the model is autoregressive.
      weights: description of the model's weights, such as "of step 1,000" or "mean of the last 5 checkpoints".
    """

    model: str
    decoding: Decoding
    oracle_lengths: bool
    evaluation: Evaluation | None
    note: str = ""
    causal: bool = False
    weights: str = ""


Decodings = Sequence[Decoding] | Callable[[Decoding], Sequence[Decoding]]
"""Sets of decoding options for all models, or a function that makes them from a model's own options."""


def evaluate_all(
    models: Sequence[tuple[str, Translator]],
    test_set: TestSet,
    decodings: Decodings,
    *,
    oracle_lengths: bool = False,
    metrics: Sequence[Metric] = (),
    progress: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Evaluate every model with every set of decoding options that applies to it.

    Options of refinement do not apply to an autoregressive model, which therefore has fewer rows. Scores are
    those of `evaluate`, the top-k length recall and, with `oracle_lengths`, "oracle_gap": BLEU with the references'
    lengths minus the row's BLEU. Programs are compiled before they are timed.

    Args:
      models: (name, translator) pairs.
      decodings: sets of decoding options, for all models or as a function of a model's own options. If `drop_repeats`
        is None in several sets and their strategies have different defaults, repeated tokens are dropped from the
        drafts of all these sets.
      oracle_lengths: add rows that are given the references' lengths.
      progress: called with each row when it is done.

    Raises:
      PadirError: the test set is empty, two models have the same name, a model translates other languages than the test
        set's, or no model can decode with any of the options.
    """
    _check(models, test_set)
    rows: list[Row] = []
    tried = [list(ways(translator, decodings_for(translator, decodings), oracle_lengths)) for _, translator in models]
    for (name, translator), own_ways in zip(models, alike(models, tried), strict=True):
        model = _Model(name, translator, test_set, metrics)
        own: list[Row] = []
        for decoding, oracle in own_ways:
            own.append(model.row(decoding, oracle))
            progress(own[-1])
        rows += _with_gaps(own)
    if all(row.evaluation is None for row in rows):
        raise PadirError(rows[0].note)
    return rows


def _check(models: Sequence[tuple[str, Translator]], test_set: TestSet) -> None:
    if not test_set.sources:
        raise PadirError("expected at least one sentence to score, got none: check the files or the split")
    names = [name for name, _ in models]
    if twice := [name for name in names if names.count(name) > 1]:
        raise PadirError(f"two models are called {twice[0]!r}: give each its own name, as NAME=DIR")
    for name, translator in models:
        test_set.check_languages(translator.card.source_language, translator.card.target_language, name)


def decodings_for(translator: Translator, decodings: Decodings) -> Sequence[Decoding]:
    """The sets of decoding options for one model."""
    return decodings(translator.decoding) if callable(decodings) else decodings


def ways(
    translator: Translator, decodings: Sequence[Decoding], oracle_lengths: bool
) -> Iterator[tuple[Decoding, bool]]:
    """Distinct (decoding, oracle_lengths) pairs for one model, without the options that do not apply to it."""
    card = translator.card
    if card.config.causal:
        yield from dict.fromkeys((_without(decoding, OF_REFINING), False) for decoding in decodings)
        return
    strategy, corruption = card.strategy, card.corruption
    assert strategy is not None and corruption is not None
    decodings = [_without(decoding, OF_CAUSAL).filled(corruption, strategy) for decoding in decodings]
    if card.config.ctc:  # the length of a reference is not that of a canvas
        decodings = [
            decoding if decoding.drop_repeats else dataclasses.replace(decoding, drop_repeats=False)
            for decoding in decodings
        ]
        oracle_lengths = False
    head_is_oracle = card.config.length_head == "oracle"
    if not head_is_oracle:
        yield from dict.fromkeys((decoding, False) for decoding in decodings)
    if oracle_lengths or head_is_oracle:
        yield from dict.fromkeys((_one_length(decoding), True) for decoding in decodings)


def alike(
    models: Sequence[tuple[str, Translator]], tried: Sequence[Sequence[tuple[Decoding, bool]]]
) -> Iterator[list[tuple[Decoding, bool]]]:
    """Drops repeated tokens from all or from none of the drafts of several models whose options leave this open.

    They are dropped if the options of any draft drop them, so that rows can be compared. A CTC model's tokens are
    collapsed in any case.
    """
    refining = [not (translator.card.config.causal or translator.card.config.ctc) for _, translator in models]
    some = any(d.drops_repeats for own, drafts in zip(tried, refining, strict=True) if drafts for d, _ in own)
    for own, drafts in zip(tried, refining, strict=True):
        drop = True if some and drafts else None
        ways = [
            (dataclasses.replace(d, drop_repeats=drop) if d.drop_repeats is None else d, oracle) for d, oracle in own
        ]
        yield list(dict.fromkeys(ways))


def _without(decoding: Decoding, names: Sequence[str]) -> Decoding:
    """Set the named options to their defaults."""
    return dataclasses.replace(decoding, **{name: getattr(Decoding, name) for name in names})


def _one_length(decoding: Decoding) -> Decoding:
    """Decoding options for the one length that the reference has."""
    return dataclasses.replace(decoding, lengths=LengthSearch(draws=decoding.lengths.draws))


class _Model:
    """One model on one test set; remembers which programs are compiled."""

    def __init__(self, name: str, translator: Translator, test_set: TestSet, metrics: Sequence[Metric]):
        self.name, self.translator, self.test_set, self.metrics = name, translator, test_set, metrics
        self.recall = length_recall(translator, test_set)
        self.compiled: set[tuple[Decoding, bool]] = set()

    def row(self, decoding: Decoding, oracle: bool) -> Row:
        """Evaluate one set of decoding options; options that the model refuses make a row with a note."""
        reads_text = decoding.rerank.reads_text
        programs = decoding if reads_text else dataclasses.replace(decoding, num_steps=1), oracle
        translator, test_set = self.translator, self.test_set
        row = Row(
            self.name,
            decoding,
            oracle,
            None,
            causal=translator.card.config.causal,
            weights=str(translator.card.weights),
        )
        try:
            if programs not in self.compiled:
                warm_up(translator, test_set, decoding, oracle_lengths=oracle)
                self.compiled.add(programs)
            evaluation = evaluate(
                translator, test_set, decoding, oracle_lengths=oracle, metrics=self.metrics, compiled=True
            )
        except PadirError as error:
            return dataclasses.replace(row, note=str(error))
        scores = evaluation.scores if oracle else evaluation.scores | self.recall
        return dataclasses.replace(row, evaluation=dataclasses.replace(evaluation, scores=scores))


def _with_gaps(rows: list[Row]) -> list[Row]:
    """Add to each row of one model the gap in BLEU to the row that was given the references' lengths."""
    oracle = {row.decoding: row.evaluation for row in rows if row.oracle_lengths and row.evaluation}
    result = []
    for row in rows:
        given = oracle.get(_one_length(row.decoding))
        if row.evaluation and given and not row.oracle_lengths:
            gap = Score("oracle_gap", given.metrics["bleu"] - row.evaluation.metrics["bleu"], "in:bleu")
            scores = row.evaluation.scores | {gap.name: gap}
            row = dataclasses.replace(row, evaluation=dataclasses.replace(row.evaluation, scores=scores))
        result.append(row)
    return result
