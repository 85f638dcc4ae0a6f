"""Compiles programs and reads what XLA says of them: memory, arithmetic, communication and its estimate of the time."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from padir.compilation.chips import Chip
from padir.compilation.matrix_flops import matrix_flops
from padir.compilation.program_text import Cycles, ProgramText, joined
from padir.compilation.programs import Program
from padir.errors import first_line

Costs = dict[str, float | None]
"""Costs by name; None if the backend does not give one."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """XLA's analyses of a program, for one device; a number is None if the backend does not give it.

    Attributes:
      name: the program's name.
      compile_seconds: seconds that lowering and compiling took.
      failure: why XLA could not compile the program, such as too little memory; "" if it could.
      arguments, temporaries, code: bytes of its arguments and results, of its values in between at their peak, and of
        its instructions.
      flops, bytes_accessed: FLOPs, and bytes read and written, of a whole use.
      xla_seconds: XLA's own estimate of the time of a whole use.
      collectives: bytes that the results of each kind of collective operation have, for a whole use.
      largest: (bytes, operation) of its largest values, largest first.
      matrix_flops: FLOPs of the matrix products of a whole use on all devices together, counted before XLA.
      cycles: XLA's estimate of the cycles of each operation, for a whole use.
    """

    name: str
    compile_seconds: float
    failure: str = ""
    arguments: float | None = None
    temporaries: float | None = None
    code: float | None = None
    flops: float | None = None
    bytes_accessed: float | None = None
    xla_seconds: float | None = None
    collectives: dict[str, float] = dataclasses.field(default_factory=dict)
    largest: tuple[tuple[float, str], ...] = ()
    matrix_flops: float | None = None
    cycles: Cycles | None = None

    @property
    def memory(self) -> float | None:
        """Bytes that a device needs for the program, its arguments included."""
        parts = (self.arguments, self.temporaries, self.code)
        return None if None in parts else math.fsum(part for part in parts if part is not None)

    def fits(self, chip: Chip | None) -> bool | None:
        """True if a device has enough memory for the program; None if this is not known."""
        if self.failure:
            return False
        return None if chip is None or self.memory is None else self.memory <= chip.memory

    def roofline_seconds(self, chip: Chip | None) -> float | None:
        """Time of a whole use if the arithmetic or the memory were busy all the time, whichever takes longer."""
        if chip is None or self.flops is None or self.bytes_accessed is None:
            return None
        return max(self.flops / chip.flops, self.bytes_accessed / chip.bandwidth)

    def utilisation(self, chip: Chip | None, devices: int) -> float | None:
        """Share of the devices' peak FLOPs that the matrix products would use in the time estimated by cycles."""
        seconds = self.cycle_seconds(chip)
        if chip is None or seconds is None or self.matrix_flops is None:
            return None
        return self.matrix_flops / (seconds * devices * chip.flops)

    def cycle_seconds(self, chip: Chip | None) -> float | None:
        """Estimate of the time of a whole use, from cycles; operations without an estimate count nothing."""
        return None if chip is None or chip.clock is None or self.cycles is None else self.cycles.total / chip.clock


def analyse(programs: Iterable[Program], clock: Callable[[], float] = time.perf_counter) -> Iterator[Compiled]:
    """Compiles programs one after the other and reads XLA's analyses.

    XLA counts the body of a loop once. `Program.trips` corrects this for a program's `while` loop. For scans all costs
    are multiplied by the ratio of the matrix products with and without the scans' lengths. The cycles are those of all
    operations, each as often as it runs (`ProgramText.cycles`).
    """
    costs: dict[str, Costs] = {}
    cycles: dict[str, Cycles | None] = {}
    for program in programs:
        began = clock()
        try:
            compiled, jaxpr = _compile(program.trace)
        except RuntimeError as error:  # XLA's
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            yield Compiled(program.name, clock() - began, failure=first_line(error))
            continue
        seconds = clock() - began
        costs[program.name] = _costs(compiled, jaxpr)
        text, memory = ProgramText(compiled.as_text() or ""), compiled.memory_analysis()
        cycles[program.name] = text.cycles(program.trips, program.vocab_size)
        sizes: dict[str, float] = {}
        if memory is not None:
            results = memory.output_size_in_bytes - memory.alias_size_in_bytes
            sizes["arguments"] = float(memory.argument_size_in_bytes + results)
            sizes["temporaries"] = float(memory.temp_size_in_bytes)
            sizes["code"] = float(memory.generated_code_size_in_bytes)
        yield Compiled(
            program.name,
            seconds,
            **sizes,
            **_whole_use(program, costs),
            collectives=text.collective_bytes(program.trips),
            largest=text.largest_values(),
            cycles=joined([cycles[name] for name in (*program.before, program.name)]),
        )


def _compile(trace: Callable[[], jax.stages.Traced]) -> tuple[jax.stages.Compiled, Any]:
    """A compiled program and its jaxpr."""
    traced = trace()
    with _no_cache():
        return traced.lower().compile(), traced.jaxpr


def _costs(compiled: jax.stages.Compiled, jaxpr: Any) -> Costs:
    """Costs of a program whose `while` loops run once."""
    device = next(iter(jax.tree.leaves(compiled.input_shardings)[0].device_set))
    once, counted = (matrix_flops(jaxpr, scans=scans, platform=device.platform) for scans in (False, True))
    ratio = counted / once if once else 1.0
    analyses: Any = compiled.cost_analysis() or {}
    keys = {"flops": "flops", "bytes_accessed": "bytes accessed", "xla_seconds": "optimal_seconds"}
    found = {name: analyses.get(key) for name, key in keys.items()}
    # For some chips XLA's estimate is below 0, which means that it has none.
    known = {name: None if value is None or value < 0 else ratio * value for name, value in found.items()}
    return {**known, "matrix_flops": counted}


@contextlib.contextmanager
def _no_cache() -> Iterator[None]:
    """Neither reads nor keeps compiled programs: they could not run here."""
    enabled: Any = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)


def _whole_use(program: Program, costs: dict[str, Costs]) -> dict[str, Any]:
    """Costs of a whole use of a program, from the costs that XLA counts (`Program`)."""
    whole: Costs = {}
    for name, value in costs[program.name].items():
        before, contained = ([costs[each].get(name) for each in names] for names in (program.before, program.contains))
        known = [each for each in (value, *before, *contained) if each is not None]
        if len(known) <= len(before) + len(contained):
            whole[name] = None
            continue
        own_cost, *first = known
        once = math.fsum(first[len(before) :])
        whole[name] = math.fsum(first) + program.trips * (own_cost - once)
    return whole
