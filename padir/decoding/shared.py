"""`SharedTranslator`: several processes, each with the model on devices of its own, share out batches of sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from padir import checks
from padir.decoding.batches import source_batches
from padir.decoding.options import Decoding
from padir.decoding.translation import EMPTY_LINE, Translation
from padir.decoding.translator import Translator
from padir.distributed.shared_work import shared_out


class SharedTranslator(Translator):
    """A translator that shares out the batches of every call of `translate` to all processes.

    All processes must make the same calls; each gets all translations. The batches are those of one process, and so
    are the translations.

    Args:
      translator: a translator on devices of this process.
    """

    def __init__(self, translator: Translator):
        super().__init__(translator.params, translator.card, translator.tokenizer)
        self.decoding, self._own = translator.decoding, translator

    def translate(
        self,
        texts: Sequence[str],
        decoding: Decoding | None = None,
        *,
        target_lengths: Sequence[int] | None = None,
        truncate: bool = False,
        trace: bool = False,
        progress: Callable[[int], None] = lambda count: None,
        **changes: Any,
    ) -> list[Translation]:
        """Translates sentences as `Translator.translate` does; `progress` counts those of this process.

        Raises:
          PadirError: as there, or another process failed.
        """
        checks.strings(texts=texts)
        decoding = (decoding or self.decoding).changed(**changes)
        tokens, _ = self.loaded.source_tokens(texts, truncate)
        batches = [places for places, _ in source_batches(texts, tokens, decoding.batch_size)]

        def run(places: list[int]) -> list[dict[str, Any]]:
            made = self._own.translate(
                [texts[i] for i in places],
                decoding,
                target_lengths=None if target_lengths is None else [target_lengths[i] for i in places],
                truncate=truncate,
                trace=trace,
                progress=progress,
            )
            return [dataclasses.asdict(each) for each in made]

        results = [EMPTY_LINE] * len(texts)
        for places, rows in zip(batches, shared_out(batches, run), strict=True):
            for i, row in zip(places, rows, strict=True):
                results[i] = Translation.of_json(row)
        return results
