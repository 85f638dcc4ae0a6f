"""Loss of references that are written in several passes, by the number of tokens that each pass writes.

T passes write a reference as a strategy would, but with the reference's own tokens. A schedule
(`padir.refinement.strategies.schedules`) says how many tokens each pass writes. An order says which: random tokens, or
the tokens at the positions of the most confident predictions in this pass, as in
`padir.refinement.strategies.MaskPredict`. The sum of -log p(token), each under the pass that writes it, is an upper
bound of -log p(reference) for a decoder of T passes that draws tokens. It is lowest if each pass writes one token.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from padir import checks
from padir.decoding.options import Decoding
from padir.evaluation import TestSet
from padir.models.transformer import Transformer
from padir.refinement.scores import best_tokens, forbid
from padir.refinement.segments import CHOICE, position_keys, sentence_keys, uniform_draws, worst
from padir.refinement.strategies.schedules import SCHEDULES, still_masked
from padir.reporting.page import Section, cell
from padir.studies.analysis import plotting
from padir.studies.analysis.study import AnalysisOptions, Findings, Row, Tell, check_model, reference_tokens, refined
from padir.studies.ising import pass_sizes
from padir.text.ids import pad_rows
from padir.translator import Translator

ORDERS = ("random", "confident")


class Plan(NamedTuple):
    """A way of writing a reference.

    Attributes:
      schedule: number of tokens that each pass writes: a name or shares, as of `still_masked`.
      steps: T, number of passes.
      order: which tokens come first, one of `ORDERS`.
    """

    schedule: str | tuple[float, ...]
    steps: int
    order: str


def nats_by_step(
    translator: Translator, test_set: TestSet, decoding: Decoding, plans: Collection[Plan]
) -> dict[Plan, Float[np.ndarray, "T T"]]:
    """n_kj: the sum of -log p(token) under pass k over the tokens that pass j >= k writes, in nats per token.

    So the trace is the loss of a plan. The sum of row k is the loss if pass k wrote all remaining tokens. EOS counts as
    known. Masked positions hold the first canvas of `decoding` (masks or random pieces); its seed chooses the pieces
    and the random order. Confidence is that of the best token that may be written. Each sentence is encoded once for
    all plans.

    Returns:
      n of each plan, [T, T].

    Raises:
      PadirError: an order is unknown, there are no sentences, the model is causal or decontextualised, or its canvas is
        not the sentence.
    """
    for plan in plans:
        checks.one_of(ORDERS, order=plan.order)
    config = translator.card.config
    check_model(config)
    targets = reference_tokens(translator, test_set)
    summed = {plan: np.zeros((plan.steps, plan.steps)) for plan in plans}
    number = 0
    decoding = dataclasses.replace(decoding, num_steps=1)
    for one in refined(translator, test_set, decoding, [len(tokens) for tokens in targets]):
        initial_BL = one.tokens_TBL[0]
        target_BL = pad_rows([targets[i] for i in one.numbers], initial_BL.shape[1], len(initial_BL))
        there_B = np.arange(len(initial_BL)) < len(one.numbers)
        editable_B = np.where(there_B, one.length_B - 1, 0)  # rows that fill the batch up count as empty sentences
        canvas = (initial_BL, target_BL, editable_B)
        memory = (one.batch.cross_kv, one.batch.encoded.segment_BS)
        random_key = (one.batch.source_BS, decoding.seed)
        for (schedule, steps, order), summed_TT in summed.items():
            editable_BT = jnp.array(editable_B)[:, None].repeat(steps, axis=1)
            left_BT = still_masked(schedule, editable_BT, jnp.arange(1, steps + 1), steps)
            summed_TT += np.asarray(
                _batch_nats(translator.model, translator.params, canvas, left_BT, memory, random_key, order=order)
            )
        number += int(editable_B.sum())
    return {plan: summed_TT / max(number, 1) for plan, summed_TT in summed.items()}


@functools.partial(jax.jit, static_argnums=0, static_argnames="order")
def _batch_nats(model: Transformer, params, canvas, left_BT, memory, random_key, *, order: str):
    """n_kj of a batch in nats, [T, T]."""
    initial_BL, target_BL, editable_B = canvas
    decode = model.bind({"params": params}).decode
    steps = left_BT.shape[1]
    position_L = jnp.arange(initial_BL.shape[1])
    editable_BL = position_L < editable_B[:, None]
    segment_BL = (position_L <= editable_B[:, None]).astype(jnp.int32)
    random_BL = uniform_draws(position_keys(sentence_keys(*random_key), segment_BL, CHOICE))

    def step(written_in_BL, inputs):
        """Marks the positions that a pass writes with its number; positions of later passes keep T."""
        k, left_B = inputs
        masked_BL = editable_BL & (written_in_BL == steps)
        output = decode(jnp.where(masked_BL, initial_BL, target_BL), segment_BL, *memory)
        logits_BLV = output.logits_BLV.astype(jnp.float32)
        at_target_BL = jnp.take_along_axis(jax.nn.log_softmax(logits_BLV), target_BL[..., None], axis=-1)[..., 0]
        confidence_BL = best_tokens(forbid(logits_BLV, model.ids.special))[1]
        priority_BL = confidence_BL if order == "confident" else random_BL
        left_BL = jnp.broadcast_to(left_B[:, None], masked_BL.shape)
        writes_BL = masked_BL & ~worst(priority_BL, masked_BL, segment_BL, left_BL)
        return jnp.where(writes_BL, k, written_in_BL), jnp.where(masked_BL, -at_target_BL, 0.0)

    written_in_BL, nats_TBL = jax.lax.scan(step, jnp.full_like(initial_BL, steps), (jnp.arange(steps), left_BT.T))
    return jnp.einsum("kbl,blj->kj", nats_TBL, jax.nn.one_hot(written_in_BL, steps), precision="highest")


_NAMES = (*SCHEDULES, "searched")
COLUMNS = ("order", "passes", *_NAMES, "shares")
_UNITS = 32  # the search measures references that are written in so many equal passes, and joins some of these


def analyse(
    translator: Translator, test_set: TestSet, decoding: Decoding, options: AnalysisOptions, tell: Tell
) -> Findings:
    """Measures every schedule, and searched shares, for each order of the tokens and each number of passes."""
    checks.within(1, _UNITS, passes=max(options.passes))
    small = nats_by_step(translator, test_set, decoding, [Plan("linear", _UNITS, order) for order in ORDERS])
    found = {plan.order: searched(nats_UU) for plan, nats_UU in small.items()}
    rows: list[Row] = []
    for count in sorted(set(options.passes)):
        plans = {
            (order, name): Plan(found[order][count - 1] if name == "searched" else name, count, order)
            for order in ORDERS
            for name in _NAMES
        }
        nats = nats_by_step(translator, test_set, decoding, plans.values())
        for order in ORDERS:
            losses = {name: float(nats[plans[order, name]].trace()) for name in _NAMES}
            rows.append({"order": order, "passes": count, **losses, "shares": found[order][count - 1]})
            tell(cell(rows[-1]))
    rows.sort(key=lambda row: ORDERS.index(row["order"]))
    return Findings(rows, {}, [_section(order, [row for row in rows if row["order"] == order]) for order in ORDERS])


def searched(nats_UU: Float[np.ndarray, "U U"]) -> list[tuple[float, ...]]:
    """Shares that are still masked after each of 1, 2, ..., U passes, made by joining U small passes at the least loss.

    The loss of a joined pass is the loss of its tokens under the first of its small passes. This is exact for tokens in
    random order. With the most confident tokens first, a larger pass may choose other tokens, so the shares are only a
    proposal.

    Args:
      nats_UU: what `nats_by_step` returns for the schedule "linear" and U steps.
    """
    units = len(nats_UU)
    excess_UU = np.triu(nats_UU - np.diag(nats_UU))
    cost_MM = np.pad(np.cumsum(excess_UU, axis=1), ((0, 1), (1, 0)))  # M = U + 1
    return [tuple((1 - np.cumsum(sizes) / units).round(3).tolist()) for _, sizes in pass_sizes.cheapest(cost_MM)]


def _section(order: str, rows: list[Row]) -> Section:
    lines = [{"strategy": name, "steps": row["passes"], "nats": row[name]} for name in _NAMES for row in rows]
    return Section(
        f"Tokens in {order} order",
        "Mean of -log p(token) over references, in nats, each token under the pass that writes it. searched: the shares"
        f" in the last column, found by joining {_UNITS} small passes. They say what is still masked after each pass,"
        " for a strategy's field schedule.",
        {f"nats {order}": plotting.png(plotting.draw_outcomes, lines, {"nats": "loss, nats a token"})},
        rows,
    )
