"""Reads the text of a compiled program: its large values, its communication, and the cycles that XLA estimates.

XLA's compiler for TPUs notes how many cycles it expects of each operation. A cost is that of the whole use of a
program: the body of a loop counts as often as it runs, of the branches of a condition the costliest one counts.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Sequence

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# Operations that can take long and for which XLA gives no cycles.
_WITHOUT_ESTIMATE = (*COLLECTIVES, "sort", "gather", "scatter", "custom-call", "convolution", "dot", "fft")
_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128, "token": 0}
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
_INSTRUCTION = re.compile(r"^\s*(?P<root>ROOT )?%?(?P<name>[\w.-]+) = (?P<type>\(.*?\)|\S+) (?P<kind>[a-z][\w-]*)\(")
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_BRANCHES = re.compile(r"(?:branch_computations=\{([^}]*)\}|true_computation=(\S+), false_computation=([^\s,]+))")


@dataclasses.dataclass(frozen=True)
class _Instruction:
    line: str
    kind: str
    sizes: tuple[float, ...]
    root: bool

    def called(self, attribute: str) -> str:
        """Name of the computation that an attribute such as "body" or "calls" names; "" if there is none."""
        found = re.search(rf"\b{attribute}=%?([\w.-]+)", self.line)
        return found[1] if found else ""

    @property
    def source(self) -> str:
        """The operation of the source that the instruction stands for, or else its kind."""
        found = re.search(r'op_name="([^"]*)"', self.line)
        return found[1] if found else self.kind


@dataclasses.dataclass(frozen=True)
class Cycles:
    """Estimated cycles of a whole use of a program.

    Attributes:
      total: all cycles.
      shares: cycles of "matrix products" (with what XLA fuses with them), of reductions and other work on the
        "vocabulary" outside them, and of "other" operations.
      unestimated: number of uses of operations, by kind, for which XLA gives no cycles.
    """

    total: float
    shares: dict[str, float]
    unestimated: dict[str, float]


def joined(parts: Sequence[Cycles | None]) -> Cycles | None:
    """The cycles of programs that run one after the other; None if one is not known."""
    known = [each for each in parts if each is not None]
    if len(known) < len(parts):
        return None

    def summed(counts: Iterable[dict[str, float]]) -> dict[str, float]:
        return dict(sum((collections.Counter(each) for each in counts), collections.Counter()))

    shares, unestimated = summed(each.shares for each in known), summed(each.unestimated for each in known)
    return Cycles(math.fsum(shares.values()), shares, unestimated)


class ProgramText:
    """The computations of a compiled program.

    >>> text = "ENTRY %main (a: f32[8,4]) -> f32[8,4] {\\n  ROOT %all-reduce.1 = f32[8,4]{1,0} all-reduce(%a)\\n}"
    >>> ProgramText(text).collective_bytes()
    {'all-reduce': 128.0}
    """

    def __init__(self, text: str):
        self._entry = ""
        self._computations: dict[str, list[_Instruction]] = {}
        current: list[_Instruction] = []
        for line in text.splitlines():
            if begun := _COMPUTATION.match(line):
                current = self._computations.setdefault(begun["name"], [])
                self._entry = begun["name"] if begun["entry"] else self._entry
            elif found := _INSTRUCTION.match(line):
                sizes = tuple(_bytes(*array) for array in _ARRAY.findall(found["type"]))
                current.append(_Instruction(line, found["kind"], sizes, found["root"] is not None))

    def collective_bytes(self, trips: int = 1) -> dict[str, float]:
        """Bytes of the results of collective operations by kind; every branch of a condition counts.

        Args:
          trips: how often the outermost loops run whose number of trips is no constant.
        """
        found: dict[str, float] = {}
        for each, times in self._uses(self._entry, 1.0, trips):
            name = each.kind.removesuffix("-start")
            if name in COLLECTIVES:
                # The start of an asynchronous operation gives its operands, too; only all-reduce gives results alone.
                pairs = each.kind != name and name != "all-reduce"
                own = each.sizes[len(each.sizes) // 2 :] if pairs else each.sizes
                found[name] = found.get(name, 0.0) + times * math.fsum(own)
        return found

    def _uses(self, name: str, times: float, trips: int) -> Iterator[tuple[_Instruction, float]]:
        """Every instruction of a computation and of those that it calls, with the number of times that it runs."""
        for each in self._computations.get(name, ()):
            yield each, times
            if each.kind == "while":
                number, inner = self._trips(each, trips)
                yield from self._uses(each.called("body"), times * number, inner)
            else:
                for called in (each.called("calls"), each.called("to_apply"), *_branches(each)):
                    yield from self._uses(called, times, trips)

    def largest_values(self, count: int = 5) -> tuple[tuple[float, str], ...]:
        """The largest arrays that the program computes, as (bytes, operation of the source or of XLA)."""
        sizes: dict[str, float] = {}
        for each in self._instructions():
            if each.sizes and each.kind not in ("parameter", "get-tuple-element", "tuple", "bitcast", "while"):
                sizes[each.source] = max(sizes.get(each.source, 0.0), max(each.sizes))
        best = sorted(sizes.items(), key=lambda item: -item[1])[:count]
        return tuple((size, name) for name, size in best)

    def cycles(self, trips: int = 1, vocab_size: int | None = None) -> Cycles | None:
        """Estimated cycles; None if the compiler notes none.

        Args:
          trips: how often the outermost loops run whose number of trips is no constant.
          vocab_size: number of ids, by which operations on the vocabulary are recognised.
        """
        shares: dict[str, float] = collections.defaultdict(float)
        unestimated: dict[str, float] = collections.defaultdict(float)
        self._add(self._entry, 1.0, trips, vocab_size, shares, unestimated)
        if not any(shares.values()):
            return None
        return Cycles(math.fsum(shares.values()), dict(shares), dict(unestimated))

    def _add(self, name: str, times: float, trips: int, vocab_size: int | None, shares, unestimated) -> None:
        for each in self._computations.get(name, ()):
            if cycles := _CYCLES.search(each.line):
                shares[self._share(each, vocab_size)] += times * float(cycles[1])
            elif each.kind == "while":
                number, inner = self._trips(each, trips)
                self._add(each.called("body"), times * number, inner, vocab_size, shares, unestimated)
            elif each.kind == "call":
                self._add(each.called("to_apply"), times, trips, vocab_size, shares, unestimated)
            elif each.kind == "conditional":
                self._add(self._costliest(each, trips), times, trips, vocab_size, shares, unestimated)
            elif kind := self._without_estimate(each):
                unestimated[kind] += times

    def _share(self, instruction: _Instruction, vocab_size: int | None) -> str:
        kinds = {each.kind for each in self._with_fused(instruction)}
        if kinds & {"convolution", "dot"} or instruction.source.endswith("dot_general"):
            return "matrix products"
        lines = (each.line for each in self._with_fused(instruction))
        if vocab_size is not None and any(re.search(rf"[\[,]{vocab_size}[\],]", line) for line in lines):
            return "vocabulary"
        return "other"

    def _without_estimate(self, instruction: _Instruction) -> str:
        """The costly kind of an instruction for which there are no cycles, or ""."""
        kinds = [each.kind.removesuffix("-start") for each in self._with_fused(instruction)]
        found = next((kind for kind in _WITHOUT_ESTIMATE if kind in kinds), "")
        return "" if "AllocateBuffer" in instruction.line else found

    def _with_fused(self, instruction: _Instruction) -> Iterator[_Instruction]:
        """The instruction, and those that it fuses."""
        yield instruction
        if instruction.kind == "fusion":
            for each in self._computations.get(instruction.called("calls"), ()):
                yield from self._with_fused(each)

    def _trips(self, loop: _Instruction, trips: int) -> tuple[int, int]:
        """(trips of a loop, trips of the loops in its body whose number is no constant)."""
        constant = self._constant_trips(loop.called("condition"))
        return (trips, 1) if constant is None else (constant, trips)

    def _constant_trips(self, condition: str) -> int | None:
        """Trips of a loop that counts from 0 to a constant; None for other loops."""
        instructions = self._computations.get(condition, [])
        counts = any(each.root and each.kind == "compare" and "direction=LT" in each.line for each in instructions)
        limits = [re.search(r"s32\[\]\S* constant\((\d+)\)", each.line) for each in instructions]
        found = [int(limit[1]) for limit in limits if limit]
        return found[0] if counts and len(found) == 1 else None

    def _costliest(self, conditional: _Instruction, trips: int) -> str:
        """Name of the branch with most cycles."""

        def cost(name: str) -> float:
            shares: dict[str, float] = collections.defaultdict(float)
            self._add(name, 1.0, trips, None, shares, collections.defaultdict(float))
            return math.fsum(shares.values())

        return max(_branches(conditional), key=cost, default="")

    def _instructions(self) -> Iterator[_Instruction]:
        for each in self._computations.values():
            yield from each


def _branches(conditional: _Instruction) -> list[str]:
    """Names of the branches of a condition; [] for other instructions."""
    found = _BRANCHES.search(conditional.line)
    return [name.strip(" %,") for name in ",".join(filter(None, found.groups())).split(",")] if found else []


def _bytes(kind: str, shape: str) -> float:
    bits = _BITS.get(kind) or int((re.search(r"\d+", kind) or ["8"])[0])
    return bits / 8 * math.prod(map(int, filter(None, shape.split(","))))
