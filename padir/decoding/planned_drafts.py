"""Planned drafts: what refining tries for a sentence, by length in tokens and number of the draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from padir.decoding.templates import Template

SHORTEST = 2  # tokens of a target: a sentence with text has at least one token beside EOS


class PlannedDraft(NamedTuple):
    """A draft that is tried for a sentence: its length in tokens (EOS included) and the number of its draw.

    `fixed` has the ids that a template holds, 0 for none.
    """

    length: int
    draw: int
    fixed: Sequence[int] = ()


def planned_drafts(
    lengths: Sequence[int], num_drafts: int, max_length: int, template: Template | None = None
) -> list[PlannedDraft]:
    """The drafts that are tried for one sentence, most likely length first, without duplicates.

    Each way to share out the open positions of a template among its gaps is a draft of its own.

    >>> [each.length for each in planned_drafts([5, 1, 2], num_drafts=1, max_length=4)]
    [4, 2]
    """
    if template is not None:
        lengths = [template.length(length) for length in lengths]
    tried = dict.fromkeys(min(max(SHORTEST, length), max_length) for length in lengths)
    found = [PlannedDraft(length, draw) for length in tried for draw in range(num_drafts)]
    if template is None:
        return found
    return [each._replace(fixed=row) for each in found for row in template.rows(each.length)]
