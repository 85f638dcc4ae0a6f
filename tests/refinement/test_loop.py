import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import IDS, keys, moods, moody, oracle

from padir.errors import PadirError
from padir.refinement.corruption import Mask, Uniform
from padir.refinement.drafting import draft
from padir.refinement.loop import Part, refine
from padir.refinement.scores import Output
from padir.refinement.strategies import MaskPredict, Padir

LENGTHS = jnp.array([4, 9])


def start(corruption=None):
    return draft(keys(2), LENGTHS, 9, corruption or Uniform(), IDS)


def test_the_first_pass_finds_the_answer_and_the_second_halts():
    canvas = start()
    answer_BL = jnp.where(canvas.free_BL, 20 + jnp.arange(9), canvas.tokens_BL)
    refined = refine(keys(2), canvas, oracle(answer_BL), Padir(), num_steps=10)
    assert refined.passes_B.tolist() == [2, 2]
    assert refined.canvas.done_B.all()


def test_rows_halt_on_their_own():
    canvas = start()
    canvas = canvas.replace(tokens_BL=jnp.where(canvas.free_BL, 10 + jnp.arange(9), canvas.tokens_BL))

    def logits_fn(tokens_BL):  # row 0 is told its answer; row 1 moves on by one piece each pass
        moving = jnp.where(tokens_BL + 1 < IDS.end_regular, tokens_BL + 1, IDS.first_regular)
        return 9.0 * jax.nn.one_hot(jnp.stack([20 + jnp.arange(9), moving[1]]), IDS.vocab_size)

    refined = refine(keys(2), canvas, logits_fn, Padir(), num_steps=6, trace=True)
    assert refined.passes_B.tolist() == [2, 6]
    assert refined.tokens_BL[1, :8].tolist() == list(range(16, 24))
    np.testing.assert_array_equal(refined.tokens_TBL[2:, 0], refined.tokens_TBL[2:3, 0].repeat(5, 0))


def test_rows_that_are_done_are_left_out_of_the_groups():
    canvas = draft(keys(5), jnp.full(5, 9), 9, Uniform(), IDS)
    answer_BL = jnp.broadcast_to(20 + jnp.arange(9), (5, 9))
    decoded = []

    def logits_fn(tokens_BL, rows):  # row 1 moves on by one piece each pass, the others are told their answer
        jax.debug.callback(lambda rows: decoded.append(rows.tolist()), rows)
        moving = jnp.where(tokens_BL + 1 < IDS.end_regular, tokens_BL + 1, IDS.first_regular)
        next_BL = jnp.where((rows == 1)[:, None], moving, answer_BL.at[rows].get(mode="clip"))
        return 9.0 * jax.nn.one_hot(next_BL, IDS.vocab_size)

    refined = refine(keys(5), canvas, logits_fn, Padir(), num_steps=4, part=Part(rows_at_once=2))
    jax.block_until_ready(refined.tokens_BL)
    jax.effects_barrier()
    assert refined.passes_B.tolist() == [2, 4, 2, 2, 2]
    assert decoded == 2 * [[0, 1], [2, 3], [4, 5]] + 2 * [[1, 0]]  # 5: there is no such row


def test_found_tokens_are_used_unless_other_ids_are_banned():
    canvas = start()
    answer_BL = jnp.where(canvas.free_BL, 20 + jnp.arange(9), canvas.tokens_BL)

    def logits_fn(tokens_BL):
        logits_BLV = oracle(answer_BL)(tokens_BL)
        return Output(logits_BLV, found_BL=(answer_BL + 1, jnp.full(answer_BL.shape, -0.5)))

    free = np.asarray(canvas.free_BL)
    for banned_ids, expected_BL in ((None, answer_BL + 1), ((0,), answer_BL)):
        refined = refine(keys(2), canvas, logits_fn, Padir(), num_steps=1, banned_ids=banned_ids)
        np.testing.assert_array_equal(refined.tokens_BL[free], expected_BL[free])


def test_n_steps_mean_n_decoder_passes():
    passes = []

    def logits_fn(tokens_BL):
        jax.debug.callback(lambda: passes.append(1))
        moving = jnp.where(tokens_BL + 1 < IDS.end_regular, tokens_BL + 1, IDS.first_regular)
        return 9.0 * jax.nn.one_hot(moving, IDS.vocab_size)

    refined = refine(keys(2), start(), logits_fn, Padir(), num_steps=5)
    jax.block_until_ready(refined.tokens_BL)
    jax.effects_barrier()
    assert len(passes) == 5 and refined.passes_B.tolist() == [5, 5]


@pytest.mark.parametrize("remask", ["previous", "start"])
def test_halting_gives_what_all_steps_would_have_given(remask):
    """The strategy with its stop test undone runs every step and ends in the same tokens."""

    class Restless(Padir):
        def step(self, key_B, canvas, output, memory, *, step, num_steps):
            canvas, memory = super().step(key_B, canvas, output, memory, step=step, num_steps=num_steps)
            return canvas.replace(done_BL=jnp.zeros_like(canvas.done_BL)), memory

    @functools.partial(jax.jit, static_argnums=0)
    def run(strategy, canvas, tables):
        return refine(keys(6), canvas, moody(canvas.segment_BL, tables=tables), strategy, num_steps=12)

    halted = 0
    for seed in range(4):
        canvas = draft(keys(6, seed), jnp.array([3, 4, 5, 6, 7, 9]), 9, Uniform(), IDS)
        one, two = (
            run(strategy, canvas, moods(seed))
            for strategy in (Padir(remask, end_cycles=False), Restless(remask, end_cycles=False))
        )
        np.testing.assert_array_equal(one.tokens_BL, two.tokens_BL)
        halted += int((one.passes_B < 12).sum())
    assert halted > 0


