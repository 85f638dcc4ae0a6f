"""The check that a model can be decoded with a strategy from a kind of draft."""

from __future__ import annotations

from typing import Any

from padir.errors import PadirError
from padir.refinement.corruption import noise_kinds
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.strategies.registry import STRATEGIES


def check_strategy(strategy: Strategy, *, canvas: Corruption, trained: Corruption, config: Any) -> None:
    """Checks that a model can be decoded with a strategy from drafts of a corruption.

    The drafts must consist of noise that the model was trained with. This does not apply to a decontextualised decoder,
    which sees no noise at all. The strategy's attribute `needs` may name four requirements:

    - "decontextualised": a decoder in which a position can be kept from seeing other positions.
    - "rejecter": a decoder with a rejecter head.
    - "mask": a decoder that can be told which positions are hidden, because it was trained with masks or does not see
      hidden positions. Only such a decoder gives the conditional distribution of a position given the others.
    - "pieces": a decoder that was trained with random pieces, from drafts of random pieces.

    Args:
      canvas: the corruption that drafts are made with.
      trained: the corruption that the model was trained with.
      config: the model's `ModelConfig`.

    Raises:
      PadirError: the model does not meet a requirement; the message names it and the strategies without requirements.
    """
    needs = getattr(strategy, "needs", frozenset())
    others = ", ".join(name for name, cls in STRATEGIES.items() if not getattr(cls, "needs", None))
    name = next((name for name, cls in STRATEGIES.items() if cls is type(strategy)), type(strategy).__name__)
    if "decontextualised" in needs and not config.decontextualised:
        raise PadirError(
            f"{name} needs a decontextualised decoder (ModelConfig.decontextualised = True), which this model does not"
            f" have: choose one of {others}"
        )
    if "rejecter" in needs and not config.rejecter:
        raise PadirError(
            f"{name} needs a rejecter head (ModelConfig.rejecter = True), which this model does not have: choose one of"
            f" {others}"
        )
    kinds, known = noise_kinds(canvas), noise_kinds(trained)
    pieces = kinds in (None, {"pieces"}) and (known is None or "pieces" in known) and not config.decontextualised
    if "pieces" in needs and not pieces:
        raise PadirError(
            f"{name} needs drafts of random pieces and a model that was trained with them, but the canvas is made with"
            f" {canvas} and the model was trained with {trained}: choose one of {others}"
        )
    if config.decontextualised:
        return
    if "mask" in needs and known == {"pieces"}:
        raise PadirError(
            f"{name} hides positions behind a mask, but this model was trained with {trained}, without masks: choose"
            f" one of {others}, or train with masks"
        )
    if kinds is not None and known is not None and not kinds <= known:
        raise PadirError(
            f"the canvas is made with {canvas}, but this model was trained with {trained} and has never seen its"
            " noise: leave the canvas out (Decoding.canvas), or train with that noise"
        )
    if "mask" in needs and not canvas.deterministic:
        raise PadirError(
            f"{name} hides positions behind a mask, but the canvas is made with {canvas}: give it a canvas of masks,"
            " Decoding.canvas = @Mask()"
        )
