"""Parameters in the type of the model's activations: the same results, and nothing left to convert in a loop."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from support.tiny import decoded, drawn_params
from support.tiny_model import TINY, random_translator

from padir.decoding import Beam, autoregressive, encoding, refine_batch
from padir.models import ModelConfig, Transformer
from padir.models.params import in_model_dtype
from padir.refinement import Padir, Uniform
from padir.text.ids import Ids

IDS = Ids(vocab_size=90, num_sentinels=10, first_regular=3)
BFLOAT16 = dataclasses.replace(TINY, dtype="bfloat16")
SOURCE_BS = jnp.array([[11, 12, 13, 1], [14, 15, 1, 0]])
KINDS = {
    "paper": {},
    "gated": {"mlp_activations": ("gelu", "linear")},
    "untied": {"tied": False},
    "rejecter": {"rejecter": True},
    "decontextualised": {"decontextualised": True},
    "causal": {"causal": True},
}


def outputs(model, params):
    """Whatever the model computes of a batch."""
    bound = model.bind({"params": params})
    encoded = bound.encode(SOURCE_BS, (SOURCE_BS > 0).astype(jnp.int32))
    cross_kv = bound.cross_kv(encoded.memory_BSD)
    return encoded, decoded(bound, SOURCE_BS, (SOURCE_BS > 0).astype(jnp.int32), cross_kv, encoded.segment_BS)


@pytest.mark.parametrize("sizes", KINDS.values(), ids=KINDS)
def test_results_are_the_same_to_the_last_bit(sizes):
    model = Transformer(dataclasses.replace(BFLOAT16, **sizes), IDS)
    params = drawn_params(model)
    converted = in_model_dtype(model.config, params)
    assert params["token_embedder"]["embedding"].dtype == jnp.float32
    assert converted["token_embedder"]["embedding"].dtype == jnp.bfloat16
    expected, found = (jax.tree.leaves(outputs(model, each)) for each in (params, converted))
    assert all((a == b).all() for a, b in zip(expected, found, strict=True))


def test_a_float32_model_keeps_its_parameters():
    params = drawn_params(Transformer(TINY, IDS))
    assert all(a is b for a, b in zip(*map(jax.tree.leaves, (params, in_model_dtype(TINY, params))), strict=True))


def test_eight_bit_weights_stay():
    params = {"token_embedder": {"embedding": jnp.ones((3, 2), jnp.int8), "embedding_scale": jnp.ones(3)}}
    kept = in_model_dtype(ModelConfig(dtype="bfloat16"), params)["token_embedder"]
    assert (kept["embedding"].dtype, kept["embedding_scale"].dtype) == (jnp.int8, jnp.float32)


def test_a_translator_decodes_with_kernels_that_are_converted_once(tokenizer):
    translator = random_translator(tokenizer, dtype="bfloat16")
    loaded = translator.loaded
    expected = jax.tree.leaves(in_model_dtype(translator.card.config, loaded.params))
    found = jax.tree.leaves(loaded.converted)
    assert all((a == b).all() and a.dtype == b.dtype for a, b in zip(expected, found, strict=True))
    assert loaded.converted is loaded.converted
    assert loaded.params["token_embedder"]["embedding"].dtype == jnp.float32  # as `save` and int8 need it


@pytest.mark.parametrize("causal", [False, True])
def test_no_loop_converts_a_kernel(causal):
    """A loop that did would read the float32 kernels at every pass."""
    model = Transformer(dataclasses.replace(BFLOAT16, causal=causal), IDS)
    params = drawn_params(model)
    if causal:
        program = functools.partial(autoregressive.write_targets, model, search=Beam(1), max_length=8, seed=0)
        jaxpr = jax.make_jaxpr(program)(params, SOURCE_BS, jnp.array([8, 8]))
    else:
        options = refine_batch.RefineOptions(max_target_length=8, strategy=Padir(), corruption=Uniform().full())
        program = functools.partial(refine_batch.refine_drafts, model, options=options)
        encoded, cross_kv = encoding.encode(model, params, SOURCE_BS)
        lengths = jnp.array([[8], [6]])
        inputs = refine_batch.DraftInputs(cross_kv, encoded.segment_BS, SOURCE_BS, lengths, 0 * lengths, num_steps=2)
        jaxpr = jax.make_jaxpr(program)(params, inputs)
    shapes = {leaf.shape for path, leaf in jax.tree.leaves_with_path(params) if path[-1].key in ("kernel", "embedding")}
    inside = [
        each for loop in equations(jaxpr, "while") for each in equations(loop.params["body_jaxpr"], "dot_general")
    ]
    assert len(inside) > 5
    converted = [
        each.invars[0].aval
        for loop in equations(jaxpr, "while")
        for each in equations(loop.params["body_jaxpr"], "convert_element_type")
        if each.invars[0].aval.shape in shapes and each.invars[0].aval.dtype == jnp.float32
    ]
    assert not converted


def equations(jaxpr, name):
    """All equations of a primitive, wherever in a program."""
    for each in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if each.primitive.name == name:
            yield each
        for value in each.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                    yield from equations(inner, name)