def test_trace_begins_with_the_draft_and_ends_with_the_answer():
    canvas = start(Mask())
    refined = refine(keys(2), canvas, moody(canvas.segment_BL), MaskPredict(), num_steps=4, trace=True)
    assert refined.tokens_TBL.shape == refined.scores_TBL.shape == (5, 2, 9)
    np.testing.assert_array_equal(refined.tokens_TBL[0], canvas.tokens_BL)
    np.testing.assert_array_equal(refined.tokens_TBL[-1], refined.tokens_BL)
    plain = refine(keys(2), canvas, moody(canvas.segment_BL), MaskPredict(), num_steps=4)
    np.testing.assert_array_equal(plain.tokens_BL, refined.tokens_BL)
    assert plain.tokens_TBL is None
    # A score is known exactly where something was written: all positions of a mask are hidden, EOS and padding given.
    hidden_TBL = np.asarray(refined.tokens_TBL == IDS.mask) | ~np.asarray(canvas.free_BL)
    np.testing.assert_array_equal(np.isnan(refined.scores_TBL), hidden_TBL)
    assert hidden_TBL[1].sum() > hidden_TBL[-1].sum()


@pytest.mark.parametrize("strategy", [MaskPredict(), Padir()])
def test_a_trace_with_room_repeats_the_answer(strategy):
    """The number of steps may then be traced; the schedule and the random draws are those of that number."""
    canvas = start(Mask() if isinstance(strategy, MaskPredict) else Uniform())
    logits_fn = moody(canvas.segment_BL)
    exact = refine(keys(2), canvas, logits_fn, strategy, num_steps=3, trace=True)
    roomy = jax.jit(lambda num_steps: refine(keys(2), canvas, logits_fn, strategy, num_steps=num_steps, trace=5))(3)
    assert roomy.tokens_TBL.shape == roomy.scores_TBL.shape == (6, 2, 9)
    np.testing.assert_array_equal(roomy.tokens_TBL[:4], exact.tokens_TBL)
    np.testing.assert_allclose(roomy.scores_TBL[:4], exact.scores_TBL, rtol=1e-5)
    np.testing.assert_array_equal(roomy.tokens_TBL[4:], np.stack([exact.tokens_BL] * 2))
    with pytest.raises(PadirError, match="num_steps must be at most the 2 steps .* got 3"):
        refine(keys(2), canvas, logits_fn, strategy, num_steps=3, trace=2)


def test_a_certain_token_counts_as_written():
    """The log-probability of 50 against 0 rounds to 0, which a hidden position has, too."""
    certain = refine(
        keys(2), start(), lambda t: 50.0 * jax.nn.one_hot(t * 0 + 20, 64), Padir(), num_steps=1, trace=True
    )
    scores_BL = np.asarray(certain.scores_TBL[1])
    assert (scores_BL[np.asarray(start().free_BL)] < 0).all() and np.isnan(scores_BL).any()
    assert np.isnan(certain.scores_TBL[0]).all()


def test_score_is_the_log_probability_of_what_stands():
    canvas = start()
    logits_fn = moody(canvas.segment_BL)
    refined = refine(keys(2), canvas, logits_fn, Padir(), num_steps=1, banned_ids=())
    log_prob_BLV = jax.nn.log_softmax(logits_fn(canvas.tokens_BL))
    expected_BL = jnp.take_along_axis(log_prob_BLV, refined.tokens_BL[..., None], -1)[..., 0]
    np.testing.assert_allclose(
        refined.canvas.score_BL, jnp.where(canvas.free_BL, expected_BL, 0.0), rtol=1e-5, atol=1e-6
    )


def test_visible_positions_reach_the_decoder():
    canvas = start()
    canvas = canvas.replace(visible_BLL=jnp.ones((2, 9, 9), bool))
    seen = []

    def logits_fn(tokens_BL, visible_BLL):
        seen.append(visible_BLL.shape)
        return Output(oracle(jnp.full((2, 9), 20))(tokens_BL))

    refine(keys(2), canvas, logits_fn, Padir(), num_steps=1)
    assert seen and set(seen) == {(2, 9, 9)}


@pytest.mark.parametrize("part", [Part(end=1), Part(first=1)])
def test_a_part_of_the_steps_is_not_traced(part):
    with pytest.raises(PadirError, match="trace all steps in one call"):
        refine(keys(2), start(), oracle(jnp.zeros((2, 9), int)), Padir(), num_steps=2, part=part, trace=True)


@pytest.mark.parametrize("num_steps", [0, -1])
def test_zero_steps_are_refused(num_steps):
    with pytest.raises(PadirError, match=f"at least 1, got {num_steps}"):
        refine(keys(2), start(), oracle(jnp.zeros((2, 9), int)), Padir(), num_steps=num_steps)
