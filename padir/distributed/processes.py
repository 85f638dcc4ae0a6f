"""Several processes that train one model together, one on each host: joining them, and what only the first one does.

All processes run the same program on their part of the data (`jax.distributed`). The first one alone has the model
directory: it writes and reads checkpoints, logs and the model, and tells the others what they need of it. So hosts
need not share that folder; the data must be there on each of them.
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
from padir.errors import PadirError

T = TypeVar("T")

AUTO = "auto"
_SHUTDOWN_SECONDS = 60  # how long a process that ends waits for the others


def join(coordinator: str, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Joins the processes of a training; to be called before anything is on a device.

    Args:
      coordinator: HOST:PORT of the first process, at which the others find it; "auto" asks the environment, which on
        TPU, SLURM, Open MPI and Kubernetes knows all three (`jax.distributed.initialize`).
      num_processes, process_id: how many there are, and which of them this one is, from 0.

    Raises:
      PadirError: the three do not make sense, or the environment says nothing.
    """
    numbers = (num_processes, process_id)
    if coordinator == AUTO:
        if numbers != (None, None):
            raise PadirError("--coordinator auto takes the processes from the environment: leave their numbers out")
    elif num_processes is None or process_id is None:
        raise PadirError("--coordinator HOST:PORT needs --num_processes N and --process_id I, or be `auto`")
    elif not 0 <= process_id < num_processes:
        raise PadirError(f"--process_id must lie in 0 .. {num_processes - 1}, got {process_id}")
    elif not coordinator.rpartition(":")[0] or not coordinator.rpartition(":")[2].isdigit():
        raise PadirError(f"--coordinator must be HOST:PORT, such as 10.0.0.1:1234, or `auto`, got {coordinator!r}")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from the trainer
    try:
        jax.distributed.initialize(
            None if coordinator == AUTO else coordinator,
            *numbers,
            shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        raise PadirError(
            f"the processes did not join: {str(error).splitlines()[0]} (is the first one running, are the numbers"
            " right, and does the environment know them where the coordinator is `auto`?)"
        ) from error


def is_first() -> bool:
    """Whether this is the process that has the model directory; the only one is."""
    return jax.process_index() == 0


def from_first(make: Callable[[], Any]) -> Any:
    """What `make` gives in the first process, in all of them; of several processes, what it is as JSON.

    All processes must call it.

    Raises:
      PadirError: what the first one met, in the others.
      Exception: what `make` raised, in the first.
    """
    if jax.process_count() == 1:
        return make()
    text, error = "", None
    if is_first():
        try:
            text = json.dumps({"value": make()})
        except Exception as raised:  # whatever it is: the others wait for an answer
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
    """What `make` gives, made by each process for itself; all must call it.

    Processes that go on with different things compute nonsense, or wait for each other for ever.

    Args:
      what: it is, for the message.
      say: gives a text that must be the same in all processes.

    Raises:
      PadirError: it is not, or `make` raised an error in another process.
      Exception: what `make` raised in this one.
    """
    if jax.process_count() == 1:
        return make()
    made, error, said = None, None, bytes(32)
    try:
        made = make()
        said = hashlib.sha256(re.sub(r" at 0x\w+", "", say(made)).encode()).digest()
    except Exception as raised:  # whatever it is: the others wait for an answer
        error = raised
    every = [each.tobytes() for each in _from_all(np.frombuffer(said, np.uint8))]
    if error is not None:
        raise error
    if bytes(32) in every:
        raise PadirError(f"process {every.index(bytes(32))} stopped: see what it says")
    for number, each in enumerate(every):
        if each != every[0]:
            raise PadirError(
                f"{what} must be the same in all processes, got others in process {number} than in process 0: give"
                " both the same options and the same data"
            )
    return cast(T, made)


def arrays_from_first(tree: Any, place: Callable[[np.ndarray, Any], Any], where: Any) -> Any:
    """The first process's arrays, placed in all of them, one after the other.

    Args:
      tree: arrays; of the other processes, anything of their shapes and dtypes.
      place: given an array and its entry in `where`, which is a tree like it.
    """
    if jax.process_count() == 1:
        return jax.tree.map(place, tree, where)

    def told(leaf, entry):
        mine = np.asarray(leaf) if is_first() else np.zeros(leaf.shape, leaf.dtype)
        return place(_told(mine), entry)

    return jax.tree.map(told, tree, where)


def gathered(tree: Any) -> Any:
    """Arrays on the first process's host, where several have parts of them; of one process as they are.

    All processes must call it; the others get None for each array. One array at a time is whole on the devices.
    """
    if jax.process_count() == 1:
        return tree

    def told(leaf):
        whole = on_host(leaf)
        return whole if is_first() else None  # which would fill every host's memory

    return jax.tree.map(told, tree)


def _told(mine: np.ndarray) -> np.ndarray:
    """The first process's array; those of the others have its shape and dtype."""
    arrays = _by_process(mine)
    return jax.device_get(settle(_first(arrays.sharding.mesh)(arrays)))


def _from_all(mine: np.ndarray) -> np.ndarray:
    """The arrays of all processes [process, ...], which are of one shape and dtype."""
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
    """Whether any process wants to stop, the same answer in all of them.

    With several processes the answer is that of the call before, so that none waits for the step that has just begun.
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
