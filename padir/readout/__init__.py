"""Readouts: how large a canvas is, and how its tokens become the sentence.

`ModelConfig.readout` names one of `READOUTS`, or a `Readout` of another module as "module:NAME".
"""

from __future__ import annotations

import sys

from padir.errors import PadirError, nearest
from padir.readout.ctc import CTC
from padir.readout.plain import PLAIN
from padir.readout.protocols import Geometry, PositionHead, Readout, StageLoss, StageSums

__all__ = ["CTC", "PLAIN", "READOUTS", "Geometry", "PositionHead", "Readout", "StageLoss", "StageSums", "find_readout"]

READOUTS: dict[str, Readout] = {"plain": PLAIN, "ctc": CTC}
"""The readouts by name. With "ctc", the source gives the size of a canvas, in place of a length head."""


def find_readout(name: str) -> Readout:
    """The readout of a name, or the one that a module has under the name after the colon.

    Nothing is imported, because strangers write model cards: a program imports a module of its own first.

    >>> find_readout("padir.readout.ctc:CTC").name
    'CTC'
    """
    if name in READOUTS:
        return READOUTS[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        raise PadirError(f"no readout is called {name!r}", remedy=nearest(name, READOUTS))
    if module not in sys.modules:
        remedy = f"import {module} first; a gin file can, with --allow_imports {module}"
        raise PadirError(f"the readout {name!r} is in a module that is not imported", remedy=remedy)
    found = getattr(sys.modules[module], attribute, None)
    if not isinstance(found, Readout):
        raise PadirError(f"ModelConfig.readout = {name!r}", "a padir.readout.Readout", found)
    return found


def check_readout(**values: str) -> None:
    """Checks that each value names a readout."""
    for value in values.values():
        find_readout(value)
