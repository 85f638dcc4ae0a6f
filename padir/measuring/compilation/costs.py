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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from padir.errors import first_line
from padir.measuring.compilation.devices import Chip
from padir.measuring.compilation.program_list import Program
from padir.measuring.compilation.program_text import Cycles, ProgramText, joined

CRASHED = "compiler crashed"


@dataclasses.dataclass(frozen=True)
class Compiled:
    """XLA's analyses of a program, for one device; a number is None if the backend does not give it.

    Attributes:
      name: the program's name.
      compile_seconds: seconds that lowering and compiling took.
      failure: why XLA could not compile the program, such as too little memory; "" if it could. It begins with
        `CRASHED` if the compiler's process ended.
      arguments, temporaries, code: bytes of its arguments and results, of intermediate values at their peak, and of its
        instructions.
      flops: FLOPs of a whole use.
      devices: number of devices that the program runs on.
      collectives: bytes of the results of each kind of collective operation, for a whole use.
      matrix_flops: FLOPs of the matrix products of a whole use on all devices together, counted before XLA.
      moved: bytes that these products must read (`moved_bytes`), on all devices together.
      buffers: the largest buffers in memory, as (bytes, name) (`largest_buffers`).
      cycles: XLA's estimate of the cycles of a whole use.
    """

    name: str
    compile_seconds: float
    failure: str = ""
    arguments: float | None = None
    temporaries: float | None = None
    code: float | None = None
    flops: float | None = None
    devices: int = 1
    collectives: dict[str, float] = dataclasses.field(default_factory=dict)
    matrix_flops: float | None = None
    moved: float | None = None
    buffers: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    cycles: Cycles | None = None

    @property
    def memory(self) -> float | None:
        """Bytes that a device needs for the program, its arguments included."""
        parts = (self.arguments, self.temporaries, self.code)
        return None if None in parts else math.fsum(part for part in parts if part is not None)

    def fits(self, chip: Chip | None) -> bool | None:
        """True if a device has enough memory for the program; None if this is not known."""
        if self.failure:
            return None if self.failure.startswith(CRASHED) else False
        return None if chip is None or self.memory is None else self.memory <= chip.memory

    def cycle_seconds(self, chip: Chip | None) -> float | None:
        """Estimate of the time of a whole use; None if the compiler notes no cycles or the clock is not known."""
        return None if chip is None or chip.clock is None or self.cycles is None else self.cycles.total / chip.clock

    def utilisation(self, chip: Chip | None) -> float | None:
        """Share of a device's peak that its matrix products reach in the estimated time; None if not known."""
        seconds = self.cycle_seconds(chip)
        if chip is None or chip.flops is None or self.matrix_flops is None or not seconds:
            return None
        return self.matrix_flops / self.devices / seconds / chip.flops

    def bound(self, chip: Chip | None) -> float | None:
        """Seconds of a device at its peak, or at its full bandwidth if that takes longer; None if not known.

        The bandwidth's time assumes that a loop's body reads its weights and caches anew. A program whose estimate is
        shorter keeps them on the chip, and has no bound.
        """
        if chip is None or chip.flops is None or chip.bandwidth is None or None in (self.matrix_flops, self.moved):
            return None
        least = max(self.matrix_flops / chip.flops, self.moved / chip.bandwidth) / self.devices  # pyright: ignore
        seconds = self.cycle_seconds(chip)
        return None if seconds is not None and seconds < least else least


def analyse(
    programs: Iterable[Program], done: Iterable[Compiled] = (), clock: Callable[[], float] = time.perf_counter
) -> Iterator[Compiled]:
    """Compiles programs one after the other and reads XLA's analyses.

    XLA counts the FLOPs of a loop's body once. The ratio of the matrix products with all trips of the loops, and with
    one trip, corrects this. Cycles already count each operation as often as it runs (`ProgramText.cycles`).

    Args:
      done: figures of programs that were compiled before, which may run before these.
    """
    found: dict[str, tuple[jax.stages.Compiled, Any]] = {}
    costs = {each.name: each for each in done}
    for program in programs:
        began = clock()
        try:
            if program.same_as not in found:
                found = {program.name: _compile(program.trace)}
        except RuntimeError as error:  # XLA's
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            costs[program.name] = Compiled(program.name, clock() - began, failure=first_line(error))
            yield costs[program.name]
            continue
        compiled, jaxpr = found[program.same_as if program.same_as in found else program.name]
        own = costs[program.name] = _costs(program, compiled, jaxpr, clock() - began)
        parts = [*(costs[name] for name in program.before), own]
        whole = {name: _total([getattr(each, name) for each in parts]) for name in ("flops", "matrix_flops", "moved")}
        yield dataclasses.replace(own, **whole, cycles=joined([each.cycles for each in parts]))


def _total(numbers: Sequence[float | None]) -> float | None:
    known = [each for each in numbers if each is not None]
    return math.fsum(known) if len(known) == len(numbers) else None


def _compile(trace: Callable[[], jax.stages.Traced]) -> tuple[jax.stages.Compiled, Any]:
    """A compiled program and its jaxpr."""
    traced = trace()
    with _no_cache():
        return traced.lower().compile(), traced.jaxpr


