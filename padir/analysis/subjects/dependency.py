"""Dependency between target positions: which measures find it, and whether a model's conditionals are consistent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from padir.analysis import agreement, figures, pairs, refinement
from padir.analysis.agreement import Agreement, AnalysedSentence
from padir.analysis.association import auc, roc
from padir.analysis.passes import pieces
from padir.analysis.subjects.study import AnalysisOptions, Findings, Tell
from padir.decoding.options import Decoding
from padir.decoding.translator import Translator
from padir.evaluation import TestSet
from padir.reporting.page import Section, cell

COLUMNS = ("pairs", "measure", "number", "dependent", "pearson", "spearman", "auc", "auc_within")
_LABELS = {f"{kind}_avg": label for kind, label in pairs.LABELS.items()} | {"model": "the model's own"}
_SHOWN = ("self_avg", "positional_avg", "tv_avg", "cosine_avg", "model", "distance")


def study(
    translator: Translator, test_set: TestSet, decoding: Decoding, options: AnalysisOptions, tell: Tell
) -> Findings:
    """Compares measures of all pairs of positions with their true mutual information, where it is known."""
    known = test_set.task == refinement.TOY and options.given == "source"
    choose = agreement.with_truth if known else agreement.without_truth
    sentences = choose(translator, test_set)
    count = "1 sentence" if len(sentences) == 1 else f"{len(sentences):,} sentences"
    tell(count + (" with several right translations of one length" if known else ""))
    found = agreement.measure_agreement(
        translator,
        test_set,
        decoding,
        sentences,
        values=options.values,
        canvases=options.canvases,
        given_draft=options.given == "draft",
    )
    rows, cycle = found.table(), found.model.cycle()
    coverage = float(found.model.coverage_P.mean())
    number = f"{len(found.sentence_P):,} pairs of positions in {len(sentences):,} sentences"
    if known:
        text = (
            f"{number}. Dependent: true mutual information above {agreement.DEPENDENT} nats, given source and length."
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
        label_P = found.truth_P[there_P] > agreement.DEPENDENT
        if 0 < label_P.sum() < len(label_P):
            scores = {name: found.score(name)[there_P] for name in _SHOWN if name in found.values}
            curves[group] = {
                _LABELS.get(name, name): (*roc(score_P, label_P), auc(score_P, label_P))
                for name, score_P in scores.items()
            }
    return {"roc": figures.png(figures.draw_roc, curves)} if curves else {}


def _matrices(
    translator: Translator, sentences: Sequence[AnalysedSentence], found: Agreement, examples: int
) -> dict[str, bytes]:
    """Pictures of the sentences with the most dependency: truth (where known), model, similarity and attention."""
    target_P = found.values[agreement.MODEL] if found.truth_P is None else found.truth_P
    several = [s for s in sentences if s.length > 2]
    short = [s for s in several if s.length <= refinement.MOST_TOKENS] or several
    best = sorted(short, key=lambda s: -target_P[found.sentence_P == s.number].sum())[:examples]
    pictures = {}
    for number, sentence in enumerate(best, 1):
        there_P = found.sentence_P == sentence.number
        measures = {} if found.truth_P is None else {"true mutual information": found.truth_P}
        measures["the model's"] = found.values[agreement.MODEL]
        measures["similarity of cross-attention"] = 1 - found.values["tv_avg"]
        measures["self-attention"] = found.values["self_avg"]
        matrices = {name: _symmetric(value_P[there_P], sentence.length - 1) for name, value_P in measures.items()}
        joint = sentence.joint
        tokens_L = found.drafts[sentence.number] if joint is None else joint.tokens_KL[joint.prob_K.argmax()]
        words = pieces(translator, tokens_L)
        pictures[f"pairs {number}"] = figures.png(figures.draw_matrices, matrices, words)
    return pictures


def _symmetric(value_P: Any, size: int) -> Any:
    """The values of all pairs of positions as a symmetric matrix with a zero diagonal, [size, size]."""
    i_P, j_P = pairs.every(size).T
    value_LL = np.zeros((size, size))
    value_LL[i_P, j_P] = value_LL[j_P, i_P] = value_P
    return value_LL


def _cycle_section(found: Agreement, cycle: dict[str, Any]) -> Section:
    usual_P = found.model.least_P >= 0.01
    pictures = {"cycle": figures.png(figures.draw_cycle, found.model.odds_P2[usual_P])} if usual_P.any() else {}
    return Section(
        "Cycle test",
        "The log odds ratio of two positions by the first one's conditionals and by the second's, for values of at"
        " least 1 % each. Conditionals of a joint distribution would put every pair on the line.",
        pictures,
        [cycle],
    )
