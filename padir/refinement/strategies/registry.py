"""Makes decoding strategies from their names and hyperparameters, or from text such as "threshold:tau=0.9"."""

from __future__ import annotations

import ast
import dataclasses
import typing
from collections.abc import Callable
from typing import Any

from padir.errors import PadirError, nearest
from padir.refinement.protocols import Strategy
from padir.refinement.strategies.confidence import EasyFirst, EntropyBound, Threshold
from padir.refinement.strategies.parallel import Factor, Frechet
from padir.refinement.strategies.rejecter import Rejecter
from padir.refinement.strategies.remasking import PathPlanning, Remdm
from padir.refinement.strategies.renoising import Renoise
from padir.refinement.strategies.rewriting import Constant, MaskPredict, Padir
from padir.refinement.strategies.sampling import BlockGibbs, IndependentParallel, SundaeSampling
from padir.storage.typecheck import fits

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
    "renoise": Renoise,
    "factor": Factor,
    "frechet": Frechet,
    "remdm": Remdm,
    "p2": PathPlanning,
}  # the package adds the correctors, one of which makes other strategies from this dict


def get_strategy(name: str, **hyperparameters) -> Strategy:
    """Makes the decoding strategy of a given name.

    Raises:
      PadirError: no strategy has that name, or a hyperparameter is unknown or of the wrong type; the message lists the
        known names.

    >>> get_strategy("threshold", tau=1)
    Threshold(tau=1.0, final_tau=None, schedule=None)
    """
    if name not in STRATEGIES:
        raise PadirError(f"no strategy is called {name!r}", remedy=nearest(name, STRATEGIES))
    return STRATEGIES[name](**checked_call(STRATEGIES[name], name, hyperparameters))


def checked_call(cls: Any, name: str, values: dict[str, Any], **further: Any) -> dict[str, Any]:
    """Checks values for the fields of a dataclass that have a default; integers for numbers become floats.

    Args:
      name: the name of the dataclass in messages.
      further: names and defaults of values that are no fields.

    Raises:
      PadirError: a field is unknown, or a value has the wrong type; the message lists the fields.
    """
    hints = typing.get_type_hints(cls) | {field: type(default) for field, default in further.items()}
    fields = [field for field in dataclasses.fields(cls) if field.default is not dataclasses.MISSING]
    texts = {field.name: f"{field.name}: {field.type} = {field.default!r}" for field in fields}
    texts |= {field: f"{field}: {type(default).__name__} = {default!r}" for field, default in further.items()}
    listed = ", ".join(texts.values()) or "none"
    checked = dict(values)
    for field, value in values.items():
        if field not in texts:
            raise PadirError(f"{name} has no hyperparameter {field!r}: it has {listed}")
        if not fits(value, hints[field]):
            raise PadirError(f"{field}={value!r} is of the wrong type for {name}: it has {listed}")
        if type(value) is int and not isinstance(value, hints[field]):
            checked[field] = float(value)
    return checked


def parse_strategy(text: str) -> Strategy:
    """Makes a strategy from text such as "threshold" or "threshold:tau=0.9,final_tau=0.5", as on the command line.

    Raises:
      PadirError: the text has another form, or `get_strategy` refuses the name or a hyperparameter.

    >>> parse_strategy("block_gibbs:block=3,order=margin")
    BlockGibbs(block=3, order='margin', temperature=1.0, parallel=False)
    """
    name, values = parse_call(text, "strategy", "threshold:tau=0.9")
    return get_strategy(name, **values)


def parse_call(text: str, noun: str, example: str) -> tuple[str, dict[str, Any]]:
    """Splits NAME or NAME:FIELD=VALUE,FIELD=VALUE; values are Python literals, and a bare word is a string.

    Args:
      noun, example: what the text stands for and an example of it, for the error message.

    Raises:
      PadirError: the text has another form.

    >>> parse_call("block_gibbs:block=3,order=margin", "strategy", "threshold:tau=0.9")
    ('block_gibbs', {'block': 3, 'order': 'margin'})
    """
    name, _, fields = text.partition(":")
    try:
        call: Any = ast.parse(f"dict({fields})", mode="eval").body
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError
        return name, {
            keyword.arg: keyword.value.id if isinstance(keyword.value, ast.Name) else ast.literal_eval(keyword.value)
            for keyword in call.keywords
        }
    except (ValueError, SyntaxError, AttributeError):
        raise PadirError(
            f"a {noun} is written NAME or NAME:FIELD=VALUE,FIELD=VALUE, such as {example}, got {text!r}"
        ) from None
