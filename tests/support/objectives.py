"""The objective that each file in configs/objective stands for, and the loss of a batch as one program."""

import functools

import jax

from padir.refinement import Cmlm, EasyFirst, Mask, MaskPredict, RandomVisible, UniformRate
from padir.refinement.transitions import Glat, Lifted, SampledUnroll, Smart
from padir.training.objective import Objective

EXPECTED = {
    "padir": Objective(),
    "one_stage": Objective(stage_weights=("all",)),
    "cmlm": Objective(Cmlm(), Lifted(MaskPredict()), ("masked",)),
    "mdlm": Objective(Cmlm(), Lifted(MaskPredict()), ("inverse",)),
    "rdm": Objective(Cmlm(), Lifted(MaskPredict()), ("falling",)),
    "smart": Objective(Cmlm(), Smart(), ("none", "all")),
    "sundae": Objective(UniformRate(), SampledUnroll(), ("all", "all")),
    "disco": Objective(Mask(0.0), Lifted(EasyFirst()), ("all",), RandomVisible()),
    "glat": Objective(Mask(1.0), Glat(), ("none", "noised")),
    "rejecter": Objective(),
}


@functools.partial(jax.jit, static_argnames=("model", "objective", "dropout", "num_segments"))
def run(model, params, batch, objective, num_segments=1, dropout=False, key=0):
    """(loss, sums) of an objective; `key` is a seed."""
    segments = num_segments if num_segments > 1 else None
    return objective(jax.random.key(key), params, batch, model=model, num_segments=segments, dropout=dropout)
