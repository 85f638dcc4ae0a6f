import jax.numpy as jnp
import numpy as np
import pytest
from fakes import IDS, keys, oracle

from padir.canvas import Output, draft, from_tokens
from padir.corruption import Mask, Uniform
from padir.errors import PadirError
from padir.refine import refine
from padir.strategies import Lifted, MaskPredict, Padir

EOS = IDS.eos


def canvas(tokens, start=None):
    """One row of free tokens and EOS."""
    tokens_BL = jnp.array([[*tokens, EOS]])
    start_BL = jnp.array([[*(start or tokens), EOS]])
    free_BL = jnp.array([[True] * len(tokens) + [False]])
    return from_tokens(tokens_BL, start_BL, free_BL, jnp.ones_like(tokens_BL), IDS)


def output(tokens, confidence=None):
    """Logits whose argmax is `tokens`, with the given margins."""
    margin_BL = jnp.array([[*(confidence or [9.0] * len(tokens)), 9.0]])
    return Output(jnp.eye(IDS.vocab_size)[jnp.array([[*tokens, EOS]])] * margin_BL[..., None])


class TestPadir:
    def step(self, strategy, before, tokens, step=0, logits=None):
        memory = strategy.init(keys(1), before)
        return strategy.step(keys(1), before, logits or output(tokens), memory, step=step, num_steps=4)

    def test_stutter_goes_back_to_the_previous_token(self):
        after, _ = self.step(Padir(), canvas([10, 11, 12, 13]), [20, 20, 20, 23])
        assert after.tokens_BL.tolist() == [[20, 11, 12, 23, EOS]]

    def test_stutter_goes_back_to_the_start_token(self):
        after, _ = self.step(Padir(remask="start"), canvas([10, 11, 12], start=[7, 8, 9]), [20, 20, 22])
        assert after.tokens_BL.tolist() == [[20, 8, 22, EOS]]

    def test_stutter_goes_to_the_argmax_of_summed_logits(self):
        strategy = Padir(remask="logits")
        before = canvas([10, 11, 12])
        first, memory = self.step(strategy, before, [20, 21, 22])
        weak = output([20, 20, 23], [9.0, 5.0, 9.0])
        second, _ = strategy.step(keys(1), first, weak, memory, step=1, num_steps=4)
        assert second.tokens_BL.tolist() == [[20, 21, 23, EOS]]  # 9 for 21 so far beats 5 for 20

    def test_the_last_step_rewrites_nothing(self):
        after, _ = self.step(Padir(), canvas([10, 11, 12]), [20, 20, 22], step=3)
        assert after.tokens_BL.tolist() == [[20, 20, 22, EOS]]

    def test_the_first_position_does_not_stutter_with_the_last(self):
        # The published test wraps around; the token before position 0 is none.
        after, _ = self.step(Padir(), canvas([10, 11, 12]), [20, 21, 20])
        assert after.tokens_BL.tolist() == [[20, 21, 20, EOS]]

    def test_a_segment_does_not_stutter_with_the_one_before_it(self):
        segment_BL = jnp.array([[1, 1, 2, 2]])
        tokens_BL, free_BL = jnp.array([[10, EOS, 11, EOS]]), jnp.array([[True, False, True, False]])
        before = from_tokens(tokens_BL, tokens_BL, free_BL, segment_BL, IDS)
        logits = Output(9.0 * jnp.eye(IDS.vocab_size)[jnp.array([[20, EOS, EOS, EOS]])])
        after, _ = self.step(Padir(), before, None, logits=logits)
        assert after.tokens_BL.tolist() == [[20, EOS, EOS, EOS]]

    def test_done_when_nothing_changes_and_the_argmax_then_stands(self):
        after, _ = self.step(Padir(), canvas([20, 11, 22]), [20, 20, 22])
        assert after.done_B.tolist() == [True]
        assert after.tokens_BL.tolist() == [[20, 20, 22, EOS]]  # as four steps would end: the last rewrites nothing
        after, _ = self.step(Padir(), canvas([20, 11, 22]), [20, 21, 22])
        assert after.done_B.tolist() == [False]

    def test_unknown_remask(self):
        with pytest.raises(PadirError, match="previous, start, logits"):
            Padir(remask="mask")


class TestMaskPredict:
    @pytest.mark.parametrize("num_steps", [1, 2, 4, 5, 10, 13])
    def test_hides_exactly_the_floor_of_the_linear_schedule(self, num_steps):
        length_B = jnp.array([11, 4])  # 10 and 3 free positions
        start = draft(keys(2), length_B, 11, Mask(), IDS)
        answer_BL = jnp.where(start.free_BL, 20 + jnp.arange(11), start.tokens_BL)
        refined = refine(keys(2), start, oracle(answer_BL), MaskPredict(), num_steps=num_steps, trace=True)
        hidden_TB = (refined.tokens_TBL == IDS.mask).sum(-1)
        for b, free in enumerate([10, 3]):
            expected = [free * (num_steps - t) // num_steps for t in range(num_steps + 1)]
            passes = next(t for t, n in enumerate(expected) if n == 0)
            assert hidden_TB[:, b].tolist() == expected
            assert refined.passes_B[b] == passes

    def test_hides_the_least_confident_and_keeps_old_confidences(self):
        strategy, start = MaskPredict(), canvas([63, 63, 63, 63])
        memory, doubtful = strategy.init(keys(1), start), output([20, 21, 22, 23], [4.0, 9.0, 3.0, 8.0])
        one, memory = strategy.step(keys(1), start, doubtful, memory, step=0, num_steps=2)
        assert one.tokens_BL.tolist() == [[63, 21, 63, 23, EOS]]
        two, _ = strategy.step(
            keys(1), one, output([30, 31, 32, 33], [9.0, 9.0, 9.0, 9.0]), memory, step=1, num_steps=2
        )
        assert two.tokens_BL.tolist() == [[30, 21, 32, 23, EOS]]
        np.testing.assert_array_equal(two.score_BL[0, [1, 3]], one.score_BL[0, [1, 3]])
        assert two.done_B.tolist() == [True]

    def test_ties_hide_the_leftmost(self):
        strategy, start = MaskPredict(), canvas([63] * 5)
        after, _ = strategy.step(
            keys(1), start, output([20, 21, 22, 23, 24]), strategy.init(keys(1), start), step=0, num_steps=2
        )
        assert after.tokens_BL.tolist() == [[63, 63, 22, 23, 24, EOS]]

    def test_a_random_canvas_hides_with_its_own_random_tokens(self):
        start = draft(keys(1), jnp.array([5]), 5, Uniform(), IDS)
        answer_BL = jnp.array([[20, 21, 22, 23, EOS]])
        refined = refine(keys(1), start, oracle(answer_BL), MaskPredict(), num_steps=2, trace=True)
        assert refined.tokens_TBL[1, 0].tolist() == [*start.tokens_BL[0, :2].tolist(), 22, 23, EOS]


def test_lifted_is_the_first_of_two_steps():
    before = canvas([10, 11, 12])
    chosen_BL = jnp.array([[True, False, False, False]])
    inputs = (before.tokens_BL, chosen_BL)
    between, chosen_next_BL = Lifted(Padir())(keys(1), before, output([20, 20, 22]), *inputs, progress=0.0)
    assert chosen_next_BL is chosen_BL
    assert between.tokens_BL.tolist() == [[20, 11, 22, EOS]]
    doubtful = output([20, 21], [3.0, 9.0])
    between, _ = Lifted(MaskPredict())(keys(1), canvas([63, 63]), doubtful, *inputs, progress=0.0)
    assert between.tokens_BL.tolist() == [[63, 21, EOS]]
