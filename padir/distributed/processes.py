"""Communication between the processes of a training run, one on each host (`jax.distributed`).

All processes run the same program, each on its part of the data. The first process writes and reads the model
directory, and sends its contents to the other processes, so that the hosts need no shared model directory. The
training data must be on each host.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from padir.distributed.sharding import all_devices, on_host, settle, spread
from padir.errors import PadirError, first_line

T = TypeVar("T")

AUTO = "auto"
_SHUTDOWN_SECONDS = 60  # seconds for which a process that has finished waits for the other processes
_GOOGLE = "0x1ae0"  # vendor of TPUs on the PCI bus, and of these other devices of Google's virtual machines:
_NO_TPU = ("0x001f", "0x0042")  # the NVMe disk, and the network card (gVNIC)
_PCI = Path("/sys/bus/pci/devices")


def join(coordinator: str, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Joins this process to the others of a training run; call this function before JAX uses a device.

    Args:
      coordinator: HOST:PORT of the first process; "auto" takes all three arguments from the environment, which works on
        TPU, SLURM, Open MPI and Kubernetes (`jax.distributed.initialize`).
      num_processes: number of processes.
      process_id: number of this process, from 0.

    Raises:
      PadirError: an argument is missing or out of range, or the processes do not find each other.
    """
    if coordinator == AUTO:
        if num_processes is not None or process_id is not None:
            what = "coordinator='auto' takes the processes from the environment"
            raise PadirError(what, remedy="leave out num_processes and process_id")
    elif num_processes is None or process_id is None:
        raise PadirError("coordinator HOST:PORT needs num_processes and process_id", remedy="give both, or use `auto`")
    elif not 0 <= process_id < num_processes:
        raise PadirError("process_id", f"in [0, {num_processes - 1}]", process_id)
    elif not coordinator.rpartition(":")[0] or not coordinator.rpartition(":")[2].isdigit():
        raise PadirError("coordinator", "HOST:PORT, such as 10.0.0.1:1234, or `auto`", coordinator)
    jax.config.update("jax_enable_preemption_service", False)  # this service would take SIGTERM from the trainer
    try:
        where = None if coordinator == AUTO else coordinator
        jax.distributed.initialize(where, num_processes, process_id, shutdown_timeout_seconds=_SHUTDOWN_SECONDS)
    except (ValueError, RuntimeError) as error:
        remedy = "check that the first process runs and that the numbers are right (or the environment, for `auto`)"
        raise PadirError(f"the processes did not join ({first_line(error)})", remedy=remedy) from error


def is_first() -> bool:
    """True in the first process, which has the model directory; always True if there is only one process."""
    return jax.process_index() == 0


def from_every(make: Callable[[], Any]) -> list[Any]:
    """Calls `make` in every process; returns the results of all processes, in each of them.

    All processes must call this function. With several processes the results travel as JSON, so that tuples become
    lists. If `make` fails or is interrupted in one process, all raise an error.
    """
    if jax.process_count() == 1:
        return [make()]
    error = None
    try:
        content = json.dumps({"made": make()}).encode()
    except (Exception, KeyboardInterrupt) as raised:  # any error, because the others wait for an answer
        content = json.dumps({"error": str(raised)}).encode()
        error = raised
    sizes = from_all(np.array(len(content), np.int32))
    texts = from_all(padded(content, int(sizes.max())))
    if error is not None:
        raise error
    answers = [json.loads(text[:size].tobytes()) for text, size in zip(texts, sizes.tolist(), strict=True)]
    for process, answer in enumerate(answers):
        if "error" in answer:
            raise PadirError(f"process {process} stopped: {answer['error'] or 'read its messages'}")
    return [answer["made"] for answer in answers]


def from_first(make: Callable[[], Any]) -> Any:
    """Calls `make` in the first process, and returns its result in all processes (see `from_every`)."""
    return from_every(lambda: make() if is_first() else None)[0]


def padded(text: bytes, size: int) -> np.ndarray:
    """An array of a text's bytes whose length, at least `size`, is one of few: each length needs a program of its own.

    >>> padded(b"ab", 300).shape
    (512,)
    """
    letters = np.zeros(max(256, 1 << (size - 1).bit_length()), np.uint8)
    letters[: len(text)] = np.frombuffer(text, np.uint8)
    return letters


def agreed(what: str, make: Callable[[], T], say: Callable[[T], str] = repr) -> T:
    """Calls `make` in every process, checks that all results are the same, and returns this process's result.

    All processes must call this function. Processes with different data or options would compute nonsense, or wait for
    each other forever.

    Args:
      what: name of the results in the error message.
      say: converts a result to the text that must be the same in all processes.
    """
    if jax.process_count() == 1:
        return make()
    made: list[T] = []

    def digest() -> str:
        made.append(make())
        return hashlib.sha256(re.sub(r" at 0x\w+", "", say(made[0])).encode()).hexdigest()

    digests = from_every(digest)
    for number, each in enumerate(digests):
        if each != digests[0]:
            wrong = f"{what} must be the same in all processes, but process {number} and process 0 differ"
            raise PadirError(wrong, remedy="give both the same options and the same data")
    return made[0]


