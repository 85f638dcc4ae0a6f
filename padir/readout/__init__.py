"""Readouts: how large a canvas is, and how its tokens become the sentence.

`ModelConfig.readout` names one of `READOUTS`.
"""

from __future__ import annotations

from padir.readout.ctc import Ctc
from padir.readout.plain import Plain, Readout

__all__ = ["READOUTS", "Ctc", "Plain", "Readout"]

READOUTS: dict[str, Readout] = {"plain": Plain(), "ctc": Ctc()}
"""The readouts by name. With "ctc", the source gives the size of a canvas, in place of a length head."""
