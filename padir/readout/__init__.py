"""Readouts: how large a canvas is, and how its tokens become the sentence.

`ModelConfig.readout` names one of `READOUTS`, or a `Readout` of another module as "module:NAME".
"""

from __future__ import annotations

from padir.errors import PadirError, nearest
from padir.from_text import own_object
from padir.readout.ctc import CTC
from padir.readout.plain import PLAIN
from padir.readout.protocols import Geometry, PositionHead, Readout, StageLoss, StageSums

__all__ = ["CTC", "PLAIN", "READOUTS", "Geometry", "PositionHead", "Readout", "StageLoss", "StageSums", "find_readout"]

READOUTS: dict[str, Readout] = {"plain": PLAIN, "ctc": CTC}
"""The readouts by name. With "ctc", the source gives the size of a canvas, in place of a length head."""


def find_readout(name: str) -> Readout:
    """The readout of a name, or the one that a module has under the name after the colon.

    >>> find_readout("padir.readout.ctc:CTC").name
    'CTC'
    """
    if name in READOUTS:
        return READOUTS[name]
    if ":" not in name:
        raise PadirError(f"no readout is called {name!r}", remedy=nearest(name, READOUTS))
    found = own_object(name, "readout")
    if not isinstance(found, Readout):
        raise PadirError(f"ModelConfig.readout = {name!r}", "a padir.readout.Readout", found)
    return found


def check_readout(**values: str) -> None:
    """Checks that each value names a readout."""
    for value in values.values():
        find_readout(value)
