"""The attention of decoder passes, and how well it separates stutter from other pairs (the paper's Tables 4 and 5).

`padir.models.layers.Attention` sows its probabilities at every call. Flax keeps them only if the caller makes the
collection "intermediates" mutable, as `attend` does. So other callers do not pay for them.

For a pair (i, j) and one head:

    self-attention      (A[i, j] + A[j, i]) / 2, A the decoder's self-attention
    positional          the same for the decoder's positional attention
    total variation     1/2 * sum over sources s of |C[i, s] - C[j, s]|, C the cross-attention
    cosine distance     1 - C[i]·C[j] / (|C[i]| |C[j]|)

Each measure gives three columns: its minimum, mean and maximum over all heads of all layers. The paper does not say how
it joins the two directions of self-attention; the mean is our choice.

Two neighbouring positions stutter if they hold the same token. `neighbours` refines a draft for some passes, and the
last pass leaves stutter in it. It measures the attention between neighbours in the pass that *writes* this draft, or in
the next pass, which *reads* it. A pass that reads a stuttering draft sees the same token at both positions. This makes
their queries alike, even if the positions are independent. So the pass that writes is the fairer test. The paper does
not say which pass it measured.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from padir.decoding.options import Decoding
from padir.errors import PadirError
from padir.evaluation import TestSet
from padir.models.transformer import Transformer
from padir.refinement.scores import best_tokens, forbid
from padir.reporting.page import Section
from padir.studies.analysis import plotting, study
from padir.studies.analysis.association import separation, within
from padir.studies.analysis.study import AnalysisOptions, Findings, Pass, Row, Tell, check_model, pieces, refined
from padir.translator import Translator

_NAMES = {"own": "self_attention", "positional": "positional_attention", "cross": "encoder_decoder_attention"}


@flax.struct.dataclass
class Maps:
    """Attention probabilities [query, key] of one decoder pass: J decoder layers, H heads each, R rows of targets.

    Attributes:
      own_RJHLL: the decoder's self-attention, between target positions.
      cross_RJHLS: cross-attention, from target positions to source positions.
      positional_RJHLL: positional attention, between target positions; None where the model has none.
    """

    own_RJHLL: Float[Array | np.ndarray, "R J H L L"]
    cross_RJHLS: Float[Array | np.ndarray, "R J H L S"]
    positional_RJHLL: Float[Array | np.ndarray, "R J H L L"] | None = None


@functools.partial(jax.jit, static_argnums=0)
def attend(
    model: Transformer,
    params: PyTree,
    tokens_RL: Int[Array, "R L"],
    segment_RL: Int[Array, "R L"],
    cross_kv: PyTree,
    source_segment_BS: Int[Array, "B S"],
) -> tuple[Maps, Int[Array, "R L"]]:
    """Runs one pass over drafts; returns its attention and the best token of each position.

    Arguments and errors are those of `Transformer.draft_states`; rows are sentence-major, R = B * N.
    """
    states_RLD, sown = model.apply(
        {"params": params},
        tokens_RL,
        segment_RL,
        cross_kv,
        source_segment_BS,
        method="draft_states",
        mutable=["intermediates"],
    )
    layers = sown["intermediates"]["decoder"]
    rows, length = tokens_RL.shape

    def gather(name: str):
        each = [layers[f"layers_{j}"][name]["attn_BHLS"][0] for j in range(model.config.decoder_layers)]
        return jnp.stack([_by_row(attn, rows, length) for attn in each], axis=1)

    positional = gather(_NAMES["positional"]) if model.config.positional_attention else None
    maps = Maps(gather(_NAMES["own"]), gather(_NAMES["cross"]), positional)
    logits_RLV = model.bind({"params": params}).logits(states_RLD)
    return maps, best_tokens(forbid(logits_RLV, model.ids.special))[0]


def _by_row(attn, rows: int, length: int):
    """Sown attention by row, [R, H, L, keys]; undoes cross-attention's folding of a sentence's N hypotheses."""
    batch, heads, _, keys = attn.shape
    attn = attn.reshape(batch, heads, rows // batch, length, keys)
    return attn.swapaxes(1, 2).reshape(rows, heads, length, keys)


OVER_HEADS = {"min": np.min, "avg": np.mean, "max": np.max}


def measure_pairs(maps: Maps, row: int, pairs_P2: Int[np.ndarray, "P 2"]) -> dict[str, Float[np.ndarray, " P"]]:
    """Every measure of the pairs of positions in one row, by name: "self_min", "tv_avg", ...

    Args:
      maps: attention maps on the host.
    """
    by_kind = {"self": _mutual(maps.own_RJHLL[row], pairs_P2)}
    if maps.positional_RJHLL is not None:
        by_kind["positional"] = _mutual(maps.positional_RJHLL[row], pairs_P2)
    cross = np.asarray(maps.cross_RJHLS[row], np.float64)
    first = cross[..., pairs_P2[:, 0], :]  # J H P S
    second = cross[..., pairs_P2[:, 1], :]
    by_kind["tv"] = np.abs(first - second).sum(-1) / 2
    norms = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    by_kind["cosine"] = np.maximum(0.0, 1 - (first * second).sum(-1) / norms)
    return {
        f"{kind}_{name}": over(values_JHP, axis=(0, 1))
        for kind, values_JHP in by_kind.items()
        for name, over in OVER_HEADS.items()
    }


def adjacent_pairs(length: int) -> Int[np.ndarray, "P 2"]:
    """The pairs of neighbours among the first `length` positions."""
    return np.stack([np.arange(length - 1), np.arange(1, length)], axis=-1).reshape(-1, 2)


def _mutual(attn_JHLL, pairs_P2):
    attn_JHLL = np.asarray(attn_JHLL, np.float64)
    i_P, j_P = pairs_P2.T
    return (attn_JHLL[..., i_P, j_P] + attn_JHLL[..., j_P, i_P]) / 2


WHEN = ("writes", "reads")


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """P pairs of neighbouring editable positions.

    Attributes:
      values: values of each measure by name, see `padir.studies.analysis.attention`.
      stutter_P: True where both positions hold the same token.
      sentence_P: the number of the pair's sentence.
    """

    values: dict[str, Float[np.ndarray, " P"]]
    stutter_P: Bool[np.ndarray, " P"]
    sentence_P: Int[np.ndarray, " P"]

    def table(self) -> list[dict[str, Any]]:
        """Rows of a table by measure: mean and standard deviation of pairs that stutter and of other pairs, and AUC.

        The AUC is taken among all pairs and within each sentence; above 0.5, the measure is higher for pairs that
        stutter.
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
    stutter = []
    sentence = []
    for one in refined(translator, test_set, dataclasses.replace(decoding, num_steps=step)):
        maps = attention_of(translator, one, when)
        for row, number in one.rows():
            free = int(one.length_B[row]) - 1
            pairs_P2 = adjacent_pairs(free)
            tokens_L = one.tokens_TBL[-1, row]
            for name, value_P in measure_pairs(maps, row, pairs_P2).items():
                values[name].append(value_P)
            stutter.append(tokens_L[pairs_P2[:, 0]] == tokens_L[pairs_P2[:, 1]])
            sentence.append(np.full(len(pairs_P2), number))
    joined = {name: np.concatenate(parts) for name, parts in values.items()}
    return Neighbours(joined, np.concatenate(stutter), np.concatenate(sentence))


