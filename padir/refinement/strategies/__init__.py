"""Decoding strategies, which propose the next canvas; each is a frozen dataclass that `refine` runs.

rewriting      strategies that remask the worst tokens and write them again
confidence     strategies in which the model's confidence decides which positions are written
sampling       strategies that draw tokens, or the places to hide again, at random
schedules      the number of positions that are masked after each pass

This module makes strategies from their names and hyperparameters, or from text such as "threshold:tau=0.9".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from padir.checks import words_of
from padir.errors import PadirError
from padir.from_text import made, named
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.strategies.confidence import EasyFirst, Factor, Renoise, Threshold
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
    "block_gibbs": BlockGibbs,
    "independent_parallel": IndependentParallel,
    "renoise": Renoise,
    "factor": Factor,
    "remdm": Remdm,
    "p2": PathPlanning,
}


def get_strategy(name: str, **hyperparameters) -> Strategy:
    """Makes the strategy of a given name, or of a class "module:Name"; messages list the known names and fields.

    >>> get_strategy("threshold", tau=1)
    Threshold(tau=1.0, final_tau=None, schedule=None)
    """
    return made(name, "strategy", STRATEGIES, Strategy, hyperparameters)


def parse_strategy(text: str) -> Strategy:
    """Makes a strategy from text such as "threshold" or "threshold:tau=0.9,final_tau=0.5", as on the command line.

    >>> parse_strategy("block_gibbs:block=3,order=margin")
    BlockGibbs(block=3, order='margin', temperature=1.0, parallel=False)
    """
    return named(text, "strategy", "threshold:tau=0.9", STRATEGIES, Strategy)


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
    stop = getattr(strategy, "stop", None)  # programs are remembered by its value
    if not getattr(getattr(type(stop), "__dataclass_params__", None), "frozen", False):
        raise PadirError(f"{type(strategy).__name__}.stop", "an instance of a frozen dataclass", stop)
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
