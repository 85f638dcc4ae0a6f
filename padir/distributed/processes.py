"""Processes that train one model together, one on each host: joining, agreeing, and sending from the first process.

All processes run the same program on their part of the data (`jax.distributed`). The first process alone has the model
directory: it writes and reads checkpoints, logs and the model, and sends their contents to the others. So hosts need
not share that folder; the training data must be on each host.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from padir.distributed.sharding import all_devices, on_host, settle
from padir.errors import PadirError, first_line

T = TypeVar("T")

AUTO = "auto"
_SHUTDOWN_SECONDS = 60  # that a process waits at its end for the others


def join(coordinator: str, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Joins the processes of a training run; to be called before JAX uses a device.

    Args:
      coordinator: HOST:PORT of the first process; "auto" takes all three arguments from the environment, which works on
        TPU, SLURM, Open MPI and Kubernetes (`jax.distributed.initialize`).
      num_processes: number of processes.
      process_id: number of this process, from 0.

    Raises:
      PadirError: an argument is missing or out of range, or the processes do not find each other.
    """
    numbers = (num_processes, process_id)
    if coordinator == AUTO:
        if numbers != (None, None):
            raise PadirError(
                "coordinator='auto' takes the processes from the environment",
                remedy="leave out num_processes and process_id",
            )
    elif num_processes is None or process_id is None:
        raise PadirError("coordinator HOST:PORT needs num_processes and process_id", remedy="or use `auto`")
    elif not 0 <= process_id < num_processes:
        raise PadirError("process_id", f"in [0, {num_processes - 1}]", process_id)
    elif not coordinator.rpartition(":")[0] or not coordinator.rpartition(":")[2].isdigit():
        raise PadirError("coordinator", "HOST:PORT, such as 10.0.0.1:1234, or `auto`", coordinator)
    jax.config.update("jax_enable_preemption_service", False)  # this service would take SIGTERM from the trainer
    try:
        jax.distributed.initialize(
            None if coordinator == AUTO else coordinator,
            *numbers,
            shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        raise PadirError(
            f"the processes did not join ({first_line(error)})",
            remedy="check that the first process is running, that the numbers are right, and that the environment has"
            " them if the coordinator is `auto`",
        ) from error


def is_first() -> bool:
    """True in the process that has the model directory, also if it is the only process."""
    return jax.process_index() == 0


def from_first(make: Callable[[], Any]) -> Any:
    """Calls `make` in the first process and returns its result in all; with several processes as JSON restores it.

    All processes must call this function.

    Raises:
      Exception: in the first process, the error of `make`.
      PadirError: in the other processes, the message of that error.
    """
    if jax.process_count() == 1:
        return make()
    text, error = "", None
    if is_first():
        try:
            text = json.dumps({"value": make()})
        except Exception as raised:  # any error, because the others wait for an answer
            text, error = json.dumps({"error": str(raised)}), raised
    size = int(_told(np.array(len(text.encode()), np.int32)))
    letters = np.zeros(size, np.uint8)
    if is_first():
        letters[:] = np.frombuffer(text.encode(), np.uint8)
    told = json.loads(_told(letters).tobytes())
    if error is not None:
        raise error
    if "error" in told:
        raise PadirError(f"the first process stopped: {told['error']}")
    return told["value"]


def agreed(what: str, make: Callable[[], T], say: Callable[[T], str] = repr) -> T:
    """Calls `make` in every process, checks that all results are the same, and returns the process's own.

    All processes must call this function. Processes with different data or options would compute nonsense, or wait for
    each other forever.

    Args:
      what: name of the results in the message.
      say: the text of a result that must be the same in all processes.

    Raises:
      Exception: the error of `make` in this process.
      PadirError: the results differ, or `make` failed in another process.
    """
    if jax.process_count() == 1:
        return make()
    made, error, said = None, None, bytes(32)
    try:
        made = make()
        said = hashlib.sha256(re.sub(r" at 0x\w+", "", say(made)).encode()).digest()
    except Exception as raised:  # any error, because the others wait for an answer
        error = raised
    every = [each.tobytes() for each in _from_all(np.frombuffer(said, np.uint8))]
    if error is not None:
        raise error
    if bytes(32) in every:
        raise PadirError(f"process {every.index(bytes(32))} stopped: see what it says")
    for number, each in enumerate(every):
        if each != every[0]:
            raise PadirError(
                f"{what} must be the same in all processes, got others in process {number} than in process 0",
                remedy="give both the same options and the same data",
            )
    return cast(T, made)


def arrays_from_first(tree: Any, place: Callable[[np.ndarray, Any], Any], where: Any) -> Any:
    """Sends a tree of arrays from the first process to all, one array at a time, and places them on devices.

    Args:
      tree: arrays; in the other processes, anything with their shapes and dtypes.
      place: function of an array and its entry in `where`.
      where: a tree of the same structure, of shardings for example.
    """
    if jax.process_count() == 1:
        return jax.tree.map(place, tree, where)

    def told(leaf, entry):
        mine = np.asarray(leaf) if is_first() else np.zeros(leaf.shape, leaf.dtype)
        return place(_told(mine), entry)

    return jax.tree.map(told, tree, where)


def gathered(tree: Any) -> Any:
    """Gathers arrays that lie on the devices of several processes on the host of the first process.

    All processes must call this function; the others get None for each array. One process gets its arrays unchanged.
    Only one array at a time is whole on the devices.
    """
    if jax.process_count() == 1:
        return tree

    def told(leaf):
        whole = on_host(leaf)
        return whole if is_first() else None  # or every host's memory would fill

    return jax.tree.map(told, tree)


def _told(mine: np.ndarray) -> np.ndarray:
    """The first process's array in all processes; `mine` has the same shape and dtype in all."""
    arrays = _by_process(mine)
    return jax.device_get(settle(_first(arrays.sharding.mesh)(arrays)))


def _from_all(mine: np.ndarray) -> np.ndarray:
    """The arrays of all processes [process, ...]; `mine` has the same shape and dtype in all."""
    return on_host(_by_process(mine))


def _by_process(mine: np.ndarray) -> Any:
    processes = jax.process_count()
    mesh = Mesh(np.array(all_devices()).reshape(processes, -1), ("process", "device"))
    by_process = NamedSharding(mesh, PartitionSpec("process"))
    return jax.make_array_from_process_local_data(by_process, mine[None], (processes, *mine.shape))


@functools.cache
def _first(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda arrays: arrays[0], out_shardings=NamedSharding(mesh, PartitionSpec()))


class Vote:
    """Tells every process if any process wants to stop; all get the same answer.

    With several processes the answer is that of the previous call, so that no process waits for the step that has just
    begun.
    """

    def __init__(self):
        self._before: jax.Array | None = None

    def __call__(self, wanted: bool) -> bool:
        if jax.process_count() == 1:
            return wanted
        over_all = NamedSharding(Mesh(np.array(jax.devices()), ("devices",)), PartitionSpec("devices"))
        mine = np.full(jax.local_device_count(), wanted)
        asked = jax.make_array_from_process_local_data(over_all, mine, (jax.device_count(),))
        before, self._before = self._before, _any(over_all)(asked)
        settle(self._before)
        return before is not None and bool(before)


@functools.cache
def _any(sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda asked: asked.any(), out_shardings=NamedSharding(sharding.mesh, PartitionSpec()))
