"""Decoding strategies, which propose the next canvas; each is a frozen dataclass that `refine` runs.

rewriting      strategies that remask the worst tokens and write them again
confidence     strategies in which the model's confidence decides which positions are written
sampling       strategies that draw tokens, or the places to hide again, at random
schedules      the number of positions that are masked after each pass

This module makes strategies from their names and hyperparameters, or from text such as "threshold:tau=0.9".
"""

from __future__ import annotations

import ast
import dataclasses
import typing
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from padir.checks import fits, words, words_of
from padir.errors import OWN_CLASS, PadirError, nearest
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.strategies.confidence import EasyFirst, EntropyBound, Factor, Frechet, Renoise, Threshold
from padir.refinement.strategies.rewriting import Constant, MaskPredict, Padir, PredictionRejecter, Rejecter, RewriteAll
from padir.refinement.strategies.sampling import BlockGibbs, IndependentParallel, PathPlanning, Remdm, SundaeSampling

STRATEGIES: dict[str, Callable[..., Strategy]] = {
    "padir": Padir,
    "mask_predict": MaskPredict,
    "constant": Constant,
    "rewrite_all": RewriteAll,
    "easy_first": EasyFirst,
    "sundae": SundaeSampling,
    "rejecter": Rejecter,
    "prediction_rejecter": PredictionRejecter,
    "threshold": Threshold,
    "entropy_bound": EntropyBound,
    "block_gibbs": BlockGibbs,
    "independent_parallel": IndependentParallel,
    "renoise": Renoise,
    "factor": Factor,
    "frechet": Frechet,
    "remdm": Remdm,
    "p2": PathPlanning,
}


def get_strategy(name: str, **hyperparameters) -> Strategy:
    """Makes the decoding strategy of a given name; messages about unknown names and fields list the known ones.

    >>> get_strategy("threshold", tau=1)
    Threshold(tau=1.0, final_tau=None, schedule=None)
    """
    if name not in STRATEGIES:
        of_class = next((known for known, cls in STRATEGIES.items() if getattr(cls, "__name__", "") == name), "")
        remedy = f"write it as {of_class}" if of_class else nearest(name, STRATEGIES)
        raise PadirError(f"no strategy is called {name!r}", remedy=remedy)
    return STRATEGIES[name](**checked_call(STRATEGIES[name], name, hyperparameters))


def checked_call(cls: Any, name: str, values: dict[str, Any], **further: Any) -> dict[str, Any]:
    """Checks values for the fields of a dataclass that have a default; makes floats of integers and tuples of lists.

    `name` is the dataclass in messages, which list its fields. `further` holds names and defaults of values that are no
    fields.
    """
    hints = typing.get_type_hints(cls) | {field: type(default) for field, default in further.items()}
    fields = [field for field in dataclasses.fields(cls) if field.default is not dataclasses.MISSING]
    texts = {each.name: f"{each.name}: {words(hints[each.name])} = {each.default!r}" for each in fields}
    texts |= {field: f"{field}: {type(default).__name__} = {default!r}" for field, default in further.items()}
    listed = ", ".join(texts.values()) or "none"
    checked = dict(values)
    for field, value in values.items():
        if field not in texts:
            raise PadirError(f"{name} has no hyperparameter {field!r} (it has {listed})", remedy=nearest(field, texts))
        if not fits(value, hints[field]):
            raise PadirError(f"{field}={value!r} is of the wrong type for {name}: it has {listed}")
        if type(value) is int and not isinstance(value, hints[field]):
            checked[field] = float(value)
        if isinstance(value, list):
            checked[field] = tuple(value)
    return checked


def parse_strategy(text: str) -> Strategy:
    """Makes a strategy from text such as "threshold" or "threshold:tau=0.9,final_tau=0.5", as on the command line.

    >>> parse_strategy("block_gibbs:block=3,order=margin")
    BlockGibbs(block=3, order='margin', temperature=1.0, parallel=False)
    """
    name, values = parse_call(text, "strategy", "threshold:tau=0.9")
    return get_strategy(name, **values)


_OF_JSON = {"true": True, "false": False, "null": None}


