"""One optimizer step: loss, gradient and update, with the batch whole or in parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from padir.errors import PadirError
from padir.models.transformer import Transformer
from padir.training.batch import Batch, Sums, mean_loss
from padir.training.config import TrainConfig
from padir.training.not_finite import is_finite
from padir.training.optimizer import without_gradient
from padir.training.state import TrainState


def make_step(
    model: Transformer, optimizer: optax.GradientTransformation, config: TrainConfig
) -> Callable[[TrainState, Batch], tuple[TrainState, Sums]]:
    """Makes the function of one optimizer step; the objective's `normaliser` divides its loss.

    A skipped step (see `NotFinite`) counts as a step and adds nothing to the sums. With `Batching.accumulation_steps`
    above 1 the gradients of the summed loss are added up part by part, then divided once; there is one check for finite
    numbers and one update for the whole batch. Parameters whose names begin with one of `TrainConfig.freeze` get no
    gradient, which saves computing it; `optimizer` must leave them as they are (`padir.training.optimizer.frozen`).

    Raises:
      PadirError: there are several parts, and the objective's normaliser does not divide the length loss.
    """
    objective, batching, not_finite = config.objective, config.batching, config.not_finite
    if batching.accumulation_steps > 1 and objective.normaliser != "tokens":
        what = f"Batching.accumulation_steps with the normaliser {objective.normaliser!r}"
        raise PadirError(what, "1, because the length loss is not divided", batching.accumulation_steps)
    key = jax.random.key(config.seed)

    def step_fn(state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
        def summed(params, some: Batch):
            return objective(
                jax.random.fold_in(key, state.step),
                without_gradient(params, config.freeze),
                some,
                model=model,
                num_segments=batching.num_segments if batching.mode == "pack" else None,
                dropout=model.config.dropout_rate > 0,
                progress=jnp.asarray(state.step, jnp.float32) / config.num_steps,
            )

        def mean(params):
            loss, sums = summed(params, batch)
            return mean_loss(loss, sums), sums

        if batching.accumulation_steps == 1:
            (loss, sums), grads = jax.value_and_grad(mean, has_aux=True)(state.params)
        else:
            of_part = jax.value_and_grad(summed, has_aux=True)
            (loss, sums), grads = _summed_over_parts(
                lambda part: of_part(state.params, part), batch, batching.accumulation_steps
            )
            loss, grads = mean_loss((loss, grads), sums)
        finite = is_finite(loss, grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        new = not_finite.choose(finite, (params, opt_state), (state.params, state.opt_state))
        sums = not_finite.choose(finite, sums, jax.tree.map(jnp.zeros_like, sums))
        sums = sums.replace(not_finite=1.0 - finite.astype(jnp.float32))
        return TrainState(step=state.step + 1, params=new[0], opt_state=new[1]), sums

    return step_fn


def _summed_over_parts(fn: Callable[[Batch], Any], batch: Batch, accumulation_steps: int) -> Any:
    """Sum of `fn` over the parts of a batch, one after the other; each part has rows from the whole batch."""
    rows = batch.target_BL.shape[0]
    if rows % accumulation_steps:
        raise PadirError("Batching.accumulation_steps", f"a divisor of the {rows} rows of a batch", accumulation_steps)
    leaves, tree = jax.tree.flatten(batch)
    leaves = [leaf.reshape(rows // accumulation_steps, accumulation_steps, *leaf.shape[1:]) for leaf in leaves]

    made = None

    # Leaves, because annotated shapes of sums would refuse a ShapeDtypeStruct.
    def part(number: Int[Array, ""]) -> list[jax.Array]:
        nonlocal made
        some = jax.tree.unflatten(tree, [jax.lax.dynamic_index_in_dim(x, number, 1, keepdims=False) for x in leaves])
        sums, made = jax.tree.flatten(fn(dataclasses.replace(some, part=number, accumulation_steps=accumulation_steps)))
        return sums

    zeros = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in jax.eval_shape(part, jnp.int32(0))]
    total = jax.lax.fori_loop(0, accumulation_steps, lambda i, total: jax.tree.map(jnp.add, total, part(i)), zeros)
    return jax.tree.unflatten(made, total)
