"""Memory, arithmetic and bandwidth of TPUs and GPUs: Google's pages about each TPU (cloud.google.com/tpu/docs)."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chip:
    """Limits of one device as JAX counts them: a core of a TPU v3, a whole chip of later TPUs.

    Attributes:
      memory: bytes of its memory (HBM).
      flops: bfloat16 FLOPs a second at most; a multiplication and an addition count as two.
      bandwidth: bytes a second that its memory reads or writes at most.
      flops_per_cycle: bfloat16 FLOPs of its matrix units in one cycle; None if not known.
    """

    memory: float
    flops: float
    bandwidth: float
    flops_per_cycle: float | None = None

    @property
    def clock(self) -> float | None:
        """Cycles a second at which the matrix units reach `flops`; None if not known."""
        return None if self.flops_per_cycle is None else self.flops / self.flops_per_cycle


_UNIT = 2.0 * 128**2  # FLOPs that a matrix unit of 128 × 128 does in a cycle

# By JAX's `device_kind`. The documentation gives the two cores of a TPU v3 together, 4 matrix units a chip for a v3 and
# 8 for a v4. The numbers for the others are the fewest, as powers of two, with which XLA's cycles for a product of
# matrices of 8,192 × 8,192 are possible.
CHIPS = {
    "TPU v3": Chip(32e9 / 2, 123e12 / 2, 900e9 / 2, 2 * _UNIT),
    "TPU v4": Chip(32e9, 275e12, 1200e9, 8 * _UNIT),
    "TPU v5 lite": Chip(16e9, 197e12, 819e9, 4 * _UNIT),
    "TPU v5": Chip(95e9, 459e12, 2765e9, 8 * _UNIT),
    "TPU v6 lite": Chip(32e9, 918e12, 1638e9, 16 * _UNIT),
    # XLA's own description (openxla/xla, xla/backends/gpu/target_config/specs/h100_sxm.txtpb).
    "NVIDIA H100 80GB HBM3": Chip(80e9, 989e12, 3352e9),
}
