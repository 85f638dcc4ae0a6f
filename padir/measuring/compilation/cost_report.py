"""Results of `padir compile` as a table, lines and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from padir.measuring.compilation.costs import Compiled
from padir.measuring.compilation.devices import Chip, Topology
from padir.reporting import tables

_COLUMNS = ("program", "fits", "compiling", "memory", "arguments", "temporaries", "TFLOP", "collectives", "estimate")
_COLUMNS += ("of the peak", "of the bound")


def summary(each: Compiled, chip: Chip | None) -> str:
    """A program's figures in one line."""
    figures = zip(_COLUMNS[1:], _cells(each, chip)[1:], strict=True)
    return f"{each.name}: " + (each.failure or ", ".join(map(": ".join, figures)))


def to_row(each: Compiled, chip: Chip | None) -> dict[str, Any]:
    """A program's figures for JSON."""
    row = {**dataclasses.asdict(each), "memory": each.memory, "fits": each.fits(chip)}
    row |= {"cycle_seconds": each.cycle_seconds(chip), "bound": each.bound(chip)}
    return row | {"utilisation": each.utilisation(chip)}


def show(found: Sequence[Compiled], topology: Topology) -> None:
    """Print the table of all programs."""
    chip = topology.chip
    of = "memory of a device not known" if chip is None else f"{chip.memory / 1e9:.0f} GB a device"
    kind = topology.devices[0].device_kind
    title = f"{topology.name}: {len(topology.devices)} devices ({kind}), {of}; memory in GB, numbers for each device"
    tables.show(title, [*_COLUMNS], [_cells(each, chip) for each in found])


def notes(each: Compiled) -> Iterator[str]:
    """Lines about a program's largest buffers, and about what the estimate of its time leaves out."""
    buffers = ", ".join(_figure(size, 1e6, " MB ") + name for size, name in each.buffers)
    yield f"the largest buffers of {each.name}: {buffers or 'not known'}"
    if each.cycles is not None and each.cycles.unestimated:
        without = ", ".join(f"{count:.0f} {kind}" for kind, count in each.cycles.unestimated.items())
        yield f"the estimate of {each.name} leaves out {without}"


def _cells(each: Compiled, chip: Chip | None) -> list[str]:
    """The cells of a program's row, as `_COLUMNS` names them."""
    fits = {True: "yes", False: "no", None: each.failure or "not known"}[each.fits(chip)]
    moved = [_figure(value, 1e9) for value in (each.memory, each.arguments, each.temporaries)]
    collectives = ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in each.collectives.items())
    cells = [each.name, fits, f"{each.compile_seconds:.0f} s", *moved, _figure(each.flops, 1e12)]
    seconds, bound = each.cycle_seconds(chip), each.bound(chip)
    share = bound / seconds if seconds and bound else None
    cells += [collectives or "none", _figure(seconds, 1e-3, " ms")]
    return [*cells, _figure(each.utilisation(chip), 0.01, " %"), _figure(share, 0.01, " %")]


def _figure(value: float | None, unit: float, name: str = "") -> str:
    return "not known" if value is None else f"{value / unit:.3g}{name}"
