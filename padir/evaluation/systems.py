"""Rows of a table of systems: each of several models with each set of decoding options, on one test set."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

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
from padir.metrics.scores import Score
from padir.options import LENGTHS, foreign
from padir.translator import Translator


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table of systems.

    Attributes:
      model: name of the model in the table, with its precision and a dual model's mode if the options name them.
      decoding: decoding options as the model resolves them; as they are given, if it refuses them.
      oracle_lengths: True if sentences got the lengths of their references.
      evaluation, note: None, with the reason, if the model cannot decode with these options.
      causal: True if the model is autoregressive.
      weights: description of the model's weights, such as "of step 1,000" or "mean of the last 5 checkpoints".
      own_engine: True if another engine than padir's wrote (`SentenceTranslator.with_writer`).
    """

    model: str
    decoding: Decoding
    oracle_lengths: bool
    evaluation: Evaluation | None
    note: str = ""
    causal: bool = False
    weights: str = ""
    own_engine: bool = False


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

    Options of refinement do not apply to an autoregressive model, so it has fewer rows. Scores come from `evaluate`;
    further scores are the top-k length recall and, with `oracle_lengths`, "oracle_gap" (BLEU with the references'
    lengths minus the row's BLEU). Programs are compiled before they are timed.

    Args:
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
        own: dict[tuple[Decoding, bool], Row] = {}
        for way in own_ways:
            own[way] = model.row(*way)
            progress(own[way])
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
    found = []
    fitting = [decoding for decoding in decodings if decoding.mode in (None, *modes_of(card.config))]
    for decoding in fitting or decodings:
        if not card.config.dual:  # this model has a single mode, so the mode of the options is for other models
            decoding = dataclasses.replace(decoding, mode=None)
        decoding = decoding.without(*foreign(mode_of(decoding, card.config)))
        if translator.refines(decoding):
            assert card.corruption is not None and card.strategy is not None
            decoding = filled(decoding, card.config, card.corruption, card.strategy)
        found.append(decoding)
    head_is_oracle = card.config.length_head == "oracle"
    given = (oracle_lengths or head_is_oracle) and card.config.geometry.is_sentence
    drafts = [decoding for decoding in found if translator.refines(decoding)]
    ways = [(each, False) for each in found if not (head_is_oracle and each in drafts)]
    yield from dict.fromkeys([*ways, *((_one_length(each), True) for each in drafts if given)])


def alike(
    models: Sequence[tuple[str, Translator]], tried: Sequence[Sequence[tuple[Decoding, bool]]]
) -> Iterator[list[tuple[Decoding, bool]]]:
    """Sets `drop_repeats` to one value for all models where the options leave it open.

    Repeated tokens are dropped if the options of any row drop them, so that rows can be compared. Models whose readout
    leaves no choice are not concerned (`ways`).
    """

    pairs = [(translator, own) for (_, translator), own in zip(models, tried, strict=True)]
    some = any(d.drops_repeats for translator, own in pairs for d, _ in own if translator.refines(d))
    for translator, own in pairs:
        ways = []
        for d, oracle in own:
            drops = some and d.drop_repeats is None and translator.refines(d)
            ways.append((dataclasses.replace(d, drop_repeats=True) if drops else d, oracle))
        yield list(dict.fromkeys(ways))


def named(model: str, translator: Translator, decoding: Decoding) -> str:
    """The model's name in tables, with precision, mode of a dual model and blank penalty, if the options name them."""
    mode = decoding.mode if translator.card.config.dual else None
    precision = None if decoding.precision == "float32" else decoding.precision
    penalty = f"blank penalty {decoding.blank_penalty:g}" if decoding.blank_penalty else None
    return ", ".join(filter(None, (model, precision, mode, penalty)))


def _one_length(decoding: Decoding) -> Decoding:
    """Decoding options for the one length that the reference has."""
    return decoding.without(*LENGTHS)


class _Model:
    """One model on one test set; remembers which programs are compiled."""

    def __init__(self, name: str, translator: Translator, test_set: TestSet, metrics: Sequence[Metric]):
        self.name = name
        self.translator = translator
        self.test_set = test_set
        self.metrics = metrics
        self.recall = length_recall(translator, test_set)
        self.length = reference_tokens(translator, test_set)
        self.compiled: set[tuple[Decoding, bool]] = set()

    def row(self, decoding: Decoding, oracle: bool) -> Row:
        """Evaluate one set of decoding options; options that the model refuses make a row with a note."""
        programs = one_step(decoding), oracle
        translator = self.translator
        test_set = self.test_set
        refines = translator.refines(decoding)
        name = named(self.name, translator, decoding)
        weights = str(translator.card.weights)
        row = Row(
            name, decoding, oracle, None, causal=not refines, weights=weights, own_engine=translator.has_own_engine
        )
        try:
            row = dataclasses.replace(row, decoding=translator.resolved(decoding))
            if programs not in self.compiled:
                warm_up(translator, test_set, decoding, oracle_lengths=oracle)
                self.compiled.add(programs)
            evaluation = evaluate(
                translator, test_set, decoding, oracle_lengths=oracle, metrics=self.metrics, compiled=True
            )
        except PadirError as error:
            return dataclasses.replace(row, note=str(error))
        scores = evaluation.scores | self.length | (self.recall if refines and not oracle else {})
        return dataclasses.replace(row, evaluation=dataclasses.replace(evaluation, scores=scores))


def _with_gaps(rows: Mapping[tuple[Decoding, bool], Row]) -> list[Row]:
    """Add to each row of one model its gap in BLEU to the row with the references' lengths."""
    result = []
    for (decoding, oracle), row in rows.items():
        given = rows.get((_one_length(decoding), True))
        if row.evaluation and given and given.evaluation and not oracle:
            gap = Score("oracle_gap", given.evaluation.metrics["bleu"] - row.evaluation.metrics["bleu"], "in:bleu")
            scores = row.evaluation.scores | {gap.name: gap}
            row = dataclasses.replace(row, evaluation=dataclasses.replace(row.evaluation, scores=scores))
        result.append(row)
    return result
