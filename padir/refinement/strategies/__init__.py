"""The strategies, how a canvas is refined: one frozen dataclass each. The loop that runs them is in `refine.py`.

In `rewriting.py` are those that take back what is worst and write it again, in `confidence.py` those in which the
model's confidence decides how much is written, in `samplers.py` those that draw.
"""

from __future__ import annotations

import ast
import dataclasses
import typing
from collections.abc import Callable
from typing import Any

from padir.errors import PadirError
from padir.refinement.corruption import noise_kinds
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.strategies.confidence import EasyFirst, EntropyBound, Threshold
from padir.refinement.strategies.rewriting import Constant, MaskPredict, Padir, Rejecter
from padir.refinement.strategies.sampling import BlockGibbs, IndependentParallel, SundaeSampling

STRATEGIES: dict[str, Callable[..., Strategy]] = {
    "padir": Padir,
    "mask_predict": MaskPredict,
    "constant": Constant,
    "easy_first": EasyFirst,
    "sundae": SundaeSampling,
    "rejecter": Rejecter,
    "threshold": Threshold,
    "entropy_bound": EntropyBound,
    "block_gibbs": BlockGibbs,
    "independent_parallel": IndependentParallel,
}


def get_strategy(name: str, **hyperparameters) -> Strategy:
    """The strategy of a name.

    Raises:
      PadirError: no strategy has that name, or it has no such hyperparameter, or that is of another type; the message
        lists those that there are.
    """
    if name not in STRATEGIES:
        raise PadirError(f"no strategy is called {name!r}: choose one of {', '.join(STRATEGIES)}")
    cls: Any = STRATEGIES[name]
    hints = typing.get_type_hints(cls)
    types = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    listed = ", ".join(f"{f.name}: {f.type} = {f.default!r}" for f in dataclasses.fields(cls)) or "none"
    for field, value in hyperparameters.items():
        if field not in types:
            raise PadirError(f"{name} has no hyperparameter {field!r}: it has {listed}")
        if type(value) is int and not isinstance(value, types[field]) and isinstance(0.0, types[field]):
            hyperparameters[field] = float(value)
        elif not isinstance(value, types[field]) or (isinstance(value, bool) and types[field] is not bool):
            raise PadirError(f"{field}={value!r} is of the wrong type for {name}: it has {listed}")
    return cls(**hyperparameters)


def parse_strategy(text: str) -> Strategy:
    """A strategy as the command line names it: "threshold" or "threshold:tau=0.9,final_tau=0.5".

    Values are Python literals; a bare word is a string.

    >>> parse_strategy("block_gibbs:block=3,order=margin")
    BlockGibbs(block=3, order='margin', temperature=1.0, parallel=False)

    Raises:
      PadirError: it is not written so, or as in `get_strategy`.
    """
    name, _, fields = text.partition(":")
    try:
        call: Any = ast.parse(f"dict({fields})", mode="eval").body
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError
        values = {
            keyword.arg: keyword.value.id if isinstance(keyword.value, ast.Name) else ast.literal_eval(keyword.value)
            for keyword in call.keywords
        }
    except (ValueError, SyntaxError, AttributeError):
        raise PadirError(
            f"a strategy is written NAME or NAME:FIELD=VALUE,FIELD=VALUE, such as threshold:tau=0.9, got {text!r}"
        ) from None
    return get_strategy(name, **values)


def check_strategy(strategy: Strategy, *, canvas: Corruption, trained: Corruption, config: Any) -> None:
    """Whether a strategy and a canvas have a meaning for a model.

    The canvas must be of noise that the model has seen (a decontextualised decoder sees none), and what the strategy's
    class attribute `needs` names must be there. "decontextualised" and "rejecter" are properties of the decoder. "mask"
    means that it can be told which positions are hidden, because a mask stands there or because it does not see them:
    without that, the model's distribution at a position is not a conditional given the others. Strategies that also
    work with a random token in the place of what is hidden need nothing.

    Args:
      canvas: what drafts are made of.
      trained: the corruption of the model's training.
      config: the model's.

    Raises:
      PadirError: something is missing; the message says what and which strategies do without.
    """
    needs = getattr(strategy, "needs", frozenset())
    others = ", ".join(name for name, cls in STRATEGIES.items() if not getattr(cls, "needs", None))
    name = next((name for name, cls in STRATEGIES.items() if cls is type(strategy)), type(strategy).__name__)
    if "decontextualised" in needs and not config.decontextualised:
        raise PadirError(
            f"{name} needs a decontextualised decoder (ModelConfig.decontextualised = True), in which a position can be"
            f" kept from seeing others, and this model has another: choose one of {others}"
        )
    if "rejecter" in needs and not config.rejecter:
        raise PadirError(
            f"{name} needs a rejecter head (ModelConfig.rejecter = True), and this model has none: choose one of"
            f" {others}"
        )
    if config.decontextualised:
        return
    kinds, known = noise_kinds(canvas), noise_kinds(trained)
    if "mask" in needs and known == {"pieces"}:
        raise PadirError(
            f"{name} hides positions behind a mask, and this model was trained with {trained}, which has none: choose"
            f" one of {others}, or train with masks"
        )
    if kinds is not None and known is not None and not kinds <= known:
        raise PadirError(
            f"the canvas is of {canvas}, and this model was trained with {trained} and has never seen its noise: leave"
            " the canvas out (Decoding.canvas), or train with that noise"
        )
    if "mask" in needs and not canvas.deterministic:
        raise PadirError(
            f"{name} hides positions behind a mask, and the canvas is of {canvas}: give it a canvas of masks"
            " (Decoding.canvas = @Mask()), which this model knows"
        )
