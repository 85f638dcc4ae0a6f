"""Attention between neighbours that stutter and between other neighbours (Tables 4 and 5, section L.5).

1. Refine a draft for `step` passes. The last pass leaves stutter in the draft.
2. Two neighbouring positions stutter if they hold the same token in this draft.
3. Measure the attention between neighbours in the pass that *writes* that draft, or in the next, which *reads* it.

A pass that reads a stuttering draft sees the same token at both positions, which makes their queries alike, dependent
or not. The pass that writes is therefore the fairer test; the paper does not say which pass it measured.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from padir.analysis import pairs
from padir.analysis.association import separation, within
from padir.analysis.attention import Maps, attend, check_model
from padir.analysis.passes import Pass, refined
from padir.decoding.options import Decoding
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.evaluation import TestSet

WHEN = ("writes", "reads")


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """P pairs of neighbouring free positions.

    Attributes:
      values: values of each measure by name, see `padir.analysis.pairs`.
      stutter_P: True where both positions hold the same token.
      sentence_P: the number of the pair's sentence.
    """

    values: dict[str, Float[np.ndarray, " P"]]
    stutter_P: Bool[np.ndarray, " P"]
    sentence_P: Int[np.ndarray, " P"]

    def table(self) -> list[dict[str, Any]]:
        """Rows of a table by measure: mean and standard deviation of pairs that stutter and of other pairs, and AUC.

        The AUC of telling the two apart is taken among all pairs and within each sentence; above 0.5 the measure is
        higher where there is stutter.
        """
        rows = []
        both = 0 < self.stutter_P.sum() < len(self.stutter_P)
        for name, value_P in self.values.items():
            row: dict[str, Any] = {"measure": name}
            for label, there_P in (("stutter", self.stutter_P), ("other", ~self.stutter_P)):
                found_P = value_P[there_P]
                row[f"{label}_mean"] = float(found_P.mean()) if len(found_P) else None
                row[f"{label}_sd"] = float(found_P.std(ddof=1)) if len(found_P) > 1 else None
            if both:
                row |= separation(value_P, self.stutter_P, self.sentence_P).row("auc")
                row |= within(value_P, self.stutter_P, self.sentence_P).row("auc_within")
            rows.append(row)
        return rows


def attention_of(translator: Translator, one: Pass, when: str) -> Maps:
    """The attention of the pass that wrote a batch's last draft, or of a pass that reads this draft, on the host.

    Raises:
      PadirError: `when` is neither "writes" nor "reads".
    """
    if when not in WHEN:
        raise PadirError(f"the pass must be one of {', '.join(WHEN)}, got {when!r}")
    tokens_BL = one.tokens_TBL[-2 if when == "writes" else -1]
    present_BL = np.arange(tokens_BL.shape[1]) < one.length_B[:, None]
    maps, _ = attend(
        translator.model,
        translator.params,
        tokens_BL,
        present_BL.astype(np.int32),
        one.batch.cross_kv,
        one.batch.encoded.segment_BS,
    )
    return jax.device_get(maps)


def neighbours(
    translator: Translator, test_set: TestSet, decoding: Decoding, *, step: int = 1, when: str = "writes"
) -> Neighbours:
    """Measures every pair of neighbours in the drafts of a test set.

    Args:
      decoding: strategy, canvas and seed of the drafts; each sentence gets one draft of its likeliest length.
      step: number of passes that make the draft, fewer where a row halts earlier.

    Raises:
      PadirError: the model's passes cannot be analysed, or `when` is unknown.
    """
    check_model(translator.card.config)
    values: dict[str, list[Any]] = collections.defaultdict(list)
    stutter, sentence = [], []
    for one in refined(translator, test_set, dataclasses.replace(decoding, num_steps=step)):
        maps = attention_of(translator, one, when)
        for row, number in one.rows():
            free = int(one.length_B[row]) - 1
            pairs_P2 = pairs.adjacent(free)
            tokens_L = one.tokens_TBL[-1, row]
            for name, value_P in pairs.measure(maps, row, pairs_P2).items():
                values[name].append(value_P)
            stutter.append(tokens_L[pairs_P2[:, 0]] == tokens_L[pairs_P2[:, 1]])
            sentence.append(np.full(len(pairs_P2), number))
    joined = {name: np.concatenate(parts) for name, parts in values.items()}
    return Neighbours(joined, np.concatenate(stutter), np.concatenate(sentence))
