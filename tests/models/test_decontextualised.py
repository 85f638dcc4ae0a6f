"""DisCo's decoder: no output depends on its own input token, and nothing that is masked is seen by anyone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.fakes import IDS, keys, moody, stepped
from support.refusals import refused
from support.tiny import decoded, pairs, rows_of, tiny_model
from support.tiny_model import random_translator

from padir.models.config import ModelConfig
from padir.refinement import STRATEGIES, Mask, draft, get_strategy, restore, restrict_visibility
from padir.refinement.scores import Output, forbid
from padir.text.ids import positions_in_segment

PAIRS = pairs([(4, 5), (6, 3), (3, 8)])
PACKED = rows_of([PAIRS], 24, 20)
tiny_disco = functools.partial(tiny_model, decontextualised=True)


@functools.partial(jax.jit, static_argnums=0, static_argnames="packed")
def decode(model, params, batch, tokens_BL, visible_BLL=None, packed=False):
    """Logits of some tokens in the place of the batch's target, the source being that of the batch's first row."""
    bound, rows = model.bind({"params": params}), len(tokens_BL)
    source_BS, segment_BS, segment_BL = (
        jnp.repeat(x[:1], rows, 0) for x in (batch.source_BS, batch.source_segment_BS, batch.target_segment_BL)
    )
    encoded = bound.encode(source_BS, segment_BS, num_segments=3 if packed else 1)
    position_BL = jnp.where(segment_BL > 0, positions_in_segment(segment_BL), 0) if packed else None
    positional = bound.positional(tokens_BL.shape[1], position_BL)
    kv = bound.cross_kv(encoded.memory_BSD)
    return decoded(
        bound, tokens_BL, segment_BL, kv, encoded.segment_BS, positional=positional, visible_BLL=visible_BLL
    ).logits_BLV


@pytest.mark.parametrize("visibility", ["all", "some"])
def test_no_output_depends_on_its_own_token(visibility):
    model, params = tiny_disco(decoder_layers=3)  # through others' hidden states it would take two
    length = PACKED.target_BL.shape[1]
    target_BL = jnp.repeat(PACKED.target_BL, length, 0)
    changed_BL = target_BL + jnp.eye(length, dtype=jnp.int32)  # row n has another token at position n
    visible_BLL = None
    if visibility == "some":
        visible_BLL = jnp.repeat(jax.random.bernoulli(jax.random.key(0), 0.5, (1, length, length)), length, 0)
    before, after = (decode(model, params, PACKED, t, visible_BLL, packed=True) for t in (target_BL, changed_BL))
    same_LL = (before == after).all(-1)  # [changed position, position]: to the bit
    assert same_LL.diagonal().all()
    segment_L = np.asarray(PACKED.target_segment_BL[0])
    sees_LL = (segment_L[:, None] == segment_L) & ~np.eye(length, dtype=bool)  # [position, changed position]
    if visible_BLL is not None:
        sees_LL &= np.asarray(visible_BLL[0])
    assert_array_equal(same_LL[segment_L > 0].T, ~sees_LL[:, segment_L > 0])


def test_an_ordinary_decoder_depends_on_its_own_token():
    model, params = tiny_model(positional_attention=False)
    changed_BL = PACKED.target_BL.at[0, 1].add(1)
    before, after = (decode(model, params, PACKED, t, packed=True) for t in (PACKED.target_BL, changed_BL))
    assert (before[0, 1] != after[0, 1]).any()


def test_a_position_that_sees_nothing_is_finite_and_knows_no_token():
    model, params = tiny_disco()
    batch = rows_of([[PAIRS[0]]], 8, 8)
    nothing_BLL = jnp.zeros((1, 8, 8), bool)
    one = decode(model, params, batch, batch.target_BL, nothing_BLL)
    two = decode(model, params, batch, jnp.full_like(batch.target_BL, IDS.mask), nothing_BLL)
    assert np.isfinite(one).all()
    assert_array_equal(one[:, :5], two[:, :5])
    assert (one[0, 0] != one[0, 1]).any()  # it still knows where it is

    def total(params):
        return jnp.square(decode(model, params, batch, batch.target_BL, nothing_BLL)).sum()

    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(jax.jit(jax.grad(total))(params)))


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_shows_only_written_positions(name):
    start = draft(keys(3), jnp.array([7, 4, 2]), 8, Mask(), IDS)
    canvas, strategy = restrict_visibility(start, start.editable_BL), get_strategy(name)
    logits_BLV = moody()(canvas.replace(visible_BLL=None)).at[:, :, 20].add(6.0)  # most of them stutter
    judges = getattr(strategy, "head_judges", "token")
    output = Output(forbid(logits_BLV, IDS.special), jnp.zeros((3, 8)), judges=judges)
    step_fn = jax.jit(lambda canvas, memories, step: stepped(strategy, canvas, output, memories, step=step))
    memories = strategy.init(keys(3), canvas), strategy.stop.init(canvas)
    for step in range(4):
        after, memories = step_fn(canvas, memories, step)
        canvas = restore(after, canvas.done_BL, canvas)
        seen_BL = np.asarray(
            (canvas.visible_BLL & start.segment_BL[:, :, None].astype(bool)).any(1) & canvas.editable_BL
        )
        assert not (np.asarray(canvas.tokens_BL)[seen_BL] == IDS.mask).any(), f"step {step}"
        assert not np.asarray(canvas.visible_BLL)[:, np.arange(8), np.arange(8)].any()
        assert_array_equal(canvas.visible_BLL[0, :6, 6], True)  # EOS is always seen
    assert not (canvas.tokens_BL == IDS.mask).any()


def test_translation_steps_see_the_tokens_written_before(tokenizer):
    translator = random_translator(tokenizer, corruption=Mask(rate=0.0), decontextualised=True)
    one, many = (
        translator.translate(
            ["eins zwei drei"], num_steps=n, strategy=get_strategy("mask_predict"), target_lengths=[12]
        )[0]
        for n in (1, 6)
    )
    assert one.passes == 1 and many.passes == 6
    assert one.text != many.text


def test_the_config_has_no_positional_attention_and_no_rejecter():
    assert not ModelConfig(decontextualised=True, positional_attention=True).positional_attention
    with refused("decontextualised=True excludes rejecter=True"):
        ModelConfig(decontextualised=True, rejecter=True)
    assert ModelConfig(decontextualised=True, rejecter=True, rejecter_judges="prediction").rejecter


def test_visibility_is_refused_by_an_ordinary_decoder():
    model, params = tiny_model()
    with refused("works only decontextualised=True"):
        decode(model, params, PACKED, PACKED.target_BL, jnp.ones((1, 20, 20), bool), packed=True)
