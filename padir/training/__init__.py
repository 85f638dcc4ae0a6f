"""Training: `train` takes prepared data and a `TrainConfig`, and writes a model directory.

The settings lie in `config`, the objectives in `objective` and `causal`, their losses in `batch`, and the
optimizers in `optimizer`. `step` is one optimizer step, and `sharded_step` is the step on all devices. `loop` and `run`
take the steps, log, save checkpoints, average weights and stop gracefully at signals; an interrupted run resumes from
its last checkpoint with bit-identical results. `start_from` initialises parameters from another model.
"""

from padir.training.averaging import Averaging
from padir.training.batch import Batch, Sums
from padir.training.causal import Causal, Sum
from padir.training.checkpoints import Checkpoints
from padir.training.config import Intervals, TrainConfig
from padir.training.loop import train
from padir.training.not_finite import NotFinite
from padir.training.objective import Loss, Objective
from padir.training.optimizer import Adafactor, Adam, Cosine, Optimizer
from padir.training.run import EvaluateFn, TrainRun
from padir.training.start_from import StartFrom

__all__ = [
    "Adafactor",
    "Adam",
    "Averaging",
    "Batch",
    "Causal",
    "Checkpoints",
    "Cosine",
    "EvaluateFn",
    "Intervals",
    "Loss",
    "NotFinite",
    "Objective",
    "Optimizer",
    "StartFrom",
    "Sum",
    "Sums",
    "TrainConfig",
    "TrainRun",
    "train",
]
