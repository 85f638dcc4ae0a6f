"""Comparison of attention, distance and the model with the true dependency of positions, on the built-in corpus.

This tests the paper's second hypothesis: dependent positions have similar cross-attention. The sentences have several
right translations of one length. Three values are measured for every pair of positions: the true mutual information
(`padir.studies.analysis.truth`), the attention between them in the first pass, and the model's own dependency given the
source and the length (`padir.studies.analysis.dependency`). Each measure is correlated with the truth, and scored by
how well it finds the dependent pairs (ROC).

Neighbours depend on each other more than other positions, and also attend to each other more. So distance is a measure,
too, and another measure must do better to say anything about dependency.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from padir import checks
from padir.decoding.options import Decoding
from padir.errors import PadirError
from padir.evaluation import TestSet
from padir.reporting.page import Section, cell
from padir.studies.analysis import attention, plotting, refining, study
from padir.studies.analysis.association import auc, correlations, roc, separation, within
from padir.studies.analysis.attention import attention_of
from padir.studies.analysis.dependency import Dependence, joined_dependence, sentence_dependence
from padir.studies.analysis.study import AnalysisOptions, Findings, Tell, check_model, pieces, refined
from padir.studies.analysis.truth import Joint, joints
from padir.translator import Translator

DEPENDENT = 0.01  # nats: the true mutual information from which a pair counts as dependent
MODEL = "model"
DISTANCE = "distance"

# Signs that make each measure larger for more dependent pairs.
_SIGN = {"tv": -1.0, "cosine": -1.0, DISTANCE: -1.0}


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Measures and the true dependency of P pairs of positions.

    Attributes:
      values: values of each measure by name: the measures of `padir.studies.analysis.attention`, "model" (mutual
        information) and "distance"; means over the canvases.
      truth_P: true mutual information in nats; None where it is unknown.
      vary_P: True if both positions have more than one right token.
      adjacent_P: True where the two positions are neighbours.
      sentence_P: the number of the pair's sentence.
      model: the model's dependency of the P pairs, one canvas after the other.
      drafts: for each sentence's number, the draft made from the first of the canvases, without EOS.
    """

    values: dict[str, Float[np.ndarray, " P"]]
    truth_P: Float[np.ndarray, " P"] | None
    vary_P: Bool[np.ndarray, " P"]
    adjacent_P: Bool[np.ndarray, " P"]
    sentence_P: Int[np.ndarray, " P"]
    model: Dependence
    drafts: dict[int, Int[np.ndarray, " L"]] = dataclasses.field(default_factory=dict)

    def among(self) -> dict[str, Bool[np.ndarray, " P"]]:
        """The groups of pairs in which measures are compared with the truth."""
        groups = {"all pairs": np.ones_like(self.vary_P), "neighbours": self.adjacent_P}
        return groups if self.truth_P is None else groups | {"both vary": self.vary_P}

    def score(self, name: str) -> Float[np.ndarray, " P"]:
        """Values of a measure; negated if, by the hypothesis, lower values mean more dependency."""
        return _SIGN.get(name.split("_")[0], 1.0) * self.values[name]

    def table(self) -> list[dict[str, Any]]:
        """Correlations with the truth and AUC of dependent pairs, a row for each group of pairs and measure.

        Intervals come from a bootstrap over sentences. Where the truth is unknown, correlations are with the model's
        own mutual information.
        """
        rows = []
        known = self.truth_P is not None
        target_P = self.values[MODEL] if self.truth_P is None else self.truth_P
        for group, there_P in self.among().items():
            sentence_P = self.sentence_P[there_P]
            aim_P = target_P[there_P]
            dependent_P = aim_P > DEPENDENT
            for name in (name for name in self.values if known or name != MODEL):
                score_P = self.score(name)[there_P]
                row: dict[str, Any] = {"pairs": group, "measure": name, "number": len(aim_P)}
                row["sentences"] = len(np.unique(sentence_P))
                if known:
                    row["dependent"] = int(dependent_P.sum())
                    row["sentences_of_both"] = len(np.intersect1d(sentence_P[dependent_P], sentence_P[~dependent_P]))
                pearson, spearman = correlations(score_P, aim_P, sentence_P)
                row |= pearson.row("pearson") | spearman.row("spearman")
                if known and 0 < dependent_P.sum() < len(dependent_P):
                    row |= separation(score_P, dependent_P, sentence_P).row("auc")
                    row |= within(score_P, dependent_P, sentence_P).row("auc_within")
                rows.append(row)
        return rows