def read_by_first(read: Callable[[], tuple[PyTree, Any] | None], like: PyTree, shardings: PyTree) -> tuple[PyTree, Any]:
    """Reads arrays, of the shapes and dtypes of `like`, and a JSON value; distributes both to all processes.

    Args:
      read: function that only the first process calls; returns (arrays, JSON value), or None for (None, None).
    """
    arrays = like

    def read_rest() -> list[Any]:
        nonlocal arrays
        result = read()
        if result is None:
            return []
        arrays, value = result
        return [value]

    values = from_first(read_rest)
    if not values:
        return None, None

    def send(leaf, sharding):  # one array at a time
        mine = leaf if is_first() else np.zeros(leaf.shape, leaf.dtype)
        return spread(_told(np.asarray(mine)), sharding)

    return jax.tree.map(send, arrays, shardings), values[0]


def gathered(tree: PyTree) -> PyTree:
    """Gathers arrays from the devices of several processes on the host of the first process.

    All processes must call this function; the other processes get None for each array. If there is only one process,
    the arrays are unchanged. Only one array at a time is whole on the devices.
    """
    if jax.process_count() == 1:
        return tree

    def told(leaf):
        whole = on_host(leaf)
        return whole if is_first() else None  # else all arrays would fill the memory of every host

    return jax.tree.map(told, tree)


def _told(mine: np.ndarray) -> np.ndarray:
    """Returns the first process's array in all processes; `mine` has the same shape and dtype in all processes."""
    if jax.process_count() == 1:
        return mine
    return jax.device_get(settle(_first(_process_mesh())(_by_process(mine))))


def from_all(mine: np.ndarray) -> np.ndarray:
    """Returns the arrays of all processes, [process, ...]; `mine` has the same shape and dtype in all processes."""
    return on_host(_by_process(mine))


def _by_process(mine: np.ndarray) -> jax.Array:
    by_process = NamedSharding(_process_mesh(), PartitionSpec("process"))
    return jax.make_array_from_process_local_data(by_process, mine[None], (jax.process_count(), *mine.shape))


def _process_mesh() -> Mesh:
    return Mesh(np.array(all_devices()).reshape(jax.process_count(), -1), ("process", "device"))


@functools.cache
def _first(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda arrays: arrays[0], out_shardings=NamedSharding(mesh, PartitionSpec()))


class Vote:
    """A vote of all processes on stopping: a call returns True in every process if any process wants to stop.

    With several processes a call returns the result of the previous vote, so that no process waits for the step that
    has just begun.
    """

    def __init__(self):
        self._before: jax.Array | None = None

    def __call__(self, wanted: bool) -> bool:
        if jax.process_count() == 1:
            return wanted
        over_all = NamedSharding(Mesh(np.array(jax.devices()), ("devices",)), PartitionSpec("devices"))
        mine = np.full(jax.local_device_count(), wanted)
        asked = jax.make_array_from_process_local_data(over_all, mine, (jax.device_count(),))
        before = self._before
        self._before = settle(_any(over_all)(asked))
        return before is not None and bool(before)


@functools.cache
def _any(sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda asked: asked.any(), out_shardings=NamedSharding(sharding.mesh, PartitionSpec()))


def ignore_absent_tpus(pci: Path = _PCI) -> None:
    """Makes JAX use the CPU if libtpu is installed but the machine has no TPU and no plugin for other devices.

    Otherwise JAX would start libtpu at its first computation, which looks for a TPU's host and prints errors. A setting
    of JAX_PLATFORMS is left as it is.
    """
    if os.environ.get("JAX_PLATFORMS") or importlib.util.find_spec("libtpu") is None:
        return
    has_tpu = any(
        path.read_text().strip() == _GOOGLE and path.with_name("device").read_text().strip() not in _NO_TPU
        for path in pci.glob("*/vendor")
    )
    if not has_tpu and not importlib.metadata.entry_points(group="jax_plugins"):
        jax.config.update("jax_platforms", "cpu")


def shared_out(items: Sequence[T], work: Callable[[T], Any]) -> list[Any]:
    """Results of `work` for all items, in all processes; process I of N works on the items I, I + N, I + 2 N, ...

    All processes must call this function with the same items (see `from_every`).
    """
    processes = jax.process_count()
    results: list[Any] = [None] * len(items)
    every = from_every(lambda: [work(item) for item in items[jax.process_index() :: processes]])
    for process, done in enumerate(every):
        results[process::processes] = done
    return results
