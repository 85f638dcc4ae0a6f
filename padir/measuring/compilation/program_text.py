"""Reads the text of a compiled program: its communication, and the cycles that XLA estimates.

XLA's compiler for TPUs notes the cycles that it expects for each operation. A cost is for a whole use of a program: the
body of a loop counts as often as it runs, and the costliest branch of a condition counts.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Sequence

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# Operations that can take long and for which XLA gives no cycles.
_WITHOUT_ESTIMATE = (*COLLECTIVES, "sort", "gather", "scatter", "custom-call", "convolution", "dot", "fft")
_WITHOUT_BUFFER = ("parameter", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "copy-done")
_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128, "token": 0}
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
_INSTRUCTION = re.compile(r"^\s*(?P<root>ROOT )?%?(?P<name>[\w.-]+) = (?P<type>\(.*?\)|\S+) (?P<kind>[a-z][\w-]*)\(")
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_CONSTANT = re.compile(r"[su]32\[\]\S* constant\((\d+)\)")
_CHANNEL = re.compile(r"\bchannel_id=(\d+)")
_BRANCHES = re.compile(r"(?:branch_computations=\{([^}]*)\}|true_computation=(\S+), false_computation=([^\s,]+))")


@dataclasses.dataclass(frozen=True)
class _Instruction:
    line: str
    name: str
    kind: str
    sizes: tuple[float, ...]
    root: bool

    def called(self, attribute: str) -> str:
        """Name of the computation that an attribute such as "body" or "calls" names; "" if there is none."""
        found = re.search(rf"\b{attribute}=%?([\w.-]+)", self.line)
        return found[1] if found else ""

    @property
    def operands(self) -> list[str]:
        return re.findall(r"%([\w.-]+)", self.line.partition(f" {self.kind}(")[2].partition(")")[0])


@dataclasses.dataclass(frozen=True)
class Cycles:
    """Estimated cycles of a whole use of a program.

    Attributes:
      total: all cycles.
      unestimated: number of uses of operations, by kind, for which XLA gives no cycles.
    """

    total: float
    unestimated: dict[str, float]


def joined(parts: Sequence[Cycles | None]) -> Cycles | None:
    """The cycles of programs that run one after the other; None if one is not known."""
    known = [each for each in parts if each is not None]
    if len(known) < len(parts):
        return None
    unestimated: collections.Counter[str] = collections.Counter()
    for each in known:
        unestimated.update(each.unestimated)  # pyright: ignore[reportArgumentType]
    return Cycles(math.fsum(each.total for each in known), dict(unestimated))


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
                arrays = _ARRAY.findall(found["type"])
                if found["kind"].endswith("-start"):
                    arrays = [array for array in arrays if array != ("u32", "")]  # semaphores
                sizes = tuple(_bytes(*array) for array in arrays)
                current.append(_Instruction(line, found["name"], found["kind"], sizes, found["root"] is not None))

    def collective_bytes(self, trips: int = 1) -> dict[str, float]:
        """Bytes of the results of collective operations by kind; every branch of a condition counts.

        Args:
          trips: number of trips of outermost loops without a constant number.
        """
        found: dict[str, float] = {}
        begun: dict[str, str] = {}  # by channel: XLA for a TPU repeats an operation in every fusion that it runs beside
        for each, times in self._uses(self._entry, 1.0, trips):
            name = each.kind.removesuffix("-start")
            channel = _CHANNEL.search(each.line)
            if name in COLLECTIVES and (not channel or begun.setdefault(channel[1], each.name) == each.name):
                # The start of an asynchronous operation gives its operands, too; only all-reduce gives results alone.
                pairs = each.kind != name and name != "all-reduce"
                own = each.sizes[len(each.sizes) // 2 :] if pairs else each.sizes
                found[name] = found.get(name, 0.0) + times * math.fsum(own)
        return found

    def largest_buffers(self, count: int) -> list[tuple[float, str]]:
        """(bytes, operation) of the largest results in memory; values inside fusions and on the chip are not there."""
        fused = {each.called("calls") for own in self._computations.values() for each in own if each.kind == "fusion"}
        written = (each for name, own in self._computations.items() if name not in fused for each in own)
        found: dict[str, float] = {}
        for each in written:
            on_chip = "S(1)" in each.line.partition(f" {each.kind}(")[0]
            if each.sizes and each.kind not in _WITHOUT_BUFFER and not on_chip:
                name = (re.search(r'op_name="([^"]*)"', each.line) or ["", each.kind])[1]
                found[name] = max(found.get(name, 0.0), *each.sizes)
        largest = sorted(((size, name) for name, size in found.items()), key=lambda each: each[0], reverse=True)
        return largest[:count]

    def _uses(self, name: str, times: float, trips: int) -> Iterator[tuple[_Instruction, float]]:
        """Every instruction of a computation, called computations included, and the number of times that it runs."""
        for each in self._computations.get(name, ()):
            yield each, times
            if each.kind == "while":
                number, inner = self._trips(each, trips)
                yield from self._uses(each.called("body"), times * number, inner)
            else:
                for called in (each.called("calls"), each.called("to_apply"), *_branches(each)):
                    yield from self._uses(called, times, trips)

    def cycles(self, trips: int = 1) -> Cycles | None:
        """Estimated cycles; None if the compiler notes none.

        Args:
          trips: number of trips of outermost loops without a constant number.
        """
        unestimated: dict[str, float] = collections.defaultdict(float)
        total = self._total(self._entry, 1.0, trips, unestimated)
        return Cycles(total, dict(unestimated)) if total else None

    def _total(self, name: str, times: float, trips: int, unestimated: dict[str, float]) -> float:
        """Cycles of a computation that runs `times` times; adds operations without cycles to `unestimated`."""
        total = 0.0
        for each in self._computations.get(name, ()):
            if cycles := _CYCLES.search(each.line):
                total += times * float(cycles[1])
            elif each.kind == "while":
                number, inner = self._trips(each, trips)
                total += self._total(each.called("body"), times * number, inner, unestimated)
            elif each.kind == "call":
                total += self._total(each.called("to_apply"), times, trips, unestimated)
            elif each.kind == "conditional":
                total += self._total(self._costliest(each, trips), times, trips, unestimated)
            elif kind := self._without_estimate(each):
                unestimated[kind] += times
        return total

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
        constant = self._constant_trips(loop)
        return (trips, 1) if constant is None else (constant, trips)

    def _constant_trips(self, loop: _Instruction) -> int | None:
        """Trips of a loop that counts from 0 to a constant, in steps of 1 unless its text has another; else None."""
        condition, body = (self._computations.get(loop.called(part), []) for part in ("condition", "body"))
        compared = next((each for each in condition if each.root and each.kind == "compare"), None)
        limits = [int(limit[1]) for each in condition if (limit := _CONSTANT.search(each.line))]
        if compared is None or "direction=LT" not in compared.line or len(limits) != 1:
            return None
        return math.ceil(limits[0] / _step(compared, {each.name: each for each in (*condition, *body)}, body))

    def _costliest(self, conditional: _Instruction, trips: int) -> str:
        """Name of the branch with most cycles."""

        def cost(name: str) -> float:
            return self._total(name, 1.0, trips, collections.defaultdict(float))

        return max(_branches(conditional), key=cost, default="")


def _step(compared: _Instruction, named: dict[str, _Instruction], body: list[_Instruction]) -> int:
    """The step of the counter that a loop's condition compares; 1 if the text does not say."""
    counter = named.get(compared.operands[0]) if compared.operands else None
    root = next((each for each in body if each.root), None)
    place = re.search(r"\), index=(\d+)", counter.line) if counter else None
    if place is None or root is None or root.kind != "tuple" or int(place[1]) >= len(root.operands):
        return 1
    grown = named.get(root.operands[int(place[1])])
    if grown is None or grown.kind != "add":
        return 1
    added = [_CONSTANT.search(named[name].line) for name in grown.operands if name in named]
    return next((int(each[1]) for each in added if each), 1)


def _branches(conditional: _Instruction) -> list[str]:
    """Names of the branches of a condition; [] for other instructions."""
    found = _BRANCHES.search(conditional.line)
    return [name.strip(" %,") for name in ",".join(filter(None, found.groups())).split(",")] if found else []


def _bytes(kind: str, shape: str) -> float:
    bits = _BITS.get(kind) or int((re.search(r"\d+", kind) or ["8"])[0])
    return bits / 8 * math.prod(map(int, filter(None, shape.split(","))))
