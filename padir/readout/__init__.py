"""Readouts: how large a canvas is, and how its tokens become the sentence.

`ModelConfig.length_head` names a readout of `READOUTS`. With every other length head the model has the readout
`Plain`, in which the canvas is the sentence.
"""

from __future__ import annotations

from padir.readout.ctc import Ctc
from padir.readout.plain import Plain, Readout

__all__ = ["READOUTS", "Ctc", "Plain", "Readout", "readout_of"]

READOUTS: dict[str, Readout] = {"ctc": Ctc()}
"""The readouts that give the size of a canvas in place of a length head."""


def readout_of(length_head: str) -> Readout:
    """The readout of models whose `ModelConfig.length_head` has this name.

    >>> readout_of("token").name
    'plain'
    """
    return READOUTS.get(length_head, Plain())
