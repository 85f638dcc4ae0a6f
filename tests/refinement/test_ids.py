"""Canvases of decoders whose ids are not T5's: a mask inside the vocabulary, 0 as a token, no EOS, listed noise."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.fakes import given, keys
from support.refusals import refused

from padir.refinement import (
    STRATEGIES,
    DecoderIds,
    Mask,
    MaskRange,
    Padir,
    Renoise,
    Uniform,
    draft,
    hold,
    refine,
    steps,
    until,
)
from padir.refinement.scores import Output
from padir.refinement.segments import is_noise
from padir.text.ids import Ids

V = 24
WANTED = [0, 2, 19, 20, 5, 1]
T5 = Ids(V, num_sentinels=4, first_regular=3)


def wants(tokens):
    return lambda canvas: jnp.broadcast_to(9 * jax.nn.one_hot(jnp.array(tokens), V), (*canvas.tokens_BL.shape, V))


def refined(ids, corruption, strategy, tokens=WANTED):
    canvas = draft(keys(1), jnp.array([6]), 6, corruption, ids)
    return refine(keys(1), canvas, wants(tokens), strategy, num_steps=6).tokens_BL[0].tolist()


OF_MASKS = [(DecoderIds(vocab_size=V, mask_id=13, eos=eos), Mask()) for eos in (None, 1)]
OF_NOISE = [
    (DecoderIds(vocab_size=V, random_ids=range(V)), Uniform()),
    (DecoderIds(vocab_size=V, random_ids=(3, 9, 21), banned=(4,), padding=23), Uniform()),
]
FREE = [name for name, cls in STRATEGIES.items() if not getattr(cls, "needs", frozenset())]


@pytest.mark.parametrize("number, name", [*enumerate(FREE)])
def test_any_strategy_writes_the_ids_that_the_decoder_wants(number, name):
    """On one canvas of masks and one of noise, which take turns."""
    strategy = STRATEGIES[name]()
    if getattr(strategy, "temperature", 0):
        strategy = STRATEGIES[name](temperature=0.0)
    for ids, corruption in (OF_MASKS[number % 2], OF_NOISE[number // 2 % 2]):
        assert refined(ids, corruption, strategy) == WANTED


def test_a_banned_id_and_a_mask_are_never_written():
    ids = DecoderIds(vocab_size=V, mask_id=20, banned=(2,), eos=1)
    assert not {2, 20} & {*refined(ids, Mask(), Padir())}
    assert refined(dataclasses.replace(ids, banned=()), Mask(), Padir())[:3] == [0, 2, 19]


class TestOtherIds:
    def test_a_decoder_of_other_ids_than_the_canvas_is_refused(self):
        with refused("never be written at 3 of 5 positions DecoderIds"):
            refined(T5, Uniform(), Padir())
        with refused("never be written at 3 of 5 positions"):
            [*steps(keys(1), draft(keys(1), jnp.array([6]), 6, Uniform(), T5), wants(WANTED), Padir(), num_steps=2)]

    def test_half_of_the_positions_are_not_most(self):
        assert refined(T5, Uniform(), Padir(), [0, 2, 19, 9, 5, 1])[2:] == [19, 9, 5, 1]

    def test_later_passes_do_not_count(self):
        later = {7: WANTED}

        def decoder(canvas):
            first = (canvas.tokens_BL[0, 0] != 7).astype(int)
            return 9 * jax.nn.one_hot(jnp.where(first, 7, jnp.array(later[7])), V)[None]

        canvas = draft(keys(1), jnp.array([6]), 6, Uniform(), T5)
        canvas = canvas.replace(tokens_BL=canvas.tokens_BL.at[0, 0].set(8))
        assert refine(keys(1), canvas, decoder, Padir(), num_steps=2).tokens_BL[0, 2] == 19


class TestDecoderIds:
    def test_the_noise_is_uniform_over_the_ids_that_may_be_written(self):
        ids = DecoderIds(vocab_size=V, random_ids=range(4, 12), mask_id=6, banned=(9,))
        drawn = np.asarray(draft(keys(500), jnp.full(500, 6), 6, Uniform(), ids).tokens_BL)
        kinds, counts = np.unique(drawn, return_counts=True)
        assert kinds.tolist() == [4, 5, 7, 8, 10, 11] == [*ids.noise]
        assert ((counts - 500) ** 2 / 500).sum() < 20.5  # chi-squared, 5 degrees of freedom: p = 0.001
        assert_array_equal(np.isin(np.arange(V), kinds), is_noise(jnp.arange(V)[None], ids)[0])

    def test_ids_in_a_row_are_drawn_as_in_t5s_layout(self):
        ids = DecoderIds(vocab_size=V, random_ids=range(V), banned=(0, 1, 2, *range(20, V)))
        drafts = [draft(keys(9), jnp.full(9, 6), 6, Uniform(), each).tokens_BL[:, :5] for each in (ids, T5)]
        assert_array_equal(*drafts)

    def test_renoise_draws_listed_ids_and_masks_stay_masks(self):
        listed = DecoderIds(vocab_size=V, random_ids=(3, 9, 21))
        unsure = lambda canvas: jnp.zeros((*canvas.tokens_BL.shape, V))  # noqa: E731
        for ids, corruption in (
            (listed, Uniform()),
            (DecoderIds(vocab_size=V, mask_id=13, random_ids=range(V)), Mask()),
        ):
            canvas = draft(keys(20), jnp.full(20, 6), 6, corruption, ids)
            strategy = Renoise(gamma=1e-3)
            proposal = strategy.step(keys(20), canvas, Output(unsure(canvas)), (), step=0, num_steps=4)
            noise = np.asarray(proposal.next.tokens_BL)[np.asarray(proposal.next.masked_BL)]
            assert {*noise.tolist()} == ({3, 9, 21} if ids is listed else {13})

    def test_without_eos_every_position_is_editable(self):
        for eos, editable in ((None, 4), (5, 3)):
            ids = DecoderIds(vocab_size=V, mask_id=13, eos=eos, padding=7)
            made = draft(keys(1), jnp.array([4]), 6, Mask(), ids)
            assert made.editable_BL.sum() == editable
            assert made.tokens_BL[0].tolist() == [13, 13, 13, 13 if eos is None else 5, 7, 7]

    def test_wrong_ids_are_refused(self):
        for name, settings in (
            ("mask_id", {"mask_id": V}),
            ("eos", {"eos": -1}),
            ("padding", {"padding": V}),
            ("banned", {"banned": (3, V)}),
            ("random_ids", {"random_ids": range(V + 1)}),
            ("random_ids", {"random_ids": (-1,)}),
            ("mask_id", {"mask_id": 3, "eos": 3}),
            ("banned", {"banned": tuple(range(V))}),
        ):
            with refused(f"DecoderIds.{name}"):
                DecoderIds(vocab_size=V, **settings)

    def test_what_the_ids_lack_is_named(self):
        for corruption, ids, what in (
            (Mask(), DecoderIds(vocab_size=V, random_ids=range(V)), "no mask"),
            (MaskRange(), DecoderIds(vocab_size=V, mask_id=3), "no mask for each position"),
            (Uniform(), DecoderIds(vocab_size=V, mask_id=3), "none to draw at random"),
        ):
            with refused(what):
                draft(keys(1), jnp.array([4]), 4, corruption, ids)


class TestHoldAndUntil:
    IDS = DecoderIds(vocab_size=V, mask_id=13)

    def test_id_0_can_be_held(self):
        canvas = hold(
            draft(keys(1), jnp.array([6]), 6, Mask(), self.IDS), jnp.arange(6)[None] == 2, jnp.zeros((1, 6), int)
        )
        assert refine(keys(1), canvas, wants(WANTED), Padir(), num_steps=3).tokens_BL[0].tolist() == [0, 2, 0, 20, 5, 1]

    def test_until_takes_the_first_end_that_is_not_held_of_each_segment(self):
        tokens_BL = jnp.array([[5, 4, 5, 6, 4, 4, 5, 0]])
        segment_BL = jnp.array([[1, 1, 1, 1, 2, 2, 2, 0]])
        canvas = hold(given(tokens_BL, segment_BL=segment_BL, ids=self.IDS), jnp.arange(8)[None] == 0, tokens_BL)
        assert until(canvas, 5)[0].tolist() == [True, True, True, False, True, True, True, False]
        assert until(canvas, 4)[0].tolist() == [True, True, False, False, True, False, False, False]
        assert until(canvas, 9)[0].tolist() == [True] * 7 + [False]