@dataclasses.dataclass(frozen=True)
class AnalysedSentence:
    """A sentence to measure: its number in the test set, its target length with EOS, and its true distribution."""

    number: int
    length: int
    joint: Joint | None = None


def with_truth(translator: Translator, test_set: TestSet) -> list[AnalysedSentence]:
    """Sentences that have several right translations of one length, at the likeliest of these lengths.

    Raises:
      PadirError: a source is not of toy_de_en's grammar, or no sentence has such translations.
    """
    chosen = []
    limit = translator.card.config.max_length
    for number, source in enumerate(test_set.sources):
        right = {length: joint for length, joint in joints(source, translator.tokenizer).items() if length <= limit}
        if right:
            length = max(right, key=lambda n: right[n].share)
            chosen.append(AnalysedSentence(number, length, right[length]))
    if not chosen:
        raise PadirError("no sentence has several right translations of one length: give more sentences")
    return chosen


def without_truth(translator: Translator, test_set: TestSet) -> list[AnalysedSentence]:
    """All non-empty sentences, at the lengths that the model thinks likeliest."""
    lengths = translator.predict_lengths(test_set.sources)
    return [
        AnalysedSentence(number, length)
        for number, (text, (length, *_)) in enumerate(zip(test_set.sources, lengths, strict=True))
        if text.strip()
    ]


class _Canvas(NamedTuple):
    """Measures of all pairs on one canvas of each sentence; `sentences` in the order in which they were measured."""

    sentences: list[AnalysedSentence]
    values: dict[str, Float[np.ndarray, " P"]]
    model: Dependence
    drafts: dict[int, Int[np.ndarray, " L"]]


def measure_agreement(
    translator: Translator,
    test_set: TestSet,
    decoding: Decoding,
    sentences: Sequence[AnalysedSentence],
    *,
    values: int = 4,
    canvases: int = 1,
    given_draft: bool = False,
) -> Agreement:
    """Measures every pair of positions of the sentences.

    Args:
      decoding: strategy and first canvas; `num_steps` passes make the draft, and the attention of the last is measured.
      sentences: from `with_truth` or `without_truth`.
      values: number of tokens that are tried at a position (`padir.studies.analysis.dependency.dependence`).
      canvases: number of first canvases over which the measures are averaged; 1 is enough if canvases consist of masks.
      given_draft: measure the model's dependency given the rest of the draft; if False, given only source and length,
        like the truth.

    Raises:
      PadirError: the model's passes cannot be analysed, fewer than 1 canvas, no sentence has two editable positions, or
        the truth is known but `given_draft` makes the model's dependency incomparable with it.
    """
    check_model(translator.card.config)
    checks.counts(1, canvases=canvases)
    known = all(sentence.joint is not None for sentence in sentences)
    if known and given_draft:
        raise PadirError(
            "given='draft' cannot be compared with the true dependency, which is given the source and the length:"
            " use given='source'"
        )
    each = []
    for number in range(canvases):
        seeded = dataclasses.replace(decoding, seed=decoding.seed + number)
        each.append(_measure_canvas(translator, test_set, seeded, sentences, values, given_draft))
    first = each[0]
    means = {name: np.mean([canvas.values[name] for canvas in each], axis=0) for name in first.values}
    distance_P, truth_P, vary_P = (np.concatenate(parts) for parts in zip(*map(_known, first.sentences), strict=True))
    sentence_P = np.concatenate([[s.number] * len(attention.all_pairs(s.length - 1)) for s in first.sentences])
    return Agreement(
        means | {DISTANCE: distance_P.astype(np.float64)},
        truth_P if known else None,
        vary_P,
        distance_P == 1,
        sentence_P,
        joined_dependence([canvas.model for canvas in each]),
        first.drafts,
    )


