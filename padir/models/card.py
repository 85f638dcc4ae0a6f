"""The model card, model.json: configuration, vocabulary layout, corruption, strategy, languages and metrics."""

from __future__ import annotations

import dataclasses
from typing import Any

from padir import checks
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.refinement.corruption import CORRUPTIONS
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.strategies import STRATEGIES
from padir.storage.typecheck import fits, from_json
from padir.text.ids import Ids

FORMAT = 1  # version of model.json


def name_and_fields(instance: Any, known: dict[str, Any]) -> dict[str, Any]:
    """Converts a corruption, strategy or search to JSON: its fields, and its name in `known` or its import path."""
    names = [name for name, cls in known.items() if type(instance) is cls]
    name = names[0] if names else f"{type(instance).__module__}.{type(instance).__qualname__}"
    return {"name": name, **dataclasses.asdict(instance)}


def recreate(description: dict[str, Any], known: dict[str, Any]) -> Any:
    """Makes the instance that `name_and_fields` described.

    Raises:
      PadirError: the name is not in `known`.
      TypeError: a hyperparameter is unknown or has the wrong type.
    """
    hyperparameters = {key: value for key, value in description.items() if key != "name"}
    if description["name"] not in known:
        raise PadirError(
            f"the model was trained with {description['name']!r}, which padir does not know: choose one of"
            f" {', '.join(known)}, or give the instance to Translator.load"
        )
    return from_json(known[description["name"]], hyperparameters)


@dataclasses.dataclass(frozen=True)
class Weights:
    """The training steps that a model's weights come from, and the average that was taken over them.

    Attributes:
      kind: "none" for the weights of one step, "ema" for a moving average up to one step, "last" for the mean of the
        last checkpoints, "best" for the mean of the checkpoints with the highest validation BLEU.
      steps: the step, or the steps of the averaged checkpoints.
      decay: decay of the moving average, also if the mean of several moving averages was taken; None if there is none.
    """

    kind: str = "none"
    steps: tuple[int, ...] = ()
    decay: float | None = None

    def __str__(self) -> str:
        steps = ", ".join(f"{step:,}" for step in self.steps) or "unknown"
        if self.kind == "none":
            return f"of step {steps}"
        if self.kind == "ema":
            return f"moving average (decay {self.decay}) up to step {steps}"
        moving = "" if self.decay is None else f" moving averages (decay {self.decay}) of"
        return f"mean of{moving} the {self.kind} {len(self.steps)} checkpoints, steps {steps}"


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """The contents of model.json.

    Attributes:
      config, ids: the model's sizes and vocabulary layout.
      corruption: the corruption that the model was trained with; None for a causal model.
      strategy: the strategy that the model is decoded with by default; None for a causal model.
      source_language, target_language, task: languages and name of the training data.
      step: number of optimizer steps.
      metrics: the last metrics of the training run, by name; validation metrics were measured with the card's weights.
      weights: the origin of the weights within the training run.
      decoding: options that the model is decoded with if nothing else is said, by the names that `Decoding.changed`
        takes, such as {"top_k": 5, "brevity": 1.5}.
    """

    config: ModelConfig
    ids: Ids
    corruption: Corruption | None
    strategy: Strategy | None
    source_language: str
    target_language: str
    task: str
    step: int = 0
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    weights: Weights = Weights()
    decoding: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "config": dataclasses.asdict(self.config),
            "ids": dataclasses.asdict(self.ids),
            "corruption": None if self.corruption is None else name_and_fields(self.corruption, CORRUPTIONS),
            "strategy": None if self.strategy is None else name_and_fields(self.strategy, STRATEGIES),
            "source_language": self.source_language,
            "target_language": self.target_language,
            "task": self.task,
            "step": self.step,
            "metrics": self.metrics,
            "weights": dataclasses.asdict(self.weights),
            "decoding": self.decoding,
        }

    @staticmethod
    def from_json(data: Any, *, corruption: Corruption | None = None, strategy: Strategy | None = None) -> ModelCard:
        """Makes a card from the JSON of `to_json`; the arguments `corruption` and `strategy` replace those in the JSON.

        Raises:
          PadirError: model.json has another format, or a field is missing, unknown or of the wrong type.
        """
        got = data.get("format") if isinstance(data, dict) else None
        if got != FORMAT:
            raise PadirError("the format of model.json", str(FORMAT), got, "use the padir version that wrote it")
        try:
            config = from_json(ModelConfig, data["config"])
            if config.causal and (corruption or strategy):
                raise PadirError("a causal model has neither corruption nor strategy: load it without these arguments")
            described = {name: data[name] for name in ("source_language", "target_language", "task", "step", "metrics")}
            described["decoding"] = data.get("decoding", {})
            kinds = dict.fromkeys(described, str) | {"step": int, "metrics": dict[str, float], "decoding": dict}
            for name, kind in kinds.items():
                if not fits(described[name], kind):
                    kind = getattr(kind, "__name__", kind)
                    raise TypeError(f"{name} must be of type {kind}, got {described[name]!r}")
            checks.within(0, 2**63 - 1, step=described["step"])
            return ModelCard(
                config=config,
                ids=from_json(Ids, data["ids"]),
                corruption=None if config.causal else corruption or recreate(data["corruption"], CORRUPTIONS),
                strategy=None if config.causal else strategy or recreate(data["strategy"], STRATEGIES),
                weights=from_json(Weights, data.get("weights", {"steps": [data["step"]]})),
                **described,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise PadirError(f"model.json does not describe a model of this padir: {error}") from error
