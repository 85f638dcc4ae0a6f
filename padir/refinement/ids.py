"""The ids of a decoder's vocabulary, as a canvas and its corruptions need them."""

from __future__ import annotations

import functools
import itertools
from typing import TypeAlias

from padir import checks
from padir.errors import PadirError
from padir.text.ids import Ids


@checks.settings
class DecoderIds:
    """The ids of any decoder, one by one; nothing is assumed about their order.

    Attributes:
      vocab_size: V, number of logits at a position.
      mask_id: the mask, anywhere in the vocabulary; None if the decoder knows none.
      eos: the id at a canvas's last position, which is never rewritten. None if the length is fixed without it, or if
        the decoder writes its EOS like any other token; `padir.refinement.until` then finds the end.
      padding: the id behind the last position of a row, which no strategy writes or reads.
      banned: further ids that are never written; mask and EOS need not be named.
      random_ids: ids that random canvases are drawn from; those that are never written are left out.

    Raises:
      PadirError: an id lies outside the vocabulary, or all ids are banned.

    >>> ids = DecoderIds(vocab_size=8, mask_id=5, banned=(0,), random_ids=range(8))
    >>> ids.special, ids.noise
    ((0, 5), (1, 2, 3, 4, 6, 7))
    """

    vocab_size: checks.Count
    mask_id: int | None = None
    eos: int | None = None
    padding: int = 0
    banned: tuple[int, ...] = ()
    random_ids: range | tuple[int, ...] = ()

    def __post_init__(self):
        random_ids = self.random_ids
        if isinstance(random_ids, range):
            random_ids = (*random_ids[:1], *random_ids[-1:])
        ids = {"mask_id": [self.mask_id], "eos": [self.eos], "padding": [self.padding], "banned": self.banned}
        for name, several in (ids | {"random_ids": random_ids}).items():
            for each in several:
                if each is not None:
                    checks.below(0, self.vocab_size, **{f"DecoderIds.{name}": each})
        if self.mask_id is not None and self.mask_id == self.eos:
            raise PadirError("DecoderIds.mask_id", "another id than eos", self.mask_id)
        if len(self.special) == self.vocab_size:
            raise PadirError("DecoderIds.banned", "fewer ids than the vocabulary has", f"all {self.vocab_size}")

    @property
    def num_embeddings(self) -> int:
        return self.vocab_size

    @property
    def mask(self) -> int:
        """The id of the mask.

        Raises:
          PadirError: the decoder knows none.
        """
        if self.mask_id is None:
            raise PadirError("these ids have no mask", remedy="set DecoderIds.mask_id, or draft with Uniform()")
        return self.mask_id

    @functools.cached_property
    def special(self) -> tuple[int, ...]:
        """The ids that are never written, in ascending order."""
        return tuple(sorted({*self.banned, self.mask_id, self.eos} - {None}))

    @functools.cached_property
    def noise(self) -> range | tuple[int, ...]:
        """The ids of random canvases, in ascending order."""
        ids = tuple(sorted({*self.random_ids} - {*self.special}))
        in_a_row = all(b == a + 1 for a, b in itertools.pairwise(ids))
        return range(ids[0], ids[-1] + 1) if ids and in_a_row else ids

    def mask_range(self, length: int) -> range:
        what = "these ids have no mask for each position"
        raise PadirError(what, remedy="use padir.text.ids.Ids, or draft with Mask()")


CanvasIds: TypeAlias = Ids | DecoderIds
"""The ids of a canvas: T5's layout, which padir's models have, or those of any decoder."""
