import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.closeness import assert_close
from support.fakes import IDS
from support.refusals import refused
from support.tiny import decoded, pairs, rows_of, tiny_model

from padir.models import ModelConfig, Transformer, count_parameters, quantise
from padir.refinement.scores import best_tokens, forbid
from padir.text.ids import Ids, positions_in_segment

PAIRS = pairs([(4, 5), (6, 3), (3, 7)])
APART = rows_of([[pair] for pair in PAIRS], 8, 8)
PACKED = rows_of([PAIRS], 24, 20)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("num_segments", "packed"))
def forward(model, params, batch, num_segments=1, packed=False):
    variables = {"params": params}
    encoded = model.apply(
        variables, batch.source_BS, batch.source_segment_BS, num_segments=num_segments, method="encode"
    )
    cross_kv = model.apply(variables, encoded.memory_BSD, method="cross_kv")
    position_BL = positions_in_segment(batch.target_segment_BL) if packed else None
    length = batch.target_BL.shape[1]
    output = model.apply(
        variables,
        batch.target_BL,
        batch.target_segment_BL,
        cross_kv,
        encoded.segment_BS,
        positional=model.apply(variables, length, position_BL, method="positional"),
        method=decoded,
    )
    return output.logits_BLV, encoded


@pytest.mark.parametrize("sizes", [{}, {"positional_attention": False}, {"decontextualised": True}], ids=str)
def test_a_packed_row_gives_what_its_pairs_give_alone(sizes):
    model, params = tiny_model(**sizes)
    alone, encoded_alone = forward(model, params, APART)
    together, encoded_together = forward(model, params, PACKED, num_segments=4, packed=True)
    begin = 0
    for b, (_, target) in enumerate(PAIRS):
        assert_allclose(together[0, begin : begin + len(target)], alone[b, : len(target)], rtol=1e-4, atol=1e-4)
        begin += len(target)
        one, two = encoded_alone.length.logits_BGM, encoded_together.length.logits_BGM
        assert_allclose(two[0, b], one[b, 0], rtol=1e-4, atol=1e-4)


def test_hypotheses_share_the_memory_of_their_sentence():
    model, params = tiny_model()
    _, encoded = forward(model, params, APART)
    variables = {"params": params}
    cross_kv = model.apply(variables, encoded.memory_BSD, method="cross_kv")
    drafts_BNL = jax.random.randint(jax.random.key(1), (3, 2, 8), IDS.first_regular, IDS.end_regular)
    segment_BNL = jnp.repeat(APART.target_segment_BL[:, None], 2, 1)
    flat = (drafts_BNL.reshape(6, 8), segment_BNL.reshape(6, 8))

    @jax.jit
    def decode(cross_kv, segment_BS):
        return model.apply(variables, *flat, cross_kv, segment_BS, method=decoded).logits_BLV

    shared = decode(cross_kv, encoded.segment_BS)
    repeated_kv = jax.tree.map(lambda x: jnp.repeat(x, 2, 0), cross_kv)
    repeated_BS = jnp.repeat(encoded.segment_BS, 2, 0)
    repeated = decode(repeated_kv, repeated_BS)
    present = np.asarray(flat[1]) > 0
    assert_close(shared[present], repeated[present])


def test_a_row_longer_than_the_position_table_is_refused():
    model, params = tiny_model(max_length=6)
    with refused("most model's max_length 6, got 8"):
        forward(model, params, APART)


def test_bfloat16_is_close_and_gives_float32_logits():
    model, params = tiny_model()
    expected, _ = forward(model, params, APART)
    half = Transformer(dataclasses.replace(model.config, dtype="bfloat16"), IDS)
    logits, _ = forward(half, params, APART)
    assert logits.dtype == jnp.float32
    assert float(jnp.abs(logits - expected).mean()) < 0.05 * float(jnp.abs(expected).mean())


def test_the_paper_size_has_67_million_parameters():
    model = Transformer(ModelConfig(), Ids(32_100))
    ones = jnp.ones((1, 8), jnp.int32)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), ones, ones, ones, ones))
    assert round(count_parameters(shapes["params"]) / 1e6) == 67


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("tied", [True, False])
def test_the_best_tokens_are_found_without_logits(tied, quantised, monkeypatch):
    monkeypatch.setattr("padir.models.transformer.MOST_LOGITS", 0)
    ids = Ids(4_999)  # no multiple of a block
    model, params = tiny_model(ids=ids, tied=tied, encoder_layers=1, decoder_layers=1)
    params = quantise(params) if quantised else params

    def best(params, find_best):
        bound = model.bind({"params": params})
        encoded = bound.encode(APART.source_BS, APART.source_segment_BS)
        batch = APART.target_BL, APART.target_segment_BL, bound.cross_kv(encoded.memory_BSD), encoded.segment_BS
        output = decoded(bound, *batch, find_best=find_best)
        assert (output.found_BL is not None) == find_best
        return output.best() if find_best else best_tokens(forbid(output.logits_BLV, ids.special))

    programs = [jax.jit(best, static_argnums=1).lower(params, find_best).compile() for find_best in (True, False)]
    (token_BL, score_BL), (expected_BL, expected_score_BL) = (program(params) for program in programs)
    assert_array_equal(token_BL, expected_BL)
    assert_close(score_BL, expected_score_BL)
    assert ["f32[3,8,4999]" in program.as_text() for program in programs] == [False, True]
