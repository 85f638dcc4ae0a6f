"""Compiles programs and reads XLA's analyses: memory, arithmetic, communication and an estimate of the time.

The estimate is a number of cycles at the chip's clock. XLA's compiler for TPUs notes cycles for each operation, and an
operation counts as often as it runs. Operations without cycles (`Cycles.unestimated`: exchanges between devices,
gathers, scatters, sorts) are left out. No estimate was ever compared with a TPU's time. There is no estimate for GPUs
and CPUs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from padir.errors import first_line
from padir.measuring.compilation.devices import Chip
from padir.measuring.compilation.program_list import Program
from padir.measuring.compilation.program_text import Cycles, ProgramText, joined

Costs = dict[str, float | None]
"""Costs by name; None if the backend does not give one."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """XLA's analyses of a program, for one device; a number is None if the backend does not give it.

    Attributes:
      name: the program's name.
      compile_seconds: seconds that lowering and compiling took.
      failure: why XLA could not compile the program, such as too little memory; "" if it could.
      arguments, temporaries, code: bytes of its arguments and results, of intermediate values at their peak, and of its
        instructions.
      flops: FLOPs of a whole use.
      collectives: bytes of the results of each kind of collective operation, for a whole use.
      matrix_flops: FLOPs of the matrix products of a whole use on all devices together, counted before XLA.
      cycles: XLA's estimate of the cycles of a whole use.
    """

    name: str
    compile_seconds: float
    failure: str = ""
    arguments: float | None = None
    temporaries: float | None = None
    code: float | None = None
    flops: float | None = None
    collectives: dict[str, float] = dataclasses.field(default_factory=dict)
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

    def cycle_seconds(self, chip: Chip | None) -> float | None:
        """Estimate of the time of a whole use; None if the compiler notes no cycles or the clock is not known."""
        return None if chip is None or chip.clock is None or self.cycles is None else self.cycles.total / chip.clock


def analyse(programs: Iterable[Program], clock: Callable[[], float] = time.perf_counter) -> Iterator[Compiled]:
    """Compiles programs one after the other and reads XLA's analyses.

    XLA counts the body of a loop once. `Program.trips` corrects this for a program's `while` loop. For scans, all costs
    are multiplied by the ratio of the matrix products with and without the scans' lengths. Cycles already count each
    operation as often as it runs (`ProgramText.cycles`).
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
        cycles[program.name] = text.cycles(program.trips)
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
    flops = analyses.get("flops")
    return {"flops": None if flops is None else ratio * flops, "matrix_flops": counted}


@contextlib.contextmanager
def _no_cache() -> Iterator[None]:
    """Neither reads nor keeps compiled programs, because they could not run here."""
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


def matrix_flops(jaxpr: Any, trips: int = 1, scans: bool = True, platform: str = "cpu") -> float:
    """FLOPs of all matrix products on all devices; a multiplication and an addition count as two.

    Products whose results are not used do not count, because XLA leaves them out. The branch of a condition with the
    most FLOPs counts.

    Args:
      jaxpr: a jaxpr, closed or open.
      trips: number of times that the body of each outermost `while` loop counts; loops inside it count once.
      scans: count the body of a `scan` as often as it runs; if False, once, as XLA does.
      platform: the platform whose branch of `jax.lax.platform_dependent` counts.

    >>> import jax, jax.numpy as jnp
    >>> step = lambda x, _: (x @ x, None)
    >>> matrix_flops(jax.make_jaxpr(lambda x: jax.lax.scan(step, x, length=3))(jnp.ones((4, 4))))
    384.0
    """
    total = 0.0
    for equation in _used(getattr(jaxpr, "jaxpr", jaxpr)):
        name = equation.primitive.name
        if name == "dot_general":
            total += _dot_flops(equation)
            continue
        inner = trips if name != "while" else 1
        parts = [matrix_flops(each, inner, scans, platform) for each in _jaxprs(equation.params)]
        if platforms := equation.params.get("branches_platforms"):
            total += parts[next(i for i, some in enumerate(platforms) if some is None or platform in some)]
        elif name == "cond":
            total += max(parts, default=0.0)
        else:
            times = {"while": trips, "scan": equation.params.get("length", 1) if scans else 1}.get(name, 1)
            total += times * math.fsum(parts)
    return total


def _used(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr whose results are used, from the last to the first."""
    needed = {id(each) for each in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(id(each) in needed for each in equation.outvars):
            needed |= {id(each) for each in equation.invars}
            yield equation


def _dot_flops(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left, result = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    return 2.0 * math.prod(result) * math.prod(left[axis] for axis in contracted)


def _jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs among the parameters of an equation."""
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if hasattr(getattr(each, "jaxpr", each), "eqns"):
                yield each
