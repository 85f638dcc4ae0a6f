"""The sums over the vocabulary that a loss needs, from the logits of one block of ids after the other.

The logits [B, L, V] of a batch are the largest array of a training step. A loss needs a few numbers of each position's
logits (`Tally`). If the logits are many, they exist for one block of ids at a time, in the backward pass too, which
computes them again. A block has an equal share of the ids of each device that shares the vocabulary. The table gets
rows of zeros up to a multiple of 128 for this, whose logits are -inf. Only these sums see the added rows: parameters,
checkpoints and files do not have them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from padir.distributed.sharding import MODEL, shares, split_rows_of_blocks
from padir.refinement.scores import Output, best_ids, forbid
from padir.text.ids import round_up

LOGITS_AT_ONCE = 2**28  # of each device; 1 GB
_MULTIPLE = 128


Found = tuple[Int[Array, "*B"], Float[Array, "*B"]]
"""The best of the ids that may be written, and its log-probability among them."""


@flax.struct.dataclass
class Tally:
    """Sums over each position's logits, for losses and metrics.

    Attributes:
      log_z: logarithm of the sum of the exponentials of all logits.
      at_target, total: the target's logit, and the sum of all logits.
      most: the largest logit.
      best: the first id with the largest logit.
      found: the best of the ids that may be written; None if it was not looked for.
    """

    log_z: Float[Array, "*B"]
    at_target: Float[Array, "*B"]
    total: Float[Array, "*B"]
    most: Float[Array, "*B"]
    best: Int[Array, "*B"]
    found: Found | None = None

    @staticmethod
    def of(logits: Float[Array, "*B V"], target: Int[Array, "*B"]) -> Tally:
        """The tally of logits that exist as a whole."""
        logits = logits.astype(jnp.float32)
        # A comparison selects the target's logit, as the gradient of a gather would be a scatter into zeros.
        is_target = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) == target[..., None]
        at_target = jnp.where(is_target, logits, 0.0).sum(-1)
        most = jax.lax.stop_gradient(logits).max(-1)
        return Tally(jax.nn.logsumexp(logits, axis=-1), at_target, logits.sum(-1), most, best_ids(logits))


class Factors(NamedTuple):
    """The two factors of logits: `product` makes float32 logits of decoder states and some rows of a table of ids."""

    product: Callable[[Array, Array], Array]
    states_BLD: Float[Array, "B L D"]
    table_VD: Float[Array, "V D"]


@dataclasses.dataclass(frozen=True, eq=False)
class Logits:
    """The logits of all ids at each position; jit computes `logits_BLV` as a whole only if other code reads it.

    Attributes:
      factors: None if the readout's head changes the product.
      special: ids that are never written.
    """

    logits_BLV: Float[Array, "B L V"]
    factors: Factors | None = None
    special: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return self.logits_BLV.shape[-1]

    def tally(self, target_BL: Int[Array, "B L"]) -> Tally:
        """The sums over each position's logits, block by block if the logits are many."""
        blocks = blocks_of(*self.logits_BLV.shape)
        if self.factors is None or (blocks == 1 and self.size % shares(MODEL) == 0):
            return Tally.of(self.logits_BLV, target_BL)
        product, states_BLD, table_VD = self.factors
        fields: Any = tally_by_block(product, blocks, self.special, states_BLD, table_VD, target_BL)
        return Tally(*fields)

    def output(self, found_BL: Found | None, keep_logits_BL: Float[Array, "B L"] | None, judges: str) -> Output:
        """The output of this pass for a transition; no gradient flows through it.

        Args:
          found_BL: `Tally.found` of these logits.
          keep_logits_BL, judges: as in `Output`.
        """
        logits_BLV = forbid(self.logits_BLV, self.special)
        return jax.lax.stop_gradient(Output(logits_BLV, keep_logits_BL, found_BL, judges=judges))


