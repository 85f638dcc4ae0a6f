"""Every one of several models with every way of decoding, on one test set: the rows of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from padir.decoding.options import OF_CAUSAL, OF_REFINING, Decoding
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.evaluation.evaluate import Evaluation, Metric, TestSet, evaluate, length_recall, warm_up
from padir.metrics.scores import Score


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table of systems.

    Attributes:
      model: its name in the table.
      decoding: how it translated, the model's own strategy and canvas filled in.
      oracle_lengths: whether it was given the references' lengths.
      evaluation: None where the combination has no meaning.
      note: then why.
      causal: whether the model is autoregressive.
      weights: which of its training's weights it holds.
    """

    model: str
    decoding: Decoding
    oracle_lengths: bool
    evaluation: Evaluation | None
    note: str = ""
    causal: bool = False
    weights: str = ""


def evaluate_all(
    models: Sequence[tuple[str, Translator]],
    test_set: TestSet,
    decodings: Sequence[Decoding],
    *,
    oracle_lengths: bool = False,
    metrics: Sequence[Metric] = (),
    progress: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """One row for every model and way of decoding; a combination that has no meaning is a row that says why.

    An autoregressive model takes of the decodings only what is not about drafts, and so has fewer rows. The figures are
    `evaluate`'s, the top-k length recall, and, with `oracle_lengths`, the gap: BLEU with the references' lengths minus
    the row's. Every way is compiled before it is timed.

    Args:
      models: (name, translator) pairs.
      oracle_lengths: add rows that are given the references' lengths, one for each way but for its lengths.
      progress: told of each row when it is done.

    Raises:
      PadirError: an empty test set, two models of one name, a model of other languages, or no combination that has a
        meaning.
    """
    if not test_set.sources:
        raise PadirError("expected at least one sentence to score, got none: check the files or the split")
    names = [name for name, _ in models]
    if twice := [name for name in names if names.count(name) > 1]:
        raise PadirError(f"two models are called {twice[0]!r}: name them apart, as NAME=DIR")
    for name, translator in models:
        languages = translator.card.source_language, translator.card.target_language
        if languages != (test_set.source_language, test_set.target_language):
            raise PadirError(
                f"{name} translates {'-'.join(languages)}, and the test set is"
                f" {test_set.source_language}-{test_set.target_language}: evaluate it on its own languages"
            )
    rows: list[Row] = []
    for name, translator in models:
        recall = length_recall(translator, test_set)
        warm: set[tuple[Decoding, bool]] = set()
        own: list[Row] = []
        for decoding, oracle in ways(translator, decodings, oracle_lengths):
            row = _row(name, translator, test_set, decoding, oracle, metrics, recall, warm)
            own.append(row)
            progress(row)
        rows += _with_gaps(own)
    if all(row.evaluation is None for row in rows):
        raise PadirError(rows[0].note)
    return rows


def ways(
    translator: Translator, decodings: Sequence[Decoding], oracle_lengths: bool
) -> Iterator[tuple[Decoding, bool]]:
    """What of the decodings is different for this model, and whether it is given the references' lengths."""
    card = translator.card
    if card.config.causal:
        yield from dict.fromkeys((_without(decoding, OF_REFINING), False) for decoding in decodings)
        return
    strategy, corruption = card.strategy, card.corruption
    assert strategy is not None and corruption is not None
    decodings = [_without(decoding, OF_CAUSAL).filled(corruption, strategy) for decoding in decodings]
    head_is_oracle = card.config.length_head == "oracle"
    if not head_is_oracle:
        yield from dict.fromkeys((decoding, False) for decoding in decodings)
    if oracle_lengths or head_is_oracle:
        yield from dict.fromkeys((_one_length(decoding), True) for decoding in decodings)


def _without(decoding: Decoding, names: Sequence[str]) -> Decoding:
    """The same with the defaults of options that mean nothing to the kind of model."""
    return dataclasses.replace(decoding, **{name: getattr(Decoding, name) for name in names})


def _one_length(decoding: Decoding) -> Decoding:
    """The same for the one length that the reference has."""
    return dataclasses.replace(decoding, lengths=dataclasses.replace(decoding.lengths, top_k=1, offsets=(0,)))


def _row(name, translator, test_set, decoding, oracle, metrics, recall, warm) -> Row:
    key = (decoding if decoding.rerank.reads_text else dataclasses.replace(decoding, num_steps=1), oracle)
    causal, weights = translator.card.config.causal, str(translator.card.weights)
    try:
        if key not in warm:
            warm_up(translator, test_set, decoding, oracle_lengths=oracle)
            warm.add(key)
        evaluation = evaluate(translator, test_set, decoding, oracle_lengths=oracle, metrics=metrics, compiled=True)
    except PadirError as error:
        return Row(name, decoding, oracle, None, str(error), causal, weights)
    if not oracle:
        evaluation = dataclasses.replace(evaluation, scores=evaluation.scores | recall)
    return Row(name, decoding, oracle, evaluation, "", causal, weights)


def _with_gaps(rows: list[Row]) -> list[Row]:
    """The rows of one model, each with its distance to the row that was given the references' lengths."""
    oracle = {row.decoding: row.evaluation for row in rows if row.oracle_lengths and row.evaluation}
    result = []
    for row in rows:
        given = oracle.get(_one_length(row.decoding))
        if row.evaluation and given and not row.oracle_lengths:
            gap = Score("oracle_gap", given.figures["bleu"] - row.evaluation.figures["bleu"], "in:bleu")
            scores = row.evaluation.scores | {gap.name: gap}
            row = dataclasses.replace(row, evaluation=dataclasses.replace(row.evaluation, scores=scores))
        result.append(row)
    return result