def parse_call(text: str, noun: str, example: str) -> tuple[str, dict[str, Any]]:
    """Splits NAME or NAME:FIELD=VALUE,FIELD=VALUE; values are literals of Python or JSON, or bare words.

    A bare word is a string; true, false and null are JSON's. The error for text of another form names the `noun`, the
    kind of object that the text names, and an `example`.

    >>> parse_call("block_gibbs:block=3,order=margin", "strategy", "threshold:tau=0.9")
    ('block_gibbs', {'block': 3, 'order': 'margin'})
    """
    name, _, fields = text.partition(":")
    try:
        call: Any = ast.parse(f"dict({fields})", mode="eval").body
        names = [keyword.arg for keyword in call.keywords]
        if call.args or None in names or len({*names}) < len(names):
            raise ValueError
        return name, {
            keyword.arg: _OF_JSON.get(keyword.value.id, keyword.value.id)
            if isinstance(keyword.value, ast.Name)
            else ast.literal_eval(keyword.value)
            for keyword in call.keywords
        }
    except (ValueError, SyntaxError, AttributeError, RecursionError, MemoryError):  # the last two for deep nesting
        what = f"a {noun} is written NAME or NAME:FIELD=VALUE,FIELD=VALUE, such as {example}"
        raise PadirError(what, got=text, remedy=OWN_CLASS) from None


@runtime_checkable
class Abilities(Protocol):
    """The abilities of a model's decoder, as `ModelConfig` names them."""

    @property
    def decontextualised(self) -> bool: ...
    @property
    def rejecter(self) -> bool: ...
    @property
    def rejecter_judges(self) -> str: ...


_NEEDS = {"decontextualised", "rejecter", "mask", "pieces"}
_NOISE = {"pieces", "mask", "mask_range"}


def check_strategy(strategy: Strategy, *, canvas: Corruption, trained: Corruption, config: Abilities) -> None:
    """Checks that a model can be decoded with a strategy from drafts of a corruption.

    The drafts must consist of noise that the model was trained with. This does not apply to a decontextualised decoder,
    which sees no noise at all. The strategy's attribute `needs` may name four requirements:

    - "decontextualised": a decoder in which a position can be kept from seeing other positions.
    - "rejecter": a decoder with a rejecter head, which judges what the strategy's attribute `head_judges` says.
    - "mask": a decoder that can be told which positions are masked, because it was trained with masks or does not see
      masked positions. Only such a decoder gives the conditional distribution of a position given the others.
    - "pieces": a decoder that was trained with random pieces, from drafts of random pieces.

    Args:
      canvas, trained: the corruption that makes drafts, and the corruption that the model was trained with.
      config: what the model's decoder can do.
    """
    needs = getattr(strategy, "needs", frozenset())
    others = f"choose one of {', '.join(name for name, cls in STRATEGIES.items() if not getattr(cls, 'needs', None))}"
    name = next((name for name, cls in STRATEGIES.items() if cls is type(strategy)), type(strategy).__name__)
    kinds, known = canvas.noise_kinds, trained.noise_kinds
    words_of(_NEEDS, f"{name}.needs", needs)
    words_of(_NOISE, f"{canvas}.noise_kinds", kinds)
    for need, what in (("decontextualised", "a decontextualised decoder"), ("rejecter", "a rejecter head")):
        if need in needs and not getattr(config, need):
            lacking = f"{name} needs {what} (ModelConfig.{need} = True), which this model does not have"
            raise PadirError(lacking, remedy=others)
    judges = getattr(strategy, "head_judges", config.rejecter_judges)
    if "rejecter" in needs and judges != config.rejecter_judges:
        lacking = f'{name} needs a rejecter head that judges "{judges}" (ModelConfig.rejecter_judges)'
        raise PadirError(lacking, got=config.rejecter_judges, remedy="choose rejecter or prediction_rejecter by it")
    made = f"the canvas is made with {canvas}"
    pieces = kinds == {"pieces"} <= known and not config.decontextualised
    if "pieces" in needs and not pieces:
        what = f"{name} needs random pieces, but {made} and the model was trained with {trained}"
        raise PadirError(what, remedy=others)
    if config.decontextualised:
        return
    if "mask" in needs and known == {"pieces"}:
        what = f"{name} hides positions behind a mask, but this model was trained with {trained}, without masks"
        raise PadirError(what, remedy=f"{others}, or train with masks")
    if not kinds <= known:
        what = f"{made}, but this model was trained with {trained}"
        raise PadirError(what, remedy="leave Decoding.canvas out, or train with that noise")
    if "mask" in needs and not canvas.deterministic:
        what = f"{name} hides positions behind a mask, but {made}"
        raise PadirError(what, remedy="set Decoding.canvas = @Mask()")
