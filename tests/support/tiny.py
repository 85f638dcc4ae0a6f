"""A model of a few thousand parameters and batches for it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from support.fakes import IDS

from padir.models import ModelConfig, Transformer, init_params
from padir.training.batch import Batch


def tiny_model(ids=IDS, **changes):
    """A Transformer of width 16 and its parameters, in a tree that the test may change."""
    settings = dict(width=16, heads=2, head_dim=8, mlp=32, encoder_layers=2, decoder_layers=2, max_length=32)
    model = Transformer(ModelConfig(**{**settings, **changes}), ids)
    # Untrained attention hardly tells positions apart: larger kernels make leaks visible.
    return model, jax.tree.map(lambda x: 3.0 * x if x.ndim == 2 else x, _initial(model))


@functools.cache
def _initial(model):
    return drawn_params(model)


def drawn_params(model, seed=0):
    """Parameters spread as those of `init_params`, drawn by NumPy: compiling the initialisers takes seconds a model."""
    rng = np.random.RandomState(seed)

    def draw(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if leaf.ndim == 1:
            return jnp.full(leaf.shape, 0.0 if name.endswith("bias") else 1.0, jnp.float32)
        spread = {"embedding": 1.0, "rel_embedding": 0.25}.get(name.split("/")[-1], leaf.shape[0] ** -0.5)
        if "/query/" in name:
            spread *= model.config.head_dim**-0.5
        return jnp.asarray(rng.normal(0, spread, leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, jax.eval_shape(lambda: init_params(model, seed=0)))


def decoded(bound, tokens_BL, segment_BL, *memory, find_best=False, **further):
    """The output of either kind of decoder, which reads a draft or a target."""
    states = bound.target_states if bound.config.causal else bound.draft_states
    return bound.output(states(tokens_BL, segment_BL, *memory, **further), segment_BL > 0, find_best=find_best)


def one_layer_model(**changes):
    """`tiny_model` with one layer in encoder and decoder, which compiles in half the time."""
    return tiny_model(encoder_layers=1, decoder_layers=1, **changes)


def pairs(lengths, seed=0, length_token=True):
    """Random (source, target) token lists: sources [LENGTH] + pieces + EOS, targets pieces + EOS."""
    rng = np.random.RandomState(seed)

    def pieces(n):
        return rng.randint(IDS.first_regular, IDS.end_regular, n).tolist()

    prefix = [IDS.length] if length_token else []
    return [([*prefix, *pieces(s), IDS.eos], [*pieces(t), IDS.eos]) for s, t in lengths]


def rows_of(rows, source_length, target_length):
    """A batch of rows, each a list of (source, target) pairs."""
    arrays = np.zeros((4, len(rows), max(source_length, target_length)), np.int32)
    for b, row in enumerate(rows):
        s = t = 0
        for segment, (source, target) in enumerate(row, 1):
            arrays[0, b, s : s + len(source)], arrays[1, b, s : s + len(source)] = source, segment
            arrays[2, b, t : t + len(target)], arrays[3, b, t : t + len(target)] = target, segment
            s, t = s + len(source), t + len(target)
    source, source_segment, target, target_segment = jnp.asarray(arrays)
    return Batch(
        source[:, :source_length],
        source_segment[:, :source_length],
        target[:, :target_length],
        target_segment[:, :target_length],
    )
