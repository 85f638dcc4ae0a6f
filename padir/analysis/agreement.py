"""The paper's second hypothesis, tested where the truth is known: on the built-in corpus.

For every sentence that has several right translations of one length: all pairs of its positions, the true mutual
information of each (`padir.analysis.truth`), the attention between them while the model writes its first draft, and the
model's own dependency (`padir.analysis.conditionals`), given the source and the length alone. Then, for each measure:
does it go with the truth (correlation), and does it find the dependent pairs (ROC)?

Distance stands among the measures because neighbours depend on each other more than others do, and attend to each other
more: a measure that does no better says nothing of dependency.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from padir.analysis import pairs
from padir.analysis.association import correlations, separation, within
from padir.analysis.attention import check_model
from padir.analysis.conditionals import Dependence, dependence, joined_dependence
from padir.analysis.passes import Pass, refined
from padir.analysis.stutter import attention_of
from padir.analysis.truth import Joint, joints
from padir.decoding.options import Decoding
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.evaluation import TestSet
from padir.models.transformer import Transformer
from padir.refinement.scores import forbid

DEPENDENT = 0.01  # nats: the true mutual information from which a pair counts as dependent
MODEL, DISTANCE = "model", "distance"
_ROWS = 64  # canvases that go through the decoder at once
_DISTRIBUTIONS = 2**25  # probabilities that are in memory at once

# What a measure is turned into, so that more means: more dependent.
_SIGN = {"tv": -1.0, "cosine": -1.0, DISTANCE: -1.0}


@dataclasses.dataclass(frozen=True)
class Agreement:
    """P pairs of positions with their true dependency.

    Attributes:
      values: of each measure, by name: those of `padir.analysis.pairs`, "model" (mutual information) and "distance";
        means over the canvases.
      truth_P: true mutual information in nats; None where nobody knows it.
      vary_P: whether both positions have more than one right token.
      adjacent_P: whether they are neighbours.
      sentence_P: the number of the sentence.
      model: what the model says, for each draw's canvas the P pairs in turn.
      drafts: the free tokens of the first canvas's draft of each sentence, by its number.
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
        """A measure with the sign with which the hypothesis says that more is more dependent."""
        return _SIGN.get(name.split("_")[0], 1.0) * self.values[name]

    def table(self) -> list[dict[str, Any]]:
        """For each group of pairs and measure: correlations with the truth, and AUC for the dependent pairs.

        Each with an interval, a bootstrap over sentences. Where there is no truth, correlations are with what the model
        says.
        """
        rows = []
        known = self.truth_P is not None
        target_P = self.values[MODEL] if self.truth_P is None else self.truth_P
        for group, there_P in self.among().items():
            sentence_P, aim_P = self.sentence_P[there_P], target_P[there_P]
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
class Sentence:
    """A sentence to be measured: its number in the test set, its target length with EOS, and its true distribution."""

    number: int
    length: int
    joint: Joint | None = None


def with_truth(translator: Translator, test_set: TestSet) -> list[Sentence]:
    """The sentences that have several right translations of one length; of several such lengths the likeliest.

    Raises:
      PadirError: a source is not of toy_de_en's grammar, or no sentence has such translations.
    """
    chosen, limit = [], translator.card.config.max_length
    for number, source in enumerate(test_set.sources):
        right = {length: joint for length, joint in joints(source, translator.tokenizer).items() if length <= limit}
        if right:
            length = max(right, key=lambda n: right[n].share)
            chosen.append(Sentence(number, length, right[length]))
    if not chosen:
        raise PadirError("no sentence has several right translations of one length: give more sentences")
    return chosen


def without_truth(translator: Translator, test_set: TestSet) -> list[Sentence]:
    """All sentences that are not empty, at their likeliest lengths."""
    lengths = translator.predict_lengths(test_set.sources)
    return [
        Sentence(number, length)
        for number, (text, (length, *_)) in enumerate(zip(test_set.sources, lengths, strict=True))
        if text.strip()
    ]


