"""The programs of decoding as each platform gets them; lowering a program needs no GPU or TPU."""

import dataclasses
import functools

import jax
import jax.extend
import jax.numpy as jnp
import pytest
from support.tiny_model import TINY

from padir.decoding.autoregressive import write_targets
from padir.decoding.encoding import encode, rows_together
from padir.decoding.refine_batch import DraftInputs, RefineOptions, refine_drafts
from padir.decoding.search import Beam
from padir.models import Transformer
from padir.models.params import init_params
from padir.refinement import Padir, Uniform
from padir.text.ids import Ids

ROWS, LENGTH, LARGE = 32, 24, 4_096
OPTIONS = RefineOptions(max_target_length=LENGTH, strategy=Padir(), corruption=Uniform().full())


@functools.cache
def refinement(vocab_size, kept=None, positional=True):
    """The traced refinement of 32 drafts; with `kept`, by a shortlist of so many ids."""
    model = Transformer(dataclasses.replace(TINY, positional_attention=positional), Ids(vocab_size))
    params = jax.eval_shape(lambda: init_params(model, 0))
    ints = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)

    def memory(params, source_BS):
        encoded, cross_kv = encode(model, params, source_BS)
        return cross_kv, encoded.segment_BS, source_BS

    inputs = DraftInputs(
        *jax.eval_shape(memory, params, ints((ROWS, LENGTH))),
        length_BN=ints((ROWS, 1)),
        draw_BN=ints((ROWS, 1)),
        num_steps=ints(()),
        seed=ints(()),
        kept_v=None if kept is None else ints((kept,)),
    )
    return refine_drafts.trace(model, params, inputs, options=OPTIONS)


@functools.cache
def loops(platform, *sizes):
    return refinement(*sizes).lower(lowering_platforms=(platform,)).as_text().count("stablehlo.while")


def test_a_cpu_visits_a_large_vocabulary_block_by_block():
    assert loops("cpu", LARGE) == loops("cpu", 500) + 1 == loops("cpu", LARGE, 512) + 1


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_accelerators_visit_the_vocabulary_at_once_by_shortlist_or_not(platform):
    assert loops(platform, LARGE) == loops(platform, 500) == loops(platform, LARGE, 512)
    text = refinement(LARGE, 512).lower(lowering_platforms=(platform,)).as_text()
    assert f"tensor<{ROWS}x{LENGTH}x512xf32>" in text and f"{LARGE}xf32>" not in text.partition("stablehlo.while")[2]


def test_only_a_cpu_refines_rows_in_groups():
    assert [rows_together(LENGTH, platform) for platform in ("cpu", "cuda", "tpu")] == [5, None, None]


@pytest.mark.parametrize(("search", "sorting"), [(Beam(1), {"cpu"}), (Beam(4), {"cpu", "cuda"})])
def test_searches_sort_no_vocabulary_on_a_tpu(search, sorting):
    model = Transformer(dataclasses.replace(TINY, causal=True), Ids(500))
    params, limit_B = jax.eval_shape(lambda: init_params(model, 0)), jax.ShapeDtypeStruct((2,), jnp.int32)
    source_BS = jax.ShapeDtypeStruct((2, 16), jnp.int32)
    traced = write_targets.trace(model, params, source_BS, limit_B, search=search, max_length=16, seed=0)
    platforms = ("cpu", "cuda", "tpu")
    sorts = {each for each in platforms if "top_k" in traced.lower(lowering_platforms=(each,)).as_text()}
    assert sorts == sorting


def products(jaxpr, in_loop=False):
    """Number of matrix products inside of the loops of a jaxpr."""
    count = 0
    for each in jaxpr.eqns:
        inside = in_loop or each.primitive.name == "while"
        count += each.primitive.name == "dot_general" and in_loop
        count += sum(products(inner, inside) for inner in jax.extend.core.jaxprs_in_params(each.params))
    return count


def test_logits_between_positions_are_computed_before_the_first_pass():
    """In each pass, positional attention has values, their weighted sum and its projection: three products a layer."""
    found = [products(refinement(500, None, there).jaxpr.jaxpr) for there in (True, False)]
    assert found[0] == found[1] + 3
