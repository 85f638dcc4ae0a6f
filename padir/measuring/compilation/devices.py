"""Limits of TPUs and GPUs, from Google's pages (cloud.google.com/tpu/docs) and NVIDIA's data sheet of the H100."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import re
from typing import Any

from padir.errors import PadirError, first_line


@dataclasses.dataclass(frozen=True)
class Chip:
    """Limits of one device as JAX counts them: a core of a TPU v3, a whole chip of later TPUs.

    Attributes:
      memory: bytes of its memory (HBM).
      clock: cycles a second; None if not known.
      flops, bandwidth: peak FLOPs a second in bfloat16, and bytes a second between memory and chip; None if not known.
    """

    memory: float
    clock: float | None = None
    flops: float | None = None
    bandwidth: float | None = None


# By JAX's `device_kind`. The clocks of a v3 and a v4 are known. Each other one gives the peak of Google's page with the
# fewest matrix units, a power of two, that XLA's cycles for a product of 8,192 x 8,192 allow.
CHIPS = {
    "TPU v3": Chip(32e9 / 2, 940e6, 123e12 / 2, 900e9 / 2),
    "TPU v4": Chip(32e9, 1_050e6, 275e12, 1_228e9),
    "TPU v5 lite": Chip(16e9, 1_503e6, 197e12, 819e9),
    "TPU v5": Chip(95e9, 1_751e6, 459e12, 2_765e9),
    "TPU v6 lite": Chip(32e9, 1_751e6, 918e12, 1_640e9),
    "NVIDIA H100 80GB HBM3": Chip(80e9, None, 989e12, 3_350e9),
}

EXAMPLES = ("v3:2x2", "v4:2x2x1", "v5e:2x4", "v5p:2x2x1", "v6e:2x4", "h100:8")
# libtpu would ask a TPU's host for these.
_VARIABLES = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else one process at a time could use it
}
_OPTIONS: dict[str, dict[str, Any]] = {"v4": {"chip_config_name": "megacore"}}  # both cores as one device, as in use

# What XLA has to know of an H100 SXM with 80 GB (openxla/xla, xla/backends/gpu/target_config/specs/h100_sxm.txtpb).
_H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 }
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 device_memory_size: 84942979072
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
_MOST_CHIPS = 10_000  # a pod has fewer, and libtpu would list them all
_TPU = re.compile(r"\w+:(?P<sizes>\d+(x\d+)*)")
_GPU = re.compile(r"h100:(?P<count>[1-9]\d*)")
_PLUGIN = "pip install --no-deps --target cuda jax-cuda13-plugin jax-cuda13-pjrt, and set PYTHONPATH=cuda"


@dataclasses.dataclass(frozen=True)
class Topology:
    """The devices of a machine or pod.

    Attributes:
      name: its name, such as "v3:2x2".
      devices: its devices, in JAX's order; a program can be compiled for them but cannot run.
      chip: memory and speed of a device; None if they are not known.
    """

    name: str
    devices: tuple[Any, ...]
    chip: Chip | None

    @staticmethod
    def of(name: str) -> Topology:
        """Describes TPUs by their kind and their arrangement, as libtpu spells it.

        `v3:2x2` is a host of a TPU v3 (8 cores on 4 chips), `v4:2x2x1` a host of a v4 (4 chips), `v5e:2x4` 8 chips of a
        v5e, and `v3:32x32` a whole pod of 2,048 cores. The process needs no TPU, and computes everything else on its
        own devices. libtpu reads its environment variables once, so nothing else may have loaded it before. `h100:8` is
        one host of 8 GPUs; the CUDA plugin must have the version of JAX. `here` is this machine (`Topology.here`).

        Raises:
          PadirError: libtpu or the CUDA plugin is not installed, or does not know the name.
        """
        if name == "here":
            return Topology.here()
        if gpu := _GPU.fullmatch(name):
            return _gpus(name, f"1x1x{gpu['count']}")
        tpu = _TPU.fullmatch(name)  # libtpu would take devices of its own choice for ""
        if tpu is None or not 1 <= math.prod(map(int, tpu["sizes"].split("x"))) <= _MOST_CHIPS:
            expected = f"a kind and an arrangement of at most {_MOST_CHIPS:,} chips, such as {', '.join(EXAMPLES)}"
            raise PadirError("topology", expected, name)
        if importlib.util.find_spec("libtpu") is None:
            raise PadirError("compiling for TPUs needs libtpu, which is not installed: pip install 'padir[tpu]'")
        from jax.experimental import topologies

        for variable, value in _VARIABLES.items():
            os.environ.setdefault(variable, value)
        options = _OPTIONS.get(name.partition(":")[0], {})
        try:
            devices = topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
        except Exception as error:  # JAX and libtpu raise various exceptions
            raise PadirError(
                f"libtpu has no topology {name!r} ({first_line(error)})",
                remedy=f"give a kind and an arrangement, such as {', '.join(EXAMPLES)}",
            ) from None
        return Topology(name, tuple(devices), CHIPS.get(devices[0].device_kind))

    @staticmethod
    def here() -> Topology:
        """The devices of this process, so that estimates can be compared with times."""
        import jax

        devices = jax.devices()
        return Topology(devices[0].platform, tuple(devices), CHIPS.get(devices[0].device_kind))


def _gpus(name: str, arrangement: str) -> Topology:
    """H100 GPUs, arranged as PARTITIONSxHOSTSxGPUS."""
    import jax
    from jax.experimental import topologies

    jax.config.update("jax_platforms", "cpu")  # all else stays on the CPU, and libtpu looks for no TPU
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # the plugin would load libraries that it never uses
    try:
        devices = topologies.get_topology_desc(
            platform="cuda", topology_name=name, target_config=_H100, topology=arrangement
        ).devices
    except Exception as error:  # JAX and the plugin raise various exceptions
        raise PadirError(f"XLA cannot compile for {name!r} here ({first_line(error)})", remedy=_PLUGIN) from None
    return Topology(name, tuple(devices), CHIPS.get(devices[0].device_kind))
