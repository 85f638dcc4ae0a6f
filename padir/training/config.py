"""`TrainConfig`, the settings of a training run that gin binds as `train.NAME`, and `Intervals`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import optax

from padir import checks
from padir.data.plan import Batching
from padir.distributed.sharding import Sharding
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.training.averaging import Averaging
from padir.training.not_finite import NotFinite
from padir.training.objective import Loss, Objective
from padir.training.optimizer import Adafactor, Optimizer, frozen
from padir.training.start_from import StartFrom

_TRAINED_WITH = {"refining": "Objective", "causal": "Causal", "dual": "Sum"}  # by `ModelConfig.kind`


@checks.settings
class Intervals:
    """Intervals, in steps, at which a training run logs, validates and saves.

    Attributes:
      log: steps between two lines of metrics.
      evaluate: steps between two validations, which decode the validation split; 0: never.
      checkpoint: steps between two checkpoints.
      max_to_keep: number of checkpoints that stay on disk.
    """

    log: checks.Count = 50
    evaluate: checks.CountOrZero = 2_000
    checkpoint: checks.Count = 1_000
    max_to_keep: checks.Count = 2

    def evaluates(self, step: int, num_steps: int) -> bool:
        """True if validation follows a step: at each interval and after the last step, unless `evaluate` is 0."""
        return self.evaluate > 0 and (step % self.evaluate == 0 or step == num_steps)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run.

    Attributes:
      model: sizes and choices of the model.
      objective: the training objective: `Objective`, `Causal` for causal models, or `Sum` for dual ones.
      optimizer: optimizer and learning-rate schedule.
      batching: how sentence pairs become batches.
      intervals: numbers of steps between log lines, validations and checkpoints.
      averaging: which weights the model directory gets.
      not_finite: what happens when a loss or its gradient is NaN or infinite.
      sharding: how the work is spread over the devices; a checkpoint can be resumed with another sharding.
      num_steps: total number of optimizer steps.
      seed: seed of initial parameters, order of the data, corruption and dropout.
      start_from: a model whose parameters are taken where they fit; a string names its directory.
      freeze: parameters that training does not change, by the beginnings of their names: ("encoder", "token_embedder").

    Raises:
      PadirError: num_steps is below 1, the objective does not fit the model or the batching, or the averaging needs
        checkpoints that the intervals do not give.

    >>> TrainConfig(ModelConfig(width=256), num_steps=10_000, seed=1).model.width
    256
    """

    model: ModelConfig = ModelConfig()
    objective: Loss = Objective()
    optimizer: Optimizer = Adafactor()
    batching: Batching = Batching()
    intervals: Intervals = Intervals()
    averaging: Averaging = Averaging()
    not_finite: NotFinite = NotFinite()
    sharding: Sharding = Sharding()
    num_steps: checks.Count = 100_000
    seed: int = 0
    start_from: str | StartFrom | None = None
    freeze: tuple[str, ...] = ()

    def __post_init__(self):
        checks.check_fields(self, "train.")
        if self.model.causal and self.model.dual:
            raise PadirError("a dual model is trained both ways at once: leave ModelConfig.causal out")
        if self.objective.trains != (kind := self.model.kind):
            remedy = f"bind train.objective = @{_TRAINED_WITH[kind]}(), or set ModelConfig.causal and dual"
            raise PadirError("train.objective", f"an objective of {kind} models", self.objective, remedy)
        self.objective.check(self.model, packed=self.batching.mode == "pack")
        self.averaging.check(self.num_steps, self.intervals.evaluate, self.intervals.checkpoint)

    @property
    def checkpoints_kept(self) -> int:
        """Number of regular checkpoints that stay on disk: at least as many as are averaged."""
        return max(self.intervals.max_to_keep, self.averaging.count if self.averaging.kind == "last" else 0)

    def transformation(self) -> optax.GradientTransformation:
        """The optimizer for optax, with the frozen parameters and the moving average."""
        optimizer = frozen(self.optimizer.transformation(self.num_steps), self.freeze)
        return self.averaging.transformation(optimizer)

    def changes(self) -> list[str]:
        """Gin bindings of the settings that differ from the defaults.

        >>> from padir.training.optimizer import Adam
        >>> TrainConfig(ModelConfig(width=256), optimizer=Adam(), num_steps=10).changes()
        ['ModelConfig.width = 256', 'train.optimizer = @Adam()', 'train.num_steps = 10']
        """
        return list(_changes("train", self))


def _changes(name: str, instance: Any, default: Any = None) -> Iterator[str]:
    """Gin bindings of the fields of a dataclass, and of nested ones, that differ from `default` or the class's own."""
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        usual = getattr(default, field.name, field.default)
        if dataclasses.is_dataclass(value):
            if type(value) is not type(usual):
                yield f"{name}.{field.name} = @{type(value).__name__}()"
                usual = None
            yield from _changes(type(value).__name__, value, usual)
        elif value != usual:
            yield f"{name}.{field.name} = {value!r}"