def _costs(program: Program, compiled: jax.stages.Compiled, jaxpr: Jaxpr | ClosedJaxpr, seconds: float) -> Compiled:
    """The analyses of a program without the programs that run before it."""
    devices = next(iter(jax.tree.leaves(compiled.input_shardings))).device_set
    platform = next(iter(devices)).platform
    once = matrix_flops(jaxpr, scans=False, platform=platform)
    matrix = matrix_flops(jaxpr, program.trips, platform=platform)
    analyses: Any = compiled.cost_analysis() or {}
    flops = analyses.get("flops")
    text = ProgramText(compiled.as_text() or "")
    memory = compiled.memory_analysis()
    sizes: dict[str, Any] = {}
    if memory is not None:
        results = memory.output_size_in_bytes - memory.alias_size_in_bytes
        sizes["arguments"] = float(memory.argument_size_in_bytes + results)
        sizes["temporaries"] = float(memory.temp_size_in_bytes)
        sizes["code"] = float(memory.generated_code_size_in_bytes)
    return Compiled(
        program.name,
        seconds,
        **sizes,
        flops=None if flops is None else flops * (matrix / once if once else 1.0),
        devices=len(devices),
        collectives=text.collective_bytes(program.trips),
        matrix_flops=matrix,
        moved=moved_bytes(jaxpr, program.trips, platform),
        buffers=text.largest_buffers(3),
        cycles=text.cycles(program.trips),
    )


@contextlib.contextmanager
def _no_cache() -> Iterator[None]:
    """Neither reads nor keeps compiled programs, because they could not run here."""
    enabled: Any = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)


def matrix_flops(jaxpr: Jaxpr | ClosedJaxpr, trips: int = 1, scans: bool = True, platform: str = "cpu") -> float:
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
    for equation in _used(_open(jaxpr)):
        name = equation.primitive.name
        if name == "dot_general":
            total += _dot_flops(equation)
            continue
        inner = trips if name != "while" else 1
        parts = [matrix_flops(body, inner, scans, platform) for body in _jaxprs(equation.params)]
        if platforms := equation.params.get("branches_platforms"):
            total += parts[next(i for i, some in enumerate(platforms) if some is None or platform in some)]
        elif name == "cond":
            total += max(parts, default=0.0)
        else:
            times = {"while": trips, "scan": equation.params.get("length", 1) if scans else 1}.get(name, 1)
            total += times * math.fsum(parts)
    return total


# Operations whose result is their first operand in another form.
_FORMS = {"convert_element_type", "reshape", "transpose", "squeeze", "broadcast_in_dim", "copy", "sharding_constraint"}


def moved_bytes(jaxpr: Jaxpr | ClosedJaxpr, trips: int = 1, platform: str = "cpu") -> float:
    """Bytes that matrix products must read: weights, and the keys and values that the body of a loop gets.

    An array is read once by the program whose argument it is. If a loop's body gets the array, each trip reads it once.
    An array into which the body writes, such as a cache of keys and values, is half full on average. Other results of
    operations may stay on the chip, and do not count. The other arguments are as in `matrix_flops`.

    >>> import jax, jax.numpy as jnp
    >>> step = lambda weight, x: jax.lax.fori_loop(0, x.shape[0], lambda _, y: y @ weight, x)
    >>> moved_bytes(jax.make_jaxpr(step)(jnp.ones((4, 4)), jnp.ones((2, 4))))  # the weights and y, two trips
    192.0
    """
    program = _open(jaxpr)
    outside = {id(var): (id(var), _size(var)) for var in (*program.constvars, *program.invars)}
    read: dict[int, float] = {}
    return _loops_move(program, outside, read, trips, platform) + math.fsum(read.values())


def _loops_move(jaxpr: Jaxpr, outside: dict[int, tuple[int, float]], read: dict[int, float], trips, platform) -> float:
    """Bytes that loops read; adds to `read` the arrays from outside that the other products read.

    `outside` has the array from outside that each variable is a form of, as (its name, its bytes).
    """
    total = 0.0
    for equation in reversed([*_used(jaxpr)]):
        name = equation.primitive.name
        inner = [*_jaxprs(equation.params)]
        forms = [outside.get(id(var)) for var in equation.invars]
        if name == "dot_general":
            read.update(form for form in forms if form)
        elif name in ("while", "scan"):
            times = trips if name == "while" else equation.params["length"]
            total += times * max(moved_bytes(body, 1 if name == "while" else trips, platform) for body in inner)
        elif inner:
            if platforms := equation.params.get("branches_platforms"):
                inner = [inner[next(i for i, some in enumerate(platforms) if some is None or platform in some)]]
            within = _open(inner[-1])
            arguments = zip(reversed(within.invars), reversed(forms), strict=False)
            known = {id(var): form for var, form in arguments if form}
            total += _loops_move(within, known, read, trips, platform)
            results = zip(equation.outvars, within.outvars, strict=False)
            outside |= {id(var): known[id(inner_var)] for var, inner_var in results if id(inner_var) in known}
        elif name in _FORMS and forms[0]:
            outside[id(equation.outvars[0])] = forms[0]
        elif name == "dynamic_update_slice" and forms[0]:
            outside[id(equation.outvars[0])] = forms[0][0], _size(equation.invars[0]) / 2
    return total


def _open(jaxpr: Jaxpr | ClosedJaxpr) -> Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def _size(variable: Var | Literal) -> float:
    array: Any = variable.aval
    return float(math.prod(array.shape) * getattr(array.dtype, "itemsize", 0))


def _used(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """The equations of a jaxpr whose results are used, from the last to the first."""
    needed = {id(var) for var in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(id(var) in needed for var in equation.outvars):
            needed |= {id(var) for var in equation.invars}
            yield equation


def _dot_flops(equation: JaxprEqn) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left: Any = equation.invars[0].aval
    result: Any = equation.outvars[0].aval
    return 2.0 * math.prod(result.shape) * math.prod(left.shape[axis] for axis in contracted)


def _jaxprs(params: dict[str, Any]) -> Iterator[Jaxpr | ClosedJaxpr]:
    """The jaxprs among the parameters of an equation."""
    for value in params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, Jaxpr | ClosedJaxpr):
                yield part
