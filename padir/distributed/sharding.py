"""Sharding of parameters and batches: rules map the names of parameter axes to the axes of a device mesh.

A mesh has two axes. Rows of a batch are split over "data", and the work on each row is split over "model". The axes of
every parameter have names ("vocab", "embed", "mlp", ...), and a rule says over which mesh axis the axes with a given
name are split. Ways of sharding:

    data parallel      every device holds all parameters and works on its rows
    FSDP               `shard_parameters`: every device holds a part of the parameters and of the optimizer's state, and
                       gets the other parts when the computation needs them
    tensor parallel    `model_parallel` = N: N devices share the heads, the MLP and the vocabulary of the same rows

XLA inserts the communication (`jax.jit` on arrays with a `NamedSharding`); the computation stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from padir import checks
from padir.errors import PadirError

DATA = "data"
MODEL = "model"
RULES = {"vocab": MODEL, "mlp": MODEL, "heads": MODEL, "joined_kv": MODEL}  # axes of parameters, and of the mesh


@runtime_checkable
class ModelSizes(Protocol):
    """Protocol of the sizes that devices share, in a `ModelConfig`."""

    @property
    def width(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def mlp(self) -> int: ...


@checks.settings
class Sharding:
    """The distribution of a model and its batches over devices; the default is data parallel.

    Attributes:
      model_parallel: number of devices that share the work on a row; the rows are split over groups of this size.
      shard_parameters: split parameters and optimizer state over the mesh axis "data", too.
    """

    model_parallel: checks.Count = 1
    shard_parameters: bool = False

    def mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """The mesh [data, model] of the given devices (default: all); adjacent devices share the work on a row."""
        devices = all_devices() if devices is None else list(devices)
        if len(devices) % self.model_parallel:
            divisors = [str(n) for n in range(1, len(devices) + 1) if len(devices) % n == 0]
            what = f"Sharding.model_parallel must divide the number of devices, {len(devices)}"
            raise PadirError(what, got=self.model_parallel, remedy=f"choose one of {', '.join(divisors)}")
        grid = np.array(devices).reshape(-1, self.model_parallel)
        mesh = Mesh(grid, (DATA, MODEL), axis_types=(AxisType.Auto, AxisType.Auto))
        process_rows(mesh)
        return mesh

    def check(self, mesh: Mesh | AbstractMesh, model: ModelSizes, rows: int | None = None) -> None:
        """Refuses a `ModelConfig`, or a number of rows of a batch, that the devices cannot share equally."""
        data = mesh.shape[DATA]
        parallel = mesh.shape[MODEL]
        if rows is not None and rows % data:
            among = f"(of {mesh.size} devices, with Sharding.model_parallel {parallel})"
            raise PadirError("Batching.rows", f"a multiple of {data}, the devices that share the rows {among}", rows)
        for name, size in (("heads", model.heads), ("mlp", model.mlp)):
            if size % parallel:
                raise PadirError(f"ModelConfig.{name}", f"a multiple of Sharding.model_parallel, {parallel}", size)
        if self.shard_parameters and model.width % data:
            expected = f"a multiple of {data}, the devices that share parameters (Sharding.shard_parameters)"
            raise PadirError("ModelConfig.width", expected, model.width)

    def spec(self, axes: Sequence[str], shape: Sequence[int], mesh: Mesh | AbstractMesh) -> PartitionSpec:
        """The `PartitionSpec` of an array with the given axis names and shape, by `RULES`.

        An axis is not split if its size is no multiple of the number of devices, or if an earlier axis of the array is
        split over the same mesh axis.

        >>> mesh = AbstractMesh((2, 4), ("data", "model"))
        >>> tuple(Sharding(4, shard_parameters=True).spec(("vocab", "embed"), (32, 8), mesh))
        ('model', 'data')
        """
        rules = RULES | {"embed": DATA} if self.shard_parameters else RULES
        entries: list[str | None] = []
        for name, size in zip(axes, shape, strict=True):
            axis = rules.get(name)
            fits = axis is not None and axis not in entries and mesh.shape[axis] > 1 and size % mesh.shape[axis] == 0
            entries.append(axis if fits else None)
        while entries and entries[-1] is None:
            entries.pop()
        return PartitionSpec(*entries)

    def of_params(self, axes: PyTree, params: PyTree, mesh: Mesh | AbstractMesh) -> PyTree:
        """The sharding of every parameter (or shape of one); `axes` is the tree of `padir.models.params.param_axes`."""

        def place(leaf, names):
            return NamedSharding(mesh, self.spec(tuple(names), leaf.shape, mesh))

        return jax.tree.map(place, params, axes)


def of_state(state: PyTree, params: PyTree, shardings: PyTree, mesh: Mesh | AbstractMesh) -> PyTree:
    """The sharding of every array of a state that contains trees like the parameters, such as an optimizer's.

    An array has the sharding of a parameter if its path ends in the parameter's path and their shapes are equal. All
    other arrays are on every device.
    """
    named = jax.tree_util.tree_leaves_with_path(params)
    leaves = zip(named, jax.tree.leaves(shardings), strict=True)
    known = {(path, leaf.shape): sharding for (path, leaf), sharding in leaves}
    whole = NamedSharding(mesh, PartitionSpec())

    def place(path, leaf):
        ends = ((path[i:], leaf.shape) for i in range(len(path)))
        return next((known[end] for end in ends if end in known), whole)

    return jax.tree_util.tree_map_with_path(place, state)


def process_rows(mesh: Mesh) -> tuple[int, int]:
    """(index of this process's share of a batch's rows, number of shares), which `make_loader` takes as `shard`."""
    here = jax.process_index()
    held = [i for i, row in enumerate(mesh.devices) if any(device.process_index == here for device in row)]
    shares, rest = divmod(mesh.shape[DATA], len(held))
    if rest or held != list(range(held[0], held[0] + len(held))) or held[0] % len(held):
        local = sum(device.process_index == here for device in mesh.devices.flat)
        what = f"Sharding.model_parallel must divide the devices of a process, {local}, or be a multiple of them"
        raise PadirError(what, got=mesh.shape[MODEL])
    return held[0] // len(held), shares


def spread(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Places an array on the devices of all processes; each process must hold the whole array."""
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def on_host(tree: PyTree) -> PyTree:
    """Copies arrays to the host as NumPy arrays.

    If an array lies on the devices of several processes, all processes must call this function, and each gets the whole
    array.
    """

    def gather(leaf):
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
            return leaf
        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.device_get(jax.tree.map(gather, settle(tree)))


