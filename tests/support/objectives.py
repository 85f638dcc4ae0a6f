"""The objective that each file in configs/objective stands for, and the loss of a batch as one program."""

import flax.traverse_util
import jax
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


def loss_of(model, params, batch, objective, num_segments=1, dropout=False, key=0):
    """(loss, sums) of an objective; `key` is a seed."""
    segments = num_segments if num_segments > 1 else None
    return objective(jax.random.key(key), params, batch, model=model, num_segments=segments, dropout=dropout)


STATIC = ("model", "objective", "dropout", "num_segments")
run = jax.jit(loss_of, static_argnames=STATIC)
# ((loss, sums), gradient). The gradient of `run` would be two programs.
gradient = jax.jit(jax.value_and_grad(loss_of, argnums=1, has_aux=True), static_argnames=STATIC)


def check_packing(model, params, objective, apart, packed):
    """Three pairs have the same loss, sums and gradients in rows of their own and in one row; returns the sums."""
    (one, sums_one), grad_one = gradient(model, params, apart, objective)
    (two, sums_two), grad_two = gradient(model, params, packed, objective, 3)
    np.testing.assert_allclose(one, two, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(sums_one), jax.tree.leaves(sums_two), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5)
    flat = flax.traverse_util.flatten_dict(grad_two, sep="/")
    for name, grad in flax.traverse_util.flatten_dict(grad_one, sep="/").items():
        assert np.abs(grad).max() > 0, name
        np.testing.assert_allclose(grad, flat[name], rtol=1e-3, atol=2e-3, err_msg=name)
    return sums_one
