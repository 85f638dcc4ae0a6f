"""Where arrays lie on many devices: rules from the names of a parameter's axes to the axes of a device mesh.

A mesh has two axes. Rows of a batch are split over "data"; "model" splits the work on each row. Every parameter names
its axes ("vocab", "embed", "mlp", ...), and a rule says over which mesh axis a name is split:

    data parallel      every device holds all parameters and works on its rows
    FSDP               `shard_parameters`: each holds a part of the parameters and of the optimizer's state, and gets
                       the rest from the others when its turn comes
    tensor parallel    `model_parallel` = N: N devices share the heads, the MLP and the vocabulary of the same rows

XLA inserts the communication (`jax.jit` on arrays with a `NamedSharding`); what is computed is the same.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from padir.errors import PadirError

DATA, MODEL = "data", "model"
AXES = ("abs_position", "embed", "heads", "joined_kv", "keep", "length", "mlp", "relpos_buckets", "vocab")
RULES = (("vocab", MODEL), ("mlp", MODEL), ("heads", MODEL), ("joined_kv", MODEL))


@dataclasses.dataclass(frozen=True)
class Sharding:
    """How a model and its batches are spread over devices; the default is data parallel.

    Attributes:
      model_parallel: devices that share the work on a row; the others share the rows.
      shard_parameters: whether the devices that share the rows share parameters and optimizer state, too.
      rules: (axis of a parameter, mesh axis), the first that applies wins: an axis whose size is no multiple of the
        devices stays whole, and so does one whose mesh axis another axis of the parameter has taken.
        `shard_parameters` adds ("embed", "data") at the end.

    Raises:
      PadirError: a number or a name that makes no sense.
    """

    model_parallel: int = 1
    shard_parameters: bool = False
    rules: tuple[tuple[str, str], ...] = RULES

    def __post_init__(self):
        object.__setattr__(self, "rules", tuple((name, axis) for name, axis in self.rules))
        if self.model_parallel < 1:
            raise PadirError(f"Sharding.model_parallel must be at least 1, got {self.model_parallel}")
        for name, axis in self.rules:
            if name not in AXES:
                raise PadirError(f"Sharding.rules name axes of parameters, {', '.join(AXES)}, got {name!r}")
            if axis not in (DATA, MODEL):
                raise PadirError(f"Sharding.rules map to {DATA!r} or {MODEL!r}, got {axis!r} for {name!r}")

    def mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """The mesh [data, model] of these devices, or of all: neighbours in their order share the work on a row.

        Raises:
          PadirError: their number is no multiple of model_parallel, or the devices of a process do not go together.
        """
        devices = all_devices() if devices is None else list(devices)
        if len(devices) % self.model_parallel:
            divisors = [str(n) for n in range(1, len(devices) + 1) if len(devices) % n == 0]
            raise PadirError(
                f"Sharding.model_parallel must divide the number of devices, {len(devices)}, got"
                f" {self.model_parallel}: choose one of {', '.join(divisors)}"
            )
        grid = np.array(devices).reshape(-1, self.model_parallel)
        mesh = Mesh(grid, (DATA, MODEL), axis_types=(AxisType.Auto, AxisType.Auto))
        process_rows(mesh)
        return mesh

    def check(self, mesh: Mesh | AbstractMesh, model: Any, rows: int | None = None) -> None:
        """Checks that a model and batches divide.

        Args:
          model: a `ModelConfig`.
          rows: of a batch, over all devices; None: whatever is needed.

        Raises:
          PadirError: they do not.
        """
        data, parallel = mesh.shape[DATA], mesh.shape[MODEL]
        if rows is not None and rows % data:
            raise PadirError(
                f"Batching.rows must be a multiple of the devices that share them, {data} (of {mesh.size}, with"
                f" Sharding.model_parallel {parallel}), got {rows}"
            )
        for name, size in (("heads", model.heads), ("mlp", model.mlp)):
            if size % parallel:
                raise PadirError(
                    f"ModelConfig.{name} must be a multiple of Sharding.model_parallel, {parallel}, got {size}"
                )
        if self.shard_parameters and model.width % data:
            raise PadirError(
                f"with Sharding.shard_parameters ModelConfig.width must be a multiple of the devices that share"
                f" parameters, {data}, got {model.width}"
            )

    def spec(self, axes: Sequence[str], shape: Sequence[int], mesh: Mesh | AbstractMesh) -> PartitionSpec:
        """Over which mesh axes an array of these named axes is split.

        >>> mesh = AbstractMesh((2, 4), ("data", "model"))
        >>> tuple(Sharding(4, shard_parameters=True).spec(("vocab", "embed"), (32, 8), mesh))
        ('model', 'data')
        """
        rules = (*self.rules, ("embed", DATA)) if self.shard_parameters else self.rules
        entries: list[str | None] = []
        for name, size in zip(axes, shape, strict=True):
            fitting = (
                axis
                for ruled, axis in rules
                if ruled == name and axis not in entries and mesh.shape[axis] > 1 and size % mesh.shape[axis] == 0
            )
            entries.append(next(fitting, None))
        while entries and entries[-1] is None:
            entries.pop()
        return PartitionSpec(*entries)

    def of_params(self, axes: Any, params: Any, mesh: Mesh | AbstractMesh) -> Any:
        """The sharding of every parameter.

        Args:
          axes: a tree of the names of each one's axes (`padir.models.params.param_axes`).
          params: the parameters, or their shapes.
        """
        return jax.tree.map(
            lambda leaf, names: NamedSharding(mesh, self.spec(tuple(names), leaf.shape, mesh)), params, axes
        )


def of_state(state: Any, params: Any, shardings: Any, mesh: Mesh | AbstractMesh) -> Any:
    """The sharding of every array of a state that mirrors the parameters, such as an optimizer's.

    What has a parameter's shape lies where it does. What lacks one of its axes (Adafactor's row and column means) lies
    as the rest of it. All else is on every device.

    Args:
      state, params: arrays, or their shapes; the state has trees like that of the parameters somewhere in it.
      shardings: of the parameters.
    """
    shapes = [leaf.shape for leaf in jax.tree.leaves(params)]
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    known = dict(zip(paths, zip(shapes, jax.tree.leaves(shardings), strict=True), strict=True))

    def place(path, leaf):
        owner = next((known[path[i:]] for i in range(len(path)) if path[i:] in known), None)
        spec = PartitionSpec() if owner is None else _like(leaf.shape, owner[0], owner[1].spec, _fields(path))
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(place, state)


def _fields(path) -> list[str]:
    return [key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)]


def _like(shape, whole_shape, spec: PartitionSpec, fields: list[str]) -> PartitionSpec:
    """The part of a parameter's spec that an array of its shape, or of that less one axis, goes by."""
    if shape == whole_shape:
        return spec
    lacking = [i for i in range(len(whole_shape)) if whole_shape[:i] + whole_shape[i + 1 :] == shape]
    if not lacking:
        return PartitionSpec()
    # Of a square matrix optax's row means lack the last of the two axes, its column means the first.
    without = lacking[-1] if "v_row" in fields else lacking[0]
    entries = [*spec, *[None] * (len(whole_shape) - len(spec))]
    return PartitionSpec(*entries[:without], *entries[without + 1 :])


