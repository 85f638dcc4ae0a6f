"""Templates: fixed text and gaps of a translation, such as "I ___ to the station."

A canvas holds the fixed tokens (`padir.refinement.canvas.hold`), and the gaps are written around them. A gap of unknown
length takes the positions that the predicted length leaves. If there are several such gaps, each way to share out these
positions is a draft of its own, and the rule of reranking chooses. A model that writes from left to right can hold
a prefix alone, which is a template whose only gap is its end.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence

from padir import checks
from padir.errors import PadirError
from padir.text.ids import UNK, Ids
from padir.text.normalise import composed
from padir.text.tokenizer import Tokenizer

_GAP = re.compile(r"__(\d+)__|_{3,}")
_MOST_GAP = 65_536  # as many as a canvas has positions
_MOST_SPLITS = 8  # ways to share out positions among several gaps of unknown length


@dataclasses.dataclass(frozen=True)
class Template:
    """A parsed template.

    Attributes:
      parts: token ids of fixed text, and numbers of tokens of gaps in turn; a gap of 0 has any length. A
        canvas gives it at least one token; a sentence written from left to right may end at once.
    """

    parts: tuple[tuple[int, ...] | int, ...]

    @staticmethod
    def parse(text: str, tokenizer: Tokenizer) -> Template:
        """Reads a template, in which ___ is a gap of any length, and __3__ a gap of three tokens.

        Raises:
          PadirError: the template has no gap, a gap of no tokens, or no fixed text.
        """
        fixed, *rest = _GAP.split(composed(text))
        parts: list[tuple[int, ...] | int] = [tuple(_encoded(fixed, tokenizer, follows=False))]
        for size, fixed in zip(rest[::2], rest[1::2], strict=True):
            if size and not (len(size) < 9 and 1 <= int(size) <= _MOST_GAP):
                raise PadirError("template", f"gaps of 1 to {_MOST_GAP:,} tokens", f"__{size}__", "leave the gap out")
            parts += [int(size or 0), tuple(_encoded(fixed, tokenizer, follows=True))]
        template = Template(tuple(part for part in parts if part != ()))
        template.check(tokenizer.ids, text)
        if not template.spelt:
            raise PadirError("template", "characters of the model's vocabulary", text)
        return template

    def check(self, ids: Ids, shown: object) -> None:
        """Refuses a template without a gap or fixed text, and ids that stand for no text.

        Args:
          shown: the template in messages.
        """
        gaps = [part for part in self.parts if isinstance(part, int) and 0 <= part <= _MOST_GAP]
        texts = [part for part in self.parts if isinstance(part, tuple) and part]
        if not gaps:
            raise PadirError("template", "text with a gap: ___, or __3__ for three tokens", shown)
        if not texts:
            raise PadirError("template", "fixed text beside its gaps", shown, "leave the template out")
        first, end = UNK, ids.end_regular + ids.num_placeholders
        fitting = (checks.fits(each, int) and first <= each < end for part in texts for each in part)
        if len(gaps) + len(texts) < len(self.parts) or not all(fitting):
            parts = f"ids from {first} on, below {end}, and gaps from 0 to {_MOST_GAP:,}"
            raise PadirError("Template.parts", parts, shown)

    @property
    def spelt(self) -> bool:
        """True if the vocabulary has all characters of the fixed text."""
        return not any(isinstance(part, tuple) and UNK in part for part in self.parts)

    @property
    def prefix(self) -> tuple[int, ...] | None:
        """The ids of a template that is a prefix; None for others."""
        first, *others = self.parts
        return first if others == [0] and isinstance(first, tuple) else None

    @property
    def repeats(self) -> frozenset[int]:
        """The ids that stand beside themselves in the fixed text."""
        texts = [part for part in self.parts if isinstance(part, tuple)]
        return frozenset(a for part in texts for a, b in itertools.pairwise(part) if a == b)

    @property
    def least(self) -> int:
        """The least number of target tokens, EOS included."""
        return 1 + sum(len(part) if isinstance(part, tuple) else part or 1 for part in self.parts)

    def is_held(self, tokens: Sequence[int]) -> bool:
        """True if a translation, without EOS, has the fixed text at its places."""
        segments = [""]  # between gaps of any length
        for part in self.parts:
            if part == 0:
                segments.append("")
            else:
                segments[-1] += re.escape(_characters(part)) if isinstance(part, tuple) else f".{{{part}}}"
        first, *others = segments
        # Segments have fixed lengths, so the leftmost place is as good as any but for the last: nothing is tried again.
        pattern = first + "".join(f"(?>.*?{segment})" for segment in others[:-1])
        pattern += "".join(f".*{segment}" for segment in others[-1:])
        return re.fullmatch(pattern, _characters(tokens), re.DOTALL) is not None

    @property
    def open_gaps(self) -> int:
        """The number of gaps of any length."""
        return self.parts.count(0)

    def length(self, predicted: int) -> int:
        """The number of target tokens, EOS included, for a predicted number."""
        return max(self.least, predicted) if self.open_gaps else self.least

    def rows(self, length: int) -> list[list[int]]:
        """The fixed ids of canvases of `length` positions, 0 at gaps, for each way to share out the gaps.

        >>> Template(((7, 8), 0, (9,))).rows(6)
        [[7, 8, 0, 0, 9, 0]]
        """
        rows = []
        for shares in _shares(length - self.least + self.open_gaps, self.open_gaps):
            left = iter(shares)
            row: list[int] = []
            for part in self.parts:
                row += part if isinstance(part, tuple) else [0] * (part or next(left))
            rows.append([*row, 0])
        return rows


def _characters(tokens: Sequence[int]) -> str:
    """A character for each id, so that patterns can be looked for."""
    return "".join(map(chr, tokens))


def _encoded(text: str, tokenizer: Tokenizer, follows: bool) -> list[int]:
    """The ids of fixed text; text that follows a gap without a space continues its word.

    Such text is encoded behind "0", which stands in for the word. The ids of the stand-in, fewer than 8, are left out.
    If they cannot be told from the ids of the text, the text is encoded alone.
    """
    ids = tokenizer.encode(text.strip())
    if not follows or not text.strip() or text[0].isspace():
        return ids
    continued = tokenizer.encode(f"0{text.strip()}")
    begins = (i for i in range(1, min(8, len(continued))) if tokenizer.decode(continued[:i]) == "0")
    return continued[next(begins, len(continued)) :] or ids


def _shares(total: int, parts: int) -> list[tuple[int, ...]]:
    """Ways to share out a total among parts of at least 1: a few sizes of the first part, and equal other parts.

    >>> _shares(7, 2), _shares(6, 3)
    ([(1, 6), (2, 5), (3, 4), (4, 3), (5, 2), (6, 1)], [(1, 3, 2), (2, 2, 2), (3, 2, 1), (4, 1, 1)])
    """
    if parts < 2:
        return [(total,) * parts]
    ways, most = [], total - parts + 1
    for first in range(1, most + 1, -(-most // _MOST_SPLITS)):
        size, more = divmod(total - first, parts - 1)
        ways.append((first, *[size + 1] * more, *[size] * (parts - 1 - more)))
    return ways


def templates_of(template: str | Sequence[str | Template], count: int, tokenizer: Tokenizer) -> list[Template]:
    """The templates of texts: one for each, or one for all."""
    if isinstance(template, str):
        return [Template.parse(template, tokenizer)] * count
    if len(template) != count:
        raise PadirError(f"{count} texts need {count} templates or one", got=len(template))
    for each in template:
        if isinstance(each, Template):
            each.check(tokenizer.ids, each)
    return [each if isinstance(each, Template) else Template.parse(each, tokenizer) for each in template]
