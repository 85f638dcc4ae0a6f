"""Learning-rate schedule and optimizers, as optax chains."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, runtime_checkable

import jax
import optax

from padir import checks
from padir.errors import PadirError


@dataclasses.dataclass(frozen=True)
class Cosine:
    """Linear warm-up to `peak`, then cosine decay to `peak * final` (the paper's section L.2).

    The warm-up begins at peak / (warmup_steps + 1), an even share of the peak a step. The paper's warm-up begins at the
    lowest rate instead, which is peak * final here. With the defaults, this would raise the rates of the warm-up by at
    most 2 % of the peak; the scores in the headers of configs/run/ were measured with padir's warm-up.

    Attributes:
      peak: highest learning rate.
      warmup_steps: steps until the peak.
      final: share of the peak that is left at the end.

    Raises:
      PadirError: a number is out of its range.
    """

    peak: float = 1e-3
    warmup_steps: int = 1_000
    final: float = 0.02

    def __post_init__(self):
        checks.above(0, **checks.fields_of(self, "peak"))
        checks.at_least(0, **checks.fields_of(self, "warmup_steps"))
        checks.within(0, 1, **checks.fields_of(self, "final"))

    def schedule(self, num_steps: int) -> optax.Schedule:
        """Maps a step, counted from 0, to its learning rate, which would reach `peak * final` at `num_steps`."""
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
      clip_norm: largest global norm of the gradient, or None.
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
        return _clipped(
            self.clip_norm,
            optax.adafactor(
                learning_rate=self.learning_rate.schedule(num_steps),
                factored=self.factored,
                multiply_by_parameter_scale=self.multiply_by_parameter_scale,
                decay_rate=self.decay_rate,
                clipping_threshold=self.clipping_threshold,
                momentum=self.momentum,
                weight_decay_rate=self.weight_decay or None,
            ),
        )


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba, 2015) with decoupled weight decay.

    Attributes:
      learning_rate: the schedule.
      b1, b2, eps: decays of the two moments, and the denominator's offset.
      weight_decay: share of each parameter that a step subtracts, times the learning rate.
      clip_norm: largest global norm of the gradient, or None.
    """

    learning_rate: Cosine = Cosine()
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-9
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0

    def transformation(self, num_steps: int) -> optax.GradientTransformation:
        schedule = self.learning_rate.schedule(num_steps)
        return _clipped(
            self.clip_norm, optax.adamw(schedule, self.b1, self.b2, self.eps, weight_decay=self.weight_decay)
        )


def _clipped(clip_norm: float | None, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    if clip_norm is None:
        return optimizer
    checks.above(0, "None means no clipping", clip_norm=clip_norm)
    return optax.chain(optax.clip_by_global_norm(clip_norm), optimizer)


def frozen(optimizer: optax.GradientTransformation, prefixes: tuple[str, ...]) -> optax.GradientTransformation:
    """An optimizer that does not change parameters under the prefixes, and keeps no state for them.

    Args:
      prefixes: beginnings of the parameters' names, in whole components: "decoder/layers_1" is not "decoder/layers_10".

    Raises:
      PadirError: at `init`, if no parameter begins with a prefix, or if the prefixes leave nothing to train.
    """
    if not prefixes:
        return optimizer

    def labels(params):
        is_frozen = _under(params, prefixes)
        if all(jax.tree.leaves(is_frozen)):
            raise PadirError(f"train.freeze must leave something to train, got {prefixes}: leave one out")
        return jax.tree.map(lambda leaf: "frozen" if leaf else "trained", is_frozen)

    return optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)


def without_gradient(params: Any, prefixes: tuple[str, ...]) -> Any:
    """Applies `stop_gradient` to the parameters under the prefixes."""
    if not prefixes:
        return params
    return jax.tree.map(
        lambda leaf, is_frozen: jax.lax.stop_gradient(leaf) if is_frozen else leaf, params, _under(params, prefixes)
    )


def _under(params: Any, prefixes: tuple[str, ...]) -> Any:
    """A tree like `params` of booleans, True where the parameter's name begins with one of the prefixes."""
    paths, tree = jax.tree.flatten_with_path(params)
    names = [f"{jax.tree_util.keystr(path, simple=True, separator='/')}/" for path, _ in paths]
    for prefix in prefixes:
        if not any(name.startswith(f"{prefix}/") for name in names):
            known = ", ".join(sorted({name.partition("/")[0] for name in names}))
            raise PadirError(f"train.freeze must name parameters, got {prefix!r}: their names begin with {known}")
    return jax.tree.unflatten(tree, [name.startswith(tuple(f"{prefix}/" for prefix in prefixes)) for name in names])