COLUMNS = ("pass", "measure", "stutter_mean", "stutter_sd", "other_mean", "other_sd", "auc", "auc_within")


def analyse(
    translator: Translator, test_set: TestSet, decoding: Decoding, options: AnalysisOptions, tell: Tell
) -> Findings:
    """Measures the attention of neighbours in the pass that writes a draft and in the pass that reads it."""
    rows: list[Row] = []
    sections = []
    counts = {}
    for when in WHEN:
        found = neighbours(translator, test_set, decoding, step=decoding.num_steps, when=when)
        table = found.table()
        count = int(found.stutter_P.sum())
        number = len(found.stutter_P)
        rows += [{"pass": when, **row} for row in table]
        counts = {"neighbours": number, "stutter": count}
        tell(f"pass that {when} the draft: {count:,} of {number:,} neighbours stutter")
        sections.append(_section(when, found, table))
    sections.append(_maps_section(translator, test_set, decoding, options.examples))
    return Findings(rows, counts, sections)


def _section(when: str, found: Neighbours, table: list[Row]) -> Section:
    count = int(found.stutter_P.sum())
    number = len(found.stutter_P)
    return Section(
        f"Tables 4 and 5: the pass that {when} the draft",
        f"{count:,} of {number:,} pairs of neighbours hold the same token. Mean and standard deviation of each measure;"
        " auc is the probability that a stuttering pair has the higher value, auc within the same for pairs of one"
        " sentence, with 95 % intervals over sentences.",
        rows=table,
    )


def _maps_section(translator: Translator, test_set: TestSet, decoding: Decoding, examples: int) -> Section:
    pictures = {}
    for number, (one, row, _) in enumerate(study.examples(translator, test_set, decoding, examples), 1):
        maps, words, source = _maps(translator, one, row)
        keys = {kind: source if kind == "cross" else words for kind in maps}
        pictures[f"maps {number}"] = plotting.png(plotting.draw_maps, maps, words, keys)
    text = "Rows are queries, columns keys. Positions are labelled with the tokens that the pass wrote there."
    return Section("Attention maps", text, pictures)


def _maps(translator: Translator, one: Pass, row: int) -> tuple[dict[str, Any], list[str], list[str]]:
    """The attention of the pass that wrote a sentence's draft, the draft's tokens, and the source's tokens."""
    maps = attention_of(translator, one, "writes")
    length = int(one.length_B[row])
    source_L = one.batch.source_BS[row]
    # [LENGTH] and padding are never attended to.
    there_S = np.asarray(jax.device_get(one.batch.encoded.segment_BS))[row] > 0
    attn = {"self": maps.own_RJHLL[row][..., :length, :length]}
    if maps.positional_RJHLL is not None:
        attn["positional"] = maps.positional_RJHLL[row][..., :length, :length]
    attn["cross"] = maps.cross_RJHLS[row][..., :length, :][..., there_S]
    return attn, pieces(translator, one.tokens_TBL[-1, row, :length]), pieces(translator, source_L[there_S])