def agreement(
    translator: Translator,
    test_set: TestSet,
    decoding: Decoding,
    sentences: Sequence[Sentence],
    *,
    values: int = 4,
    canvases: int = 1,
    given_draft: bool = False,
) -> Agreement:
    """Measures every pair of positions of the sentences.

    Args:
      decoding: its strategy and canvas; num_steps says after how many passes the draft stands that is held, and the
        attention of which pass is measured (the last of them).
      sentences: from `with_truth` or `without_truth`.
      values: of a position that are tried (`dependence`).
      canvases: over which what is measured is averaged; 1 is enough where they are of masks.
      given_draft: measure the model's dependency given the rest of the draft; else given source and length alone, as
        the truth is.

    Raises:
      PadirError: the model cannot be looked into, fewer than 1 canvas, or the truth is given and not comparable.
    """
    check_model(translator.card.config)
    if canvases < 1:
        raise PadirError(f"dependency needs at least 1 canvas, got {canvases}")
    known = all(sentence.joint is not None for sentence in sentences)
    if known and given_draft:
        raise PadirError("the truth is known given the source and the length: leave the draft out (--given source)")
    part = dataclasses.replace(
        test_set,
        sources=[test_set.sources[sentence.number] for sentence in sentences],
        references=[test_set.references[sentence.number] for sentence in sentences],
    )
    found: list[Dependence] = []
    drafts: dict[int, Any] = {}
    each_canvas: list[dict[str, Any]] = []
    sentence_S: list[Sentence] = []  # in the order in which they are measured, the same for every canvas
    lengths = [sentence.length for sentence in sentences]
    for number in range(canvases):
        seeded = dataclasses.replace(decoding, seed=decoding.seed + number)
        measured: dict[str, list[Any]] = collections.defaultdict(list)
        sentence_S = []
        for one in refined(translator, part, seeded, lengths):
            maps = attention_of(translator, one, "writes")
            for row, index in one.rows():
                pairs_P2 = pairs.every(lengths[index] - 1)
                if not len(pairs_P2):
                    continue
                sentence_S.append(sentences[index])
                drafts.setdefault(sentences[index].number, one.tokens_TBL[-1, row, : lengths[index] - 1])
                found.append(
                    sentence_dependence(translator, one, row, pairs_P2, values=values, given_draft=given_draft)
                )
                for name, value_P in pairs.measure(maps, row, pairs_P2).items():
                    measured[name].append(value_P)
                measured[MODEL].append(found[-1].information_P)
        each_canvas.append({name: np.concatenate(parts) for name, parts in measured.items()})
    if not found:
        raise PadirError("no sentence has two positions: give longer ones")
    values_by_name = {name: np.mean([each[name] for each in each_canvas], axis=0) for name in each_canvas[0]}
    distance_P, truth_P, vary_P = (np.concatenate(parts) for parts in zip(*map(_known, sentence_S), strict=True))
    sentence_P = np.concatenate([[s.number] * len(pairs.every(s.length - 1)) for s in sentence_S])
    return Agreement(
        values_by_name | {DISTANCE: distance_P.astype(np.float64)},
        truth_P if known else None,
        vary_P,
        distance_P == 1,
        sentence_P,
        joined_dependence(found),
        drafts,
    )


def _known(sentence: Sentence) -> tuple[Any, Any, Any]:
    """Of each pair of a sentence: the distance, the true mutual information, and whether both positions vary."""
    i_P, j_P = pairs.every(sentence.length - 1).T
    if sentence.joint is None:
        return j_P - i_P, np.zeros(len(i_P)), np.zeros(len(i_P), bool)
    vary_L = sentence.joint.entropy() > 0
    return j_P - i_P, sentence.joint.information()[i_P, j_P], vary_L[i_P] & vary_L[j_P]


def sentence_dependence(
    translator: Translator,
    one: Pass,
    row: int,
    pairs_P2: Int[np.ndarray, "P 2"],
    *,
    values: int = 4,
    given_draft: bool = False,
) -> Dependence:
    """The model's dependency between positions of one sentence.

    Args:
      given_draft: hold the rest of the last draft; else all of it is hidden.
    """
    start_L, tokens_L = one.tokens_TBL[0, row], one.tokens_TBL[-1, row]
    length = int(one.length_B[row])
    hidden_L = (np.arange(len(tokens_L)) < length - 1) & (not given_draft)
    memory = jax.tree.map(lambda x: x[row : row + 1], (one.batch.cross_kv, one.batch.encoded.segment_BS))

    def distribution(tokens_RL, position_R):
        # A canvas goes through the decoder once, however many of its positions are asked for.
        canvas_CL, canvas_R = np.unique(tokens_RL, axis=0, return_inverse=True)
        canvas_R, state_RD = canvas_R.reshape(-1), None
        for at in range(0, len(canvas_CL), _ROWS):
            states_CLD = _states(translator.model, translator.params, _filled(canvas_CL[at:], _ROWS), length, *memory)
            states_CLD = np.asarray(states_CLD)
            if state_RD is None:
                state_RD = np.zeros((len(tokens_RL), states_CLD.shape[-1]), states_CLD.dtype)
            (there,) = np.nonzero((canvas_R >= at) & (canvas_R < at + _ROWS))
            state_RD[there] = states_CLD[canvas_R[there] - at, position_R[there]]
        assert state_RD is not None
        rows = _ROWS * _ROWS // 8
        parts = [
            _log_probs(translator.model, translator.params, _filled(state_RD[at:], rows))
            for at in range(0, len(state_RD), rows)
        ]
        return np.concatenate(jax.device_get(parts))[: len(tokens_RL)]

    # As many pairs at once as keep the distributions in memory, for large vocabularies and long sentences.
    most = max(1, _DISTRIBUTIONS // (values * translator.card.ids.num_embeddings))
    return joined_dependence(
        [
            dependence(distribution, tokens_L, start_L, hidden_L, pairs_P2[at : at + most], values=values)
            for at in range(0, len(pairs_P2), most)
        ]
    )


def _filled(x, rows: int):
    """The first rows, filled up with the first of them, so that one program serves all."""
    x = x[:rows]
    return np.concatenate([x, x[:1].repeat(rows - len(x), 0)])


@functools.partial(jax.jit, static_argnums=0)
def _states(model: Transformer, params, tokens_CL, length, cross_kv, source_segment_BS):
    """What the decoder makes of canvases of one sentence, [C, L, D], before the projection onto the vocabulary."""
    segment_CL = jnp.broadcast_to(jnp.arange(tokens_CL.shape[1]) < length, tokens_CL.shape).astype(jnp.int32)
    return model.bind({"params": params}).draft_states(tokens_CL, segment_CL, cross_kv, source_segment_BS)


@functools.partial(jax.jit, static_argnums=0)
def _log_probs(model: Transformer, params, state_RD):
    """The distribution of what may be written at positions with these states, [R, V]."""
    logits_R1V = model.bind({"params": params}).logits(state_RD[:, None])
    return jax.nn.log_softmax(forbid(logits_R1V.astype(jnp.float32), model.ids.special)[:, 0], axis=-1)
