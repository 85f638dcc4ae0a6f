"""Parts of a T5X run that gin files name beside the model: the Task, axis rules, learning rate and padir.json."""

from __future__ import annotations

from typing import Any

import jax
import optax
from flax.core import FrozenDict, freeze, unfreeze
from t5x import adafactor, gin_utils, partitioning

from padir.interop import seqio_tasks as tasks
from padir.interop.t5x.adapter.refinement_model import RefinementModel
from padir.interop.t5x.exchange import write_description
from padir.training.optimizer import Cosine

# Logical axes of padir's models that T5X's do not have: position table, length classes, the rejecter's two classes.
_REPLICATED = ("abs_position", "length", "keep")


def task(
    name: str, vocabulary: str, data_dir: str | None = None, num_sentinels: int = 100, *, only_fitting: bool = False
) -> str:
    """Registers padir's sources as seqio Tasks (`padir.interop.seqio_tasks.register`) and returns one's name.

    Args:
      name: name of the Task to use, such as "toy_de_en".
      vocabulary: the SentencePiece file.
      data_dir: the folder with the corpus's data files; toy_de_en has none.
      num_sentinels: number of ids above the pieces.
      only_fitting: return the Task that leaves out pairs longer than the feature lengths, for training; the other Task
        cuts them.

    Raises:
      PadirError: padir cannot use the vocabulary.
    """
    tasks.register(vocabulary, data_dir, num_sentinels=num_sentinels)
    return name + tasks.FITTING if only_fitting else name


def axis_rules() -> list[tuple[str, str | None]]:
    """T5X's standard rules for PjitPartitioner, with rules for the axes that only padir's models have."""
    known = partitioning.standard_logical_axis_rules()
    return [*known, *((axis, None) for axis in _REPLICATED if axis not in dict(known))]


def factor_rules() -> FrozenDict:
    """T5X's standard rules for Adafactor, with rules for the axes that only padir's models have.

    With them the same second moments are factored as by `padir.training.optimizer.Adafactor`.
    """
    own = {axis: adafactor.FactorDim.COLUMN for axis in _REPLICATED}
    return freeze({**own, **unfreeze(adafactor.standard_logical_factor_rules())})


def learning_rate(num_steps: int, schedule: Cosine = Cosine()) -> optax.Schedule:
    """padir's learning-rate schedule for T5X's Trainer, over `num_steps` steps."""
    return schedule.schedule(num_steps)


def summarize(model_dir: str, summary_writer: Any, step: int, model: RefinementModel) -> None:
    """Writes T5X's config.gin and, for `padir t5x import`, padir.json and vocab.model."""
    gin_utils.summarize_gin_config(model_dir, summary_writer, step)
    if jax.process_index() == 0:
        write_description(model_dir, model.card, model.tokenizer)
