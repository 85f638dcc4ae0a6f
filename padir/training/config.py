"""`TrainConfig`, the settings of a training run that gin binds as `train.NAME`, and `Intervals`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from padir import checks
from padir.data.plan import Batching
from padir.distributed.sharding import Sharding
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.training.averaging import Averaging
from padir.training.ctc import Ctc
from padir.training.dual import Dual
from padir.training.nonfinite import NotFinite
from padir.training.objective import Objective
from padir.training.optimizer import Adafactor, Optimizer
from padir.training.start_from import StartFrom
from padir.training.teacher_forcing import TeacherForcing


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Intervals, in steps, at which a training run logs, validates and saves.

    Attributes:
      log: steps between two lines of metrics.
      evaluate: steps between two validations, which decode the validation split; 0: never.
      checkpoint: steps between two checkpoints.
      keep: number of checkpoints that stay on disk.

    Raises:
      PadirError: log, checkpoint or keep is below 1, or evaluate below 0.
    """

    log: int = 50
    evaluate: int = 2_000
    checkpoint: int = 1_000
    keep: int = 2

    def __post_init__(self):
        checks.at_least(1, **checks.fields_of(self, "log", "checkpoint", "keep"))
        checks.at_least(0, **checks.fields_of(self, "evaluate"))

    def evaluates(self, step: int, num_steps: int) -> bool:
        """True if validation follows a step: at each interval and after the last step, unless `evaluate` is 0."""
        return self.evaluate > 0 and (step % self.evaluate == 0 or step == num_steps)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run.

    Attributes:
      model: sizes and choices of the model.
      objective: the training objective: `Objective`, `TeacherForcing` for causal models, or `Dual` for dual ones.
      optimizer: optimizer and learning-rate schedule.
      batching: how sentence pairs become batches.
      intervals: how often the run logs, validates and saves.
      averaging: which weights the model directory gets.
      not_finite: what happens when a loss or its gradient is NaN or infinite.
      sharding: how the work is spread over the devices; a checkpoint can be resumed with another sharding.
      num_steps: total number of optimizer steps.
      seed: seed of initial parameters, order of the data, corruption and dropout.
      start_from: a model from which parameters that fit are initialised; a string names its directory.
      freeze: parameters that training does not change, by the beginnings of their names: ("encoder", "token_embedder").

    Raises:
      PadirError: num_steps is below 1, the objective does not fit the model (causal, dual, CTC or none of them), or the
        averaging needs checkpoints that the intervals do not give.

    >>> TrainConfig(ModelConfig(width=256), num_steps=10_000, seed=1).model.width
    256
    """

    model: ModelConfig = ModelConfig()
    objective: Objective | TeacherForcing | Dual = Objective()
    optimizer: Optimizer = Adafactor()
    batching: Batching = Batching()
    intervals: Intervals = Intervals()
    averaging: Averaging = Averaging()
    not_finite: NotFinite = NotFinite()
    sharding: Sharding = Sharding()
    num_steps: int = 100_000
    seed: int = 0
    start_from: str | StartFrom | None = None
    freeze: tuple[str, ...] = ()

    def __post_init__(self):
        checks.at_least(1, **{"train.num_steps": self.num_steps})
        causal, dual = self.model.causal, self.model.dual
        if causal and dual:
            raise PadirError("a dual model is trained both ways at once: leave ModelConfig.causal out")
        if dual != isinstance(self.objective, Dual):
            raise PadirError(
                "train.objective = @Dual() and ModelConfig.dual = True belong together", remedy="set both, or neither"
            )
        if causal != isinstance(self.objective, TeacherForcing):
            expected, got = "TeacherForcing" if causal else "Objective", type(self.objective).__name__
            raise PadirError(
                f"a model with causal = {causal} is trained with {expected}, got {got}: bind train.objective ="
                f" @{expected}(), or ModelConfig.causal = {not causal}"
            )
        if self.model.ctc != isinstance(self.objective, Ctc):
            raise PadirError(
                'train.objective = @Ctc() and ModelConfig.length_head = "ctc" belong together',
                remedy="set both, or neither",
            )
        self.averaging.check(self.num_steps, self.intervals.evaluate, self.intervals.checkpoint)
        object.__setattr__(self, "freeze", tuple(self.freeze))

    @property
    def checkpoints_kept(self) -> int:
        """Number of regular checkpoints that stay on disk: at least as many as are averaged."""
        return max(self.intervals.keep, self.averaging.count if self.averaging.kind == "last" else 0)

    def changes(self) -> list[str]:
        """Gin bindings of the settings that differ from the defaults.

        >>> from padir.training.optimizer import Adam
        >>> TrainConfig(ModelConfig(width=256), optimizer=Adam(), num_steps=10).changes()
        ['ModelConfig.width = 256', 'train.optimizer = @Adam()', 'train.num_steps = 10']
        """
        return list(_changes("train", self))


def _changes(name: str, instance: Any) -> Iterator[str]:
    """Gin bindings of the fields of a dataclass, and of nested dataclasses, that differ from their defaults."""
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if dataclasses.is_dataclass(value):
            if type(value) is not type(field.default):
                yield f"{name}.{field.name} = @{type(value).__name__}()"
            yield from _changes(type(value).__name__, value)
        elif value != field.default:
            yield f"{name}.{field.name} = {value!r}"