def blocks_of(batch: int, length: int, size: int) -> int:
    """The number of blocks, a power of two, for which a device has at most `LOGITS_AT_ONCE` logits at a time.

    >>> blocks_of(256, 256, 32_100), blocks_of(16, 64, 8_100)
    (8, 1)
    """
    blocks = 1
    while blocks < size and batch * length * size > LOGITS_AT_ONCE * blocks * shares():
        blocks *= 2
    return blocks


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def tally_by_block(product, blocks, special, states_BLD, table_VD, target_BL):
    """The fields of the `Tally` of product(states, table), with the logits of one of `blocks` blocks at a time."""
    size = table_VD.shape[0]

    def visit(block):
        id_v, writable_v, table_vD = block
        logits_BLv = jnp.where(id_v < size, product(states_BLD, table_vD), -jnp.inf)
        at_target_BL = jnp.where(id_v == target_BL[..., None], logits_BLv, 0.0).sum(-1)
        total_BL = jnp.where(id_v < size, logits_BLv, 0.0).sum(-1)
        either = [
            (each.max(-1), id_v[0] + blocks * best_ids(each), jax.nn.logsumexp(each, axis=-1))
            for each in (logits_BLv, jnp.where(writable_v, logits_BLv, -jnp.inf))
        ]
        return at_target_BL, total_BL, either

    id_nv, table_nvD = _in_blocks(table_VD, blocks)
    writable = jnp.ones(id_nv.size, bool).at[jnp.array(special, int)].set(False).at[size:].set(False)
    writable_nv = writable.reshape(-1, blocks).T
    at_target_nBL, total_nBL, either_n = jax.lax.map(visit, (id_nv, writable_nv, table_nvD))

    def joined(most_nBL, id_nBL, log_z_nBL):
        most_BL = most_nBL.max(0)
        return most_BL, jnp.where(most_nBL == most_BL, id_nBL, size).min(0), jax.nn.logsumexp(log_z_nBL, axis=0)

    (most_BL, best_BL, log_z_BL), (writable_most_BL, writable_BL, log_written_BL) = (joined(*each) for each in either_n)
    found_BL = writable_BL, writable_most_BL - log_written_BL
    return log_z_BL, at_target_nBL.sum(0), total_nBL.sum(0), most_BL, best_BL, found_BL


def _forward(product, blocks, special, states_BLD, table_VD, target_BL):
    tally: Any = tally_by_block(product, blocks, special, states_BLD, table_VD, target_BL)
    return tally, (states_BLD, table_VD, target_BL, tally[0])


def _backward(product, blocks, special, known, by):
    states_BLD, table_VD, target_BL, log_z_BL = known
    size = table_VD.shape[0]
    by_log_z_BL1, by_target_BL1, by_total_BL1 = (each_BL[..., None] for each_BL in by[:3])

    def visit(by_states_BLD, block):
        id_v, table_vD = block
        logits_BLv, pull = jax.vjp(product, states_BLD, table_vD)
        by_logits_BLv = jnp.exp(logits_BLv - log_z_BL[..., None]) * by_log_z_BL1 + by_total_BL1
        by_logits_BLv += jnp.where(id_v == target_BL[..., None], by_target_BL1, 0.0)
        more_BLD, by_table_vD = pull(jnp.where(id_v < size, by_logits_BLv, 0.0))
        return by_states_BLD + more_BLD, by_table_vD  # float32, as many small numbers are added

    start_BLD = jnp.zeros(states_BLD.shape, jnp.float32)
    by_states_BLD, by_table_nvD = jax.lax.scan(visit, start_BLD, _in_blocks(table_VD, blocks))
    by_table_VD = by_table_nvD.swapaxes(0, 1).reshape(-1, table_VD.shape[1])[:size]
    return by_states_BLD.astype(states_BLD.dtype), by_table_VD, None


tally_by_block.defvjp(_forward, _backward)


def _in_blocks(table_VD: Float[Array, "V D"], blocks: int) -> tuple[Int[Array, "n v"], Float[Array, "n v D"]]:
    """The ids and the rows of each block; block i has the ids i, i + n, i + 2 n, ..."""
    size = round_up(table_VD.shape[0], math.lcm(_MULTIPLE, blocks * shares(MODEL)))
    table_VD = jnp.pad(table_VD, ((0, size - table_VD.shape[0]), (0, 0)))
    id_nv = jnp.arange(size, dtype=jnp.int32).reshape(-1, blocks).T
    return id_nv, split_rows_of_blocks(table_VD.reshape(-1, blocks, table_VD.shape[1]).swapaxes(0, 1))