def process_rows(mesh: Mesh) -> tuple[int, int]:
    """This process's share of a batch's rows: (number, how many shares), as `make_loader` takes it.

    Raises:
      PadirError: a row would be shared by a part of a process's devices and other processes.
    """
    here = jax.process_index()
    held = [i for i, row in enumerate(mesh.devices) if any(device.process_index == here for device in row)]
    shares, rest = divmod(mesh.shape[DATA], len(held))
    if rest or held != list(range(held[0], held[0] + len(held))) or held[0] % len(held):
        local = sum(device.process_index == here for device in mesh.devices.flat)
        raise PadirError(
            f"Sharding.model_parallel must divide the devices of a process, {local}, or be a multiple of them, got"
            f" {mesh.shape[MODEL]}"
        )
    return held[0] // len(held), shares


def spread(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """An array that every process has, on the devices of all of them."""
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def on_host(tree: Any) -> Any:
    """Arrays as NumPy's; of those that lie on several processes' devices, every process gets all and must call it."""
    if all(_is_whole_here(leaf) for leaf in jax.tree.leaves(tree)):
        return jax.device_get(tree)
    leaves, structure = jax.tree.flatten(tree)
    settle(leaves)
    leaves = settle(_replicate(NamedSharding(leaves[0].sharding.mesh, PartitionSpec()))(leaves))
    return jax.tree.unflatten(structure, jax.device_get(leaves))


def _is_whole_here(leaf: Any) -> bool:
    """Whether this process's devices have all of an array, so that it need not ask the others."""
    return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated


def settle(tree: Any) -> Any:
    """Arrays as they are; where the devices are CPUs of several processes, when every device is done with them.

    Programs share a few threads there, and one that waits for another process holds its thread. So several programs at
    once may take all threads of two processes and wait for each other, for ever (docs/devices.md shows it).
    """
    if jax.process_count() > 1 and jax.default_backend() == "cpu":
        jax.block_until_ready(tree)
    return tree


@functools.cache
def _replicate(everywhere: NamedSharding) -> Callable[[list[jax.Array]], list[jax.Array]]:
    return jax.jit(lambda leaves: leaves, out_shardings=everywhere)


def keep_rows(x: jax.Array) -> jax.Array:
    """An array [B, ...] whose rows are to stay split over "data", on the mesh of `jax.set_mesh`, if there is one.

    Left to itself, XLA may gather the rows and split vectors instead, where parameters are split along them.
    """
    mesh = jax.sharding.get_abstract_mesh()
    automatic = [name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Auto]
    if DATA not in automatic or mesh.shape[DATA] == 1 or x.shape[0] % mesh.shape[DATA]:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(DATA))


def all_devices() -> list[Any]:
    """The devices of all processes, those of a process together: on a TPU pod their ids follow its topology."""
    return sorted(jax.devices(), key=lambda device: (device.process_index, device.id))


def mesh_of(tree: Any) -> Mesh | None:
    """The mesh of several devices that arrays lie on; None where they are on one, or on the host."""
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh) and DATA in sharding.mesh.axis_names:
            return sharding.mesh if sharding.mesh.size > 1 else None
        return None
    return None


def part_held(shardings: Any, shapes: Any) -> float:
    """The share of all numbers of a tree that one device holds."""
    sizes = [
        (np.prod(sharding.shard_shape(leaf.shape)), np.prod(leaf.shape))
        for sharding, leaf in zip(jax.tree.leaves(shardings), jax.tree.leaves(shapes), strict=True)
    ]
    held, whole = np.sum(sizes, axis=0)
    return float(held / whole)
