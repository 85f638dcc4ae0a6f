"""Rows of a table of systems: each of several models with each set of decoding options, on one test set."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from padir.decoding.fit import filled, mode_of, modes_of
from padir.decoding.options import Decoding
from padir.errors import PadirError
from padir.evaluation.evaluation import (
    Evaluation,
    Metric,
    TestSet,
    evaluate,
    length_recall,
    one_step,
    reference_tokens,
    warm_up,
)
from padir.options import foreign
from padir.translator import Translator


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table of systems.

    Attributes:
      model: name of the model in the table, with its precision and a dual model's mode if the options name them.
      decoding: decoding options as the model resolves them; as they are given, if it refuses them.
      evaluation, note: None, with the reason, if the model cannot decode with these options.
      causal: True if the model is autoregressive.
      weights: description of the model's weights, such as "of step 1,000" or "mean of the last 5 checkpoints".
      own_engine: True if another engine than padir's wrote (`SentenceTranslator.with_writer`).
      oracle_lengths: True if sentences got target lengths, as in benchmarks of random weights.
    """

    model: str
    decoding: Decoding
    evaluation: Evaluation | None
    note: str = ""
    causal: bool = False
    weights: str = ""
    own_engine: bool = False
    oracle_lengths: bool = False


Decodings = Sequence[Decoding] | Callable[[Decoding], Sequence[Decoding]]
"""Sets of decoding options for all models, or a function that makes them from a model's own options."""


def evaluate_all(
    models: Sequence[tuple[str, Translator]],
    test_set: TestSet,
    decodings: Decodings,
    *,
    metrics: Sequence[Metric] = (),
    progress: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Evaluate every model with every set of decoding options that applies to it.

    Options of refinement do not apply to an autoregressive model, so it has fewer rows. Scores come from `evaluate`,
    and from `length_recall`. Programs are compiled before they are timed.

    Args:
      decodings: sets of decoding options, for all models or as a function of a model's own options. If `drop_repeats`
        is None in several sets and their strategies have different defaults, repeated tokens are dropped from the
        drafts of all these sets.
      progress: called with each row when it is done.

    Raises:
      PadirError: the test set is empty, two models have the same name, a model translates other languages than the test
        set's, or no model can decode with any of the options.
    """
    _check(models, test_set)
    rows: list[Row] = []
    for (name, translator), own in zip(models, ways(models, decodings), strict=True):
        for row in _rows(name, translator, test_set, own, metrics):
            rows.append(row)
            progress(row)
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


def ways(models: Sequence[tuple[str, Translator]], decodings: Decodings) -> list[list[Decoding]]:
    """The distinct sets of decoding options of each model, without the options that do not apply to it.

    Where the options leave `drop_repeats` open, repeated tokens are dropped if the options of any row drop them. So
    rows can be compared. Models whose readout leaves no choice are not concerned.
    """
    tried = [(translator, list(_own_ways(translator, decodings))) for _, translator in models]
    some = any(each.drops_repeats for translator, own in tried for each in own if translator.refines(each))

    def alike(translator: Translator, decoding: Decoding) -> Decoding:
        drops = some and decoding.drop_repeats is None and translator.refines(decoding)
        return dataclasses.replace(decoding, drop_repeats=True) if drops else decoding

    return [list(dict.fromkeys(alike(translator, each) for each in own)) for translator, own in tried]


def _own_ways(translator: Translator, decodings: Decodings) -> Iterator[Decoding]:
    card = translator.card
    given = decodings(translator.decoding) if callable(decodings) else decodings
    fitting = [decoding for decoding in given if decoding.mode in (None, *modes_of(card.config))]
    for decoding in fitting or given:
        if not card.config.dual:  # this model has a single mode, so the mode of the options is for other models
            decoding = dataclasses.replace(decoding, mode=None)
        decoding = decoding.without(*foreign(mode_of(decoding, card.config)))
        if translator.refines(decoding):
            assert card.corruption is not None and card.strategy is not None
            decoding = filled(decoding, card.config, card.corruption, card.strategy)
        yield decoding


def named(model: str, translator: Translator, decoding: Decoding) -> str:
    """The model's name in tables, with precision, mode of a dual model and blank penalty, if the options name them."""
    mode = decoding.mode if translator.card.config.dual else None
    precision = None if decoding.precision == "float32" else decoding.precision
    penalty = f"blank penalty {decoding.blank_penalty:g}" if decoding.blank_penalty else None
    return ", ".join(filter(None, (model, precision, mode, penalty)))


def _rows(
    model: str, translator: Translator, test_set: TestSet, decodings: Sequence[Decoding], metrics: Sequence[Metric]
) -> Iterator[Row]:
    """A row for each set of decoding options; options that the model refuses make a row with a note."""
    recall = length_recall(translator, test_set)
    length = reference_tokens(translator, test_set)
    weights = str(translator.card.weights)
    compiled: set[Decoding] = set()
    for decoding in decodings:
        refines = translator.refines(decoding)
        name = named(model, translator, decoding)
        row = Row(name, decoding, None, causal=not refines, weights=weights, own_engine=translator.has_other_engine)
        try:
            row = dataclasses.replace(row, decoding=translator.resolved(decoding))
            if (programs := one_step(decoding)) not in compiled:
                warm_up(translator, test_set, decoding)
                compiled.add(programs)
            evaluation = evaluate(translator, test_set, decoding, metrics=metrics, compiled=True)
            scores = evaluation.scores | length | (recall if refines else {})
            row = dataclasses.replace(row, evaluation=dataclasses.replace(evaluation, scores=scores))
        except PadirError as error:
            row = dataclasses.replace(row, note=str(error))
        yield row