def _measure_canvas(
    translator: Translator,
    test_set: TestSet,
    decoding: Decoding,
    sentences: Sequence[AnalysedSentence],
    values: int,
    given_draft: bool,
) -> _Canvas:
    part = dataclasses.replace(
        test_set,
        sources=[test_set.sources[sentence.number] for sentence in sentences],
        references=[test_set.references[sentence.number] for sentence in sentences],
    )
    found: list[Dependence] = []
    drafts: dict[int, Any] = {}
    order: list[AnalysedSentence] = []
    measured: dict[str, list[Any]] = collections.defaultdict(list)
    for one in refined(translator, part, decoding, [sentence.length for sentence in sentences]):
        maps = attention_of(translator, one, "writes")
        for row, index in one.rows():
            sentence = sentences[index]
            pairs_P2 = attention.all_pairs(sentence.length - 1)
            if not len(pairs_P2):
                continue
            order.append(sentence)
            drafts.setdefault(sentence.number, one.tokens_TBL[-1, row, : sentence.length - 1])
            found.append(sentence_dependence(translator, one, row, pairs_P2, values=values, given_draft=given_draft))
            for name, value_P in attention.measure_pairs(maps, row, pairs_P2).items():
                measured[name].append(value_P)
            measured[MODEL].append(found[-1].information_P)
    if not found:
        raise PadirError("no sentence has two positions: give longer sentences")
    joined = {name: np.concatenate(parts) for name, parts in measured.items()}
    return _Canvas(order, joined, joined_dependence(found), drafts)


def _known(sentence: AnalysedSentence) -> tuple[Any, Any, Any]:
    """(distance, true mutual information, True where both positions vary) of each pair of a sentence."""
    i_P, j_P = attention.all_pairs(sentence.length - 1).T
    if sentence.joint is None:
        return j_P - i_P, np.zeros(len(i_P)), np.zeros(len(i_P), bool)
    vary_L = sentence.joint.entropy() > 0
    return j_P - i_P, sentence.joint.information()[i_P, j_P], vary_L[i_P] & vary_L[j_P]


COLUMNS = ("pairs", "measure", "number", "dependent", "pearson", "spearman", "auc", "auc_within")
_LABELS = {f"{kind}_avg": label for kind, label in attention.LABELS.items()} | {"model": "the model's own"}
_SHOWN = ("self_avg", "positional_avg", "tv_avg", "cosine_avg", "model", "distance")


def analyse(
    translator: Translator, test_set: TestSet, decoding: Decoding, options: AnalysisOptions, tell: Tell
) -> Findings:
    """Compares measures of all pairs of positions with their true mutual information, where it is known."""
    known = test_set.task == refining.TOY and options.given == "source"
    choose = with_truth if known else without_truth
    sentences = choose(translator, test_set)
    count = "1 sentence" if len(sentences) == 1 else f"{len(sentences):,} sentences"
    tell(count + (" with several right translations of one length" if known else ""))
    found = measure_agreement(
        translator,
        test_set,
        decoding,
        sentences,
        values=options.values,
        canvases=options.canvases,
        given_draft=options.given == "draft",
    )
    rows = found.table()
    cycle = found.model.cycle()
    coverage = float(found.model.coverage_P.mean())
    number = f"{len(found.sentence_P):,} pairs of positions in {len(sentences):,} sentences"
    if known:
        text = (
            f"{number}. Dependent: true mutual information above {DEPENDENT} nats, given source and length."
            " Distances count with a minus sign, so that more always means more dependent; model: the model's own"
            " mutual information; distance: of the positions."
        )
    else:
        text = (
            f"{number}, given the {options.given}. The true dependency is unknown here: correlations are with the"
            " model's own mutual information."
        )
    sections = [
        Section("Which measure finds dependent positions", text, _roc(found), rows),
        Section(
            "Pairs of positions in a sentence",
            "Each picture has its own scale, bright for more. Similarity is 1 - total variation distance.",
            _matrices(translator, sentences, found, options.examples),
        ),
        _cycle_section(found, cycle),
    ]
    tell(f"cycle test: {cell(cycle)}; coverage of the values tried {coverage:.3f}")
    measured = len(np.unique(found.sentence_P))
    about = {"measured": measured, "canvases": options.canvases, "values": options.values, "given": options.given}
    return Findings(rows, {**about, "cycle": cycle, "coverage": coverage}, sections)


