"""The objective that each file in configs/objective stands for, and the loss of a batch as one program."""

import functools

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from padir.refinement import Cmlm, EasyFirst, Mask, MaskPredict, RandomVisible, UniformRate
from padir.refinement.transitions import FromStrategy, Glat, SampledUnroll, Smart
from padir.training.objective import Objective

EXPECTED = {
    "padir": Objective(),
    "one_stage": Objective(stage_weights=("all",)),
    "cmlm": Objective(Cmlm(), FromStrategy(MaskPredict()), ("masked",)),
    "mdlm": Objective(Cmlm(), FromStrategy(MaskPredict()), ("inverse",)),
    "rdm": Objective(Cmlm(), FromStrategy(MaskPredict()), ("falling",)),
    "smart": Objective(Cmlm(), Smart(), ("none", "all")),
    "sundae": Objective(UniformRate(), SampledUnroll(), ("all", "all")),
    "disco": Objective(Mask(0.0), FromStrategy(EasyFirst()), ("all",), RandomVisible()),
    "glat": Objective(Mask(1.0), Glat(), ("none", "noised")),
    "rejecter": Objective(),
}


@functools.partial(jax.jit, static_argnames=("model", "objective", "dropout", "num_segments"))
def run(model, params, batch, objective, num_segments=1, dropout=False, key=0):
    """(loss, sums) of an objective; `key` is a seed."""
    segments = num_segments if num_segments > 1 else None
    return objective(jax.random.key(key), params, batch, model=model, num_segments=segments, dropout=dropout)


def check_packing(model, params, objective, apart, packed):
    """Three pairs have the same loss, sums and gradients in rows of their own and in one row; returns the sums."""

    def of(batch, num_segments):
        return jax.value_and_grad(lambda params: run(model, params, batch, objective, num_segments), has_aux=True)(
            params
        )

    ((one, sums_one), grad_one), ((two, sums_two), grad_two) = of(apart, 1), of(packed, 3)
    np.testing.assert_allclose(one, two, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(sums_one), jax.tree.leaves(sums_two), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5)
    flat = flax.traverse_util.flatten_dict(grad_two, sep="/")
    for name, grad in flax.traverse_util.flatten_dict(grad_one, sep="/").items():
        assert float(jnp.abs(grad).max()) > 0, name
        np.testing.assert_allclose(grad, flat[name], rtol=1e-3, atol=2e-3, err_msg=name)
    return sums_one
