"""`SharedTranslator`: several processes, each with the model on devices of its own, share out batches of sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from padir.decoding.batches import SourceBatch
from padir.decoding.translation import Translation
from padir.decoding.translator import Translator
from padir.distributed.shared_work import shared_out


class SharedTranslator(Translator):
    """A translator that shares out the batches of every call of `translate` to all processes.

    All processes must make the same calls; each gets all translations. The batches are those of one process, and so
    are the translations. `translate` raises a PadirError if another process failed, and tells its `progress` of the
    batches when all processes have done theirs.

    Args:
      translator: a translator on devices of this process.
    """

    def __init__(self, translator: Translator):
        super().__init__(translator.params, translator.card, translator.tokenizer)
        self.decoding, self.loaded, self._map = translator.decoding, translator.loaded, _shared_out


def _shared_out(
    run: Callable[[SourceBatch], list[Translation]], batches: Sequence[SourceBatch]
) -> list[list[Translation]]:
    def as_rows(batch: SourceBatch) -> list[dict[str, Any]]:
        return [dataclasses.asdict(each) for each in run(batch)]

    return [[Translation.of_json(row) for row in rows] for rows in shared_out(batches, as_rows)]
