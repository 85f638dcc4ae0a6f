"""Rescoring hypotheses by an autoregressive model that is loaded from a directory."""

from __future__ import annotations

import functools

from padir.decoding.rerank import Rescore
from padir.decoding.translator import Translator
from padir.errors import PadirError


@functools.lru_cache  # rows of a table share it
def rescorer(model_dir: str, brevity: float = 1.0) -> Rescore:
    """Rescoring by the autoregressive model of a directory, or by one that comes with padir.

    Raises:
      PadirError: the directory holds no whole model, or the model is not autoregressive.
    """
    translator = Translator.load(model_dir)
    if not translator.card.config.causal:
        raise PadirError(f"{model_dir} holds no autoregressive model, which rescoring needs: give one, or own or mbr")
    # A hypothesis may have more pieces in that model's vocabulary than it takes.
    score_fn = functools.partial(translator.score, truncate=True)
    return Rescore(score_fn, brevity, model_dir, translator.card.target_language)