def _roc(found: Agreement) -> dict[str, bytes]:
    """A picture of the ROC curves; none where the truth is unknown, or all pairs are of one kind."""
    if found.truth_P is None:
        return {}
    curves = {}
    for group, there_P in found.among().items():
        label_P = found.truth_P[there_P] > DEPENDENT
        if 0 < label_P.sum() < len(label_P):
            scores = {name: found.score(name)[there_P] for name in _SHOWN if name in found.values}
            curves[group] = {
                _LABELS.get(name, name): (*roc(score_P, label_P), auc(score_P, label_P))
                for name, score_P in scores.items()
            }
    return {"roc": plotting.png(plotting.draw_roc, curves)} if curves else {}


def _matrices(
    translator: Translator, sentences: Sequence[AnalysedSentence], found: Agreement, examples: int
) -> dict[str, bytes]:
    """Pictures of the sentences with the most dependency: truth (where known), model, similarity and attention."""
    target_P = found.values[MODEL] if found.truth_P is None else found.truth_P
    several = [s for s in sentences if s.length > 2]
    short = [s for s in several if s.length <= study.MOST_TOKENS] or several
    best = sorted(short, key=lambda s: -target_P[found.sentence_P == s.number].sum())[:examples]
    pictures = {}
    for number, sentence in enumerate(best, 1):
        there_P = found.sentence_P == sentence.number
        measures = {} if found.truth_P is None else {"true mutual information": found.truth_P}
        measures["the model's"] = found.values[MODEL]
        measures["similarity of cross-attention"] = 1 - found.values["tv_avg"]
        measures["self-attention"] = found.values["self_avg"]
        matrices = {name: _symmetric(value_P[there_P], sentence.length - 1) for name, value_P in measures.items()}
        joint = sentence.joint
        tokens_L = found.drafts[sentence.number] if joint is None else joint.tokens_KL[joint.prob_K.argmax()]
        words = pieces(translator, tokens_L)
        pictures[f"pairs {number}"] = plotting.png(plotting.draw_matrices, matrices, words)
    return pictures


def _symmetric(value_P: np.ndarray, size: int) -> np.ndarray:
    """The values of all pairs of positions as a symmetric matrix with a zero diagonal, [size, size]."""
    i_P, j_P = attention.all_pairs(size).T
    value_LL = np.zeros((size, size))
    value_LL[i_P, j_P] = value_LL[j_P, i_P] = value_P
    return value_LL


def _cycle_section(found: Agreement, cycle: dict[str, Any]) -> Section:
    usual_P = found.model.least_P >= 0.01
    pictures = {"cycle": plotting.png(plotting.draw_cycle, found.model.odds_P2[usual_P])} if usual_P.any() else {}
    return Section(
        "Cycle test",
        "The log odds ratio of two positions by the first one's conditionals and by the second's, for values of at"
        " least 1 % each. Conditionals of a joint distribution would put every pair on the line.",
        pictures,
        [cycle],
    )