def settle(tree: PyTree) -> PyTree:
    """Returns the arrays unchanged; with several processes on CPUs, waits first until the arrays are computed.

    On CPUs programs share a few threads, and a program that waits for another process keeps its thread. So programs
    that run at the same time may take all threads of two processes and wait for each other forever.
    """
    if jax.process_count() > 1 and jax.default_backend() == "cpu":
        jax.block_until_ready(tree)
    return tree


def keep_rows(x: jax.Array) -> jax.Array:
    """Constrains the rows of an array [B, ...] to be split over "data", if `jax.set_mesh` has set a mesh.

    Without this constraint XLA may gather the rows and split [..., D] along D instead, as parameters are split.
    """
    mesh = jax.sharding.get_abstract_mesh()
    automatic = [name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Auto]
    if DATA not in automatic or mesh.shape[DATA] == 1 or x.shape[0] % mesh.shape[DATA]:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(DATA))


def shares(axis: str | None = None) -> int:
    """The number of devices along an axis of the mesh that `jax.set_mesh` has set, or of all its devices; else 1."""
    sizes = dict(jax.sharding.get_abstract_mesh().shape)
    return math.prod(sizes.values()) if axis is None else sizes.get(axis, 1)


def split_rows_of_blocks(table_nvD: jax.Array) -> jax.Array:
    """Constrains the rows of each block of a table [n, v, D] to be split over "model"."""
    if shares(MODEL) == 1:
        return table_nvD
    return jax.lax.with_sharding_constraint(table_nvD, PartitionSpec(None, MODEL))


def all_devices() -> list[Any]:
    """The devices of all processes, grouped by process; on a TPU pod the order of device ids does not group them."""
    return sorted(jax.devices(), key=lambda device: (device.process_index, device.id))


def mesh_of(tree: PyTree) -> Mesh | None:
    """The mesh of the devices that hold a tree of arrays; None if they are on one device or on the host."""
    sharding = next((getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(tree)), None)
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh) and DATA in sharding.mesh.axis_names:
        return sharding.mesh if sharding.mesh.size > 1 else None
    return None
