"""Learning-rate schedule and optimizers, as optax chains, and parameters that training leaves as they are."""

from __future__ import annotations

import dataclasses
from typing import Protocol, runtime_checkable

import jax
import optax
from jaxtyping import PyTree

from padir import checks
from padir.errors import PadirError


@checks.settings
class Cosine:
    """Linear warm-up to `peak`, then cosine decay to `peak * final` (the paper's section L.2).

    The warm-up begins at peak / (warmup_steps + 1) and rises by the same amount in every step. The paper's warm-up
    begins at the lowest rate, which is peak * final here. With the defaults, the paper's rates are higher by at most 2
    % of the peak. The scores in the headers of configs/run/ were measured with padir's warm-up.

    Attributes:
      peak: highest learning rate.
      warmup_steps: steps until the peak.
      final: share of the peak that is left at the end.
    """

    peak: checks.Positive = 1e-3
    warmup_steps: checks.CountOrZero = 1_000
    final: checks.Share = 0.02

    def schedule(self, num_steps: int) -> optax.Schedule:
        """Maps a step, counted from 0, to its learning rate; at step `num_steps` the rate would be `peak * final`."""
        warmup = min(self.warmup_steps, max(1, num_steps - 1))
        return optax.warmup_cosine_decay_schedule(
            init_value=self.peak / (warmup + 1),  # a first step at rate 0 would be wasted
            peak_value=self.peak,
            warmup_steps=warmup,
            decay_steps=max(num_steps, warmup + 1),
            end_value=self.peak * self.final,
        )


@runtime_checkable
class Optimizer(Protocol):
    """Protocol of optimizers: a frozen dataclass with the hyperparameters as fields."""

    @property
    def learning_rate(self) -> Cosine: ...

    def transformation(self, num_steps: int) -> optax.GradientTransformation:
        """The optax transformation for a training run of `num_steps`."""
        ...


@dataclasses.dataclass(frozen=True)
class Adafactor:
    """Adafactor (Shazeer & Stern, 2018) with T5X's defaults: factored second moments, no first moment.

    Attributes:
      learning_rate: the schedule, relative to each parameter's scale if `multiply_by_parameter_scale` is True.
      factored: keep only row and column means of the second moment of matrices whose sides are both 128 or more.
      multiply_by_parameter_scale: multiply the learning rate by each parameter's scale, as T5X does by default.
      decay_rate: the second moment's decay at step t is 1 - t**-decay_rate.
      clipping_threshold: maximum root mean square of an update; larger updates are scaled down.
      momentum: decay of a first moment; None keeps no first moment.
      weight_decay: share of each parameter that a step subtracts, independent of the learning rate.
      clip_norm: largest global norm of the gradient; None does not clip.
    """

    learning_rate: Cosine = Cosine(peak=1e-2)
    factored: bool = True
    multiply_by_parameter_scale: bool = True
    decay_rate: float = 0.8
    clipping_threshold: float = 1.0
    momentum: float | None = None
    weight_decay: float = 0.0
    clip_norm: float | None = None

    def transformation(self, num_steps: int) -> optax.GradientTransformation:
        adafactor = optax.adafactor(
            learning_rate=self.learning_rate.schedule(num_steps),
            factored=self.factored,
            multiply_by_parameter_scale=self.multiply_by_parameter_scale,
            decay_rate=self.decay_rate,
            clipping_threshold=self.clipping_threshold,
            momentum=self.momentum,
            weight_decay_rate=self.weight_decay or None,
        )
        return _clipped(self.clip_norm, adafactor)


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba, 2015) with decoupled weight decay.

    Attributes:
      learning_rate: the schedule.
      b1, b2, eps: decays of the two moments, and the denominator's offset.
      weight_decay: share of each parameter that a step subtracts, times the learning rate.
      clip_norm: largest global norm of the gradient; None does not clip.
    """

    learning_rate: Cosine = Cosine()
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-9
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0

    def transformation(self, num_steps: int) -> optax.GradientTransformation:
        schedule = self.learning_rate.schedule(num_steps)
        adam = optax.adamw(schedule, self.b1, self.b2, self.eps, weight_decay=self.weight_decay)
        return _clipped(self.clip_norm, adam)


def _clipped(clip_norm: float | None, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    if clip_norm is None:
        return optimizer
    checks.above(0, "None means no clipping", clip_norm=clip_norm)
    return optax.chain(optax.clip_by_global_norm(clip_norm), optimizer)


def frozen(optimizer: optax.GradientTransformation, prefixes: tuple[str, ...]) -> optax.GradientTransformation:
    """An optimizer that does not change parameters under the prefixes, and keeps no state for them.

    Prefixes are whole components of names: "decoder/layers_1" leaves out "decoder/layers_10". `init` refuses prefixes
    without parameters, and prefixes that leave nothing to train.
    """
    if not prefixes:
        return optimizer

    def labels(params):
        is_frozen = _under(params, prefixes)
        if all(jax.tree.leaves(is_frozen)):
            raise PadirError(f"train.freeze must leave something to train, got {prefixes}: leave one out")
        return jax.tree.map(lambda leaf: "frozen" if leaf else "trained", is_frozen)

    return optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)


def without_gradient(params: PyTree, prefixes: tuple[str, ...]) -> PyTree:
    """Applies `stop_gradient` to the parameters under the prefixes."""
    stop = jax.lax.stop_gradient
    return jax.tree.map(lambda leaf, under: stop(leaf) if under else leaf, params, _under(params, prefixes))


def _under(params: PyTree, prefixes: tuple[str, ...]) -> PyTree:
    """A tree like `params` of booleans, True where the parameter's name begins with one of the prefixes."""
    paths, tree = jax.tree.flatten_with_path(params)
    names = [f"{jax.tree_util.keystr(path, simple=True, separator='/')}/" for path, _ in paths]
    for prefix in prefixes:
        if not any(name.startswith(f"{prefix}/") for name in names):
            known = ", ".join(sorted({name.partition("/")[0] for name in names}))
            raise PadirError(f"train.freeze must name parameters, got {prefix!r}: their names begin with {known}")
    return jax.tree.unflatten(tree, [name.startswith(tuple(f"{prefix}/" for prefix in prefixes)) for name in names])
