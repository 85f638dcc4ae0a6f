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
from padir.analysis.association import correlations, separation
from padir.analysis.attention import Maps, check_model
from padir.analysis.conditionals import Dependence, dependence, joined_dependence
from padir.analysis.passes import Pass, refined
from padir.analysis.stutter import attention_of
from padir.analysis.truth import Joint, joints
from padir.canvas import forbid
from padir.decoding import Decoding
from padir.errors import PadirError
from padir.evaluation.evaluate import TestSet
from padir.model import Transformer
from padir.translate import Translator

DEPENDENT = 0.01  # nats: the true mutual information from which a pair counts as dependent
MODEL, DISTANCE = "model", "distance"
_ROWS = 64  # canvases that go through the decoder at once

# What a measure is turned into, so that more means: more dependent.
_SIGN = {"tv": -1.0, "cosine": -1.0, DISTANCE: -1.0}


@dataclasses.dataclass(frozen=True)
class Agreement:
    """P pairs of positions with their true dependency.

    Attributes:
      values: of each measure, by name: those of `padir.analysis.pairs`, "model" (mutual information) and "distance".
      truth_P: true mutual information in nats; None where nobody knows it.
      vary_P: whether both positions have more than one right token.
      adjacent_P: whether they are neighbours.
      sentence_P: the number of the sentence.
      model: what the model says, for each draw's canvas the P pairs in turn.
    """

    values: dict[str, Float[np.ndarray, " P"]]
    truth_P: Float[np.ndarray, " P"] | None
    vary_P: Bool[np.ndarray, " P"]
    adjacent_P: Bool[np.ndarray, " P"]
    sentence_P: Int[np.ndarray, " P"]
    model: Dependence

    def among(self) -> dict[str, Bool[np.ndarray, " P"]]:
        """The groups of pairs in which measures are compared with the truth."""
        groups = {"all pairs": np.ones_like(self.vary_P), "neighbours": self.adjacent_P}
        return groups if self.truth_P is None else groups | {"both vary": self.vary_P}

    def score(self, name: str) -> Float[np.ndarray, " P"]:
        """A measure with the sign with which the hypothesis says that more is more dependent."""
        return _SIGN.get(name.split("_")[0], 1.0) * self.values[name]

    def table(self) -> list[dict[str, Any]]:
        """For each group of pairs and measure: correlations with the truth, and AUC for the dependent pairs.

        Where there is no truth, correlations with what the model says.
        """
        rows = []
        for group, there_P in self.among().items():
            sentence_P = self.sentence_P[there_P]
            if self.truth_P is None:
                model_P = self.values[MODEL][there_P]
                for name in (name for name in self.values if name != MODEL):
                    pearson, spearman = correlations(self.score(name)[there_P], model_P)
                    row = {"pairs": group, "measure": name, "number": len(model_P)}
                    rows.append(row | {"pearson": pearson, "spearman": spearman})
                continue
            truth_P = self.truth_P[there_P]
            dependent_P = truth_P > DEPENDENT
            for name in self.values:
                score_P = self.score(name)[there_P]
                row: dict[str, Any] = {"pairs": group, "measure": name, "number": len(truth_P)}
                row["dependent"] = int(dependent_P.sum())
                if 0 < dependent_P.sum() < len(dependent_P):
                    apart = separation(score_P, dependent_P, sentence_P)
                    pearson, spearman = correlations(score_P, truth_P)
                    row |= {"pearson": pearson, "spearman": spearman}
                    row |= {"auc": apart.auc, "auc_low": apart.low, "auc_high": apart.high}
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
      canvases: over which the model's dependency is averaged; 1 is enough where they are of masks.
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
    collected: dict[str, list[Any]] = collections.defaultdict(list)
    found: list[Dependence] = []
    lengths = [sentence.length for sentence in sentences]
    for number in range(canvases):
        seeded = dataclasses.replace(decoding, seed=decoding.seed + number)
        for one in refined(translator, part, seeded, lengths):
            maps = attention_of(translator, one, "writes") if number == 0 else None
            for row, index in one.rows():
                pairs_P2 = pairs.every(sentences[index].length - 1)
                if not len(pairs_P2):
                    continue
                found.append(
                    sentence_dependence(translator, one, row, pairs_P2, values=values, given_draft=given_draft)
                )
                collected[f"canvas_{number}"].append(found[-1].information_P)
                if maps is not None:
                    for name, value_P in _of_sentence(maps, row, sentences[index], pairs_P2).items():
                        collected[name].append(value_P)
    if not found:
        raise PadirError("no sentence has two positions: give longer ones")
    joined = {name: np.concatenate(parts) for name, parts in collected.items()}
    joined[MODEL] = np.mean([joined.pop(f"canvas_{number}") for number in range(canvases)], axis=0)
    truth_P, vary_P, sentence_P = (joined.pop(name) for name in ("truth", "vary", "sentence"))
    return Agreement(
        joined, truth_P if known else None, vary_P, joined[DISTANCE] == 1, sentence_P, joined_dependence(found)
    )


def _of_sentence(maps: Maps, row: int, sentence: Sentence, pairs_P2) -> dict[str, Any]:
    """What is measured of each pair, and what is known of it."""
    i_P, j_P = pairs_P2.T
    found: dict[str, Any] = pairs.measure(maps, row, pairs_P2)
    found[DISTANCE] = (j_P - i_P).astype(np.float64)
    found["sentence"] = np.full(len(pairs_P2), sentence.number)
    if sentence.joint is None:
        return found | {"truth": np.zeros(len(pairs_P2)), "vary": np.zeros(len(pairs_P2), bool)}
    vary_L = sentence.joint.entropy() > 0
    return found | {"truth": sentence.joint.information()[i_P, j_P], "vary": vary_L[i_P] & vary_L[j_P]}


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
        rows = len(tokens_RL)
        filled = -(-rows // _ROWS) * _ROWS - rows  # so that one program serves all
        tokens_RL = np.concatenate([tokens_RL, tokens_RL[:1].repeat(filled, 0)])
        position_R = np.concatenate([position_R, position_R[:1].repeat(filled, 0)])
        parts = [
            _log_probs(translator.model, translator.params, tokens_RL[at : at + _ROWS], length, *memory, position)
            for at in range(0, len(tokens_RL), _ROWS)
            for position in [position_R[at : at + _ROWS]]
        ]
        return np.concatenate(jax.device_get(parts))[:rows]

    return dependence(distribution, tokens_L, start_L, hidden_L, pairs_P2, values=values)


@functools.partial(jax.jit, static_argnums=0)
def _log_probs(model: Transformer, params, tokens_RL, length, cross_kv, source_segment_BS, position_R):
    """The distribution of what may be written at one position of each canvas of a sentence, [R, V]."""
    segment_RL = jnp.broadcast_to(jnp.arange(tokens_RL.shape[1]) < length, tokens_RL.shape).astype(jnp.int32)
    bound = model.bind({"params": params})
    states_RLD = bound.draft_states(tokens_RL, segment_RL, cross_kv, source_segment_BS)
    # Before the projection onto the vocabulary, which is the better part of the work.
    logits_R1V = bound.logits(jnp.take_along_axis(states_RLD, position_R[:, None, None], axis=1))
    return jax.nn.log_softmax(forbid(logits_R1V.astype(jnp.float32), model.ids.special)[:, 0], axis=-1)
