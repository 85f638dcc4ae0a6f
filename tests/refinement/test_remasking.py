"""Strategies that hide written positions again: how many masks remain, and what they remask."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from support.fakes import EQUALS_VVV, IDS, canvas, conditionals, distance, histogram, keys, output, stepped

from padir.refinement import Mask, MaskPredict, Output, PathPlanning, Remdm, draft, refine

EOS, MASK, ROWS = IDS.eos, IDS.mask, 2_000
EXACT = conditionals(EQUALS_VVV)


@functools.cache
@functools.partial(jax.jit, static_argnums=0, static_argnames="traced_steps")
def drawn(strategy, num_steps, traced_steps=None):
    return refine(
        keys(ROWS),
        draft(keys(ROWS), jnp.full(ROWS, 4), 4, Mask(), IDS),
        EXACT,
        strategy,
        num_steps=num_steps,
        traced_steps=traced_steps,
    )


class TestRemdm:
    @pytest.mark.slow
    def test_many_steps_draw_from_the_joint_and_few_do_not(self):
        assert distance(histogram(drawn(Remdm(0.0), 1).tokens_BL), EQUALS_VVV) > 0.4
        for sigma in (0.0, 0.3):
            assert distance(histogram(drawn(Remdm(sigma), 60).tokens_BL), EQUALS_VVV) < 0.08

    @pytest.mark.slow
    def test_without_remasking_a_row_is_done_when_all_is_written(self):
        assert (drawn(Remdm(0.0), 60).passes_B < 60).mean() > 0.8
        assert (drawn(Remdm(0.1), 60).passes_B == 60).all()


class TestPathPlanning:
    def two_passes(self, strategy):
        """Four masks; a pass that is sure of the first and the second, and one that no longer believes in the first."""
        one, memory = stepped(strategy, canvas([MASK] * 4), output([20, 21, 22, 23], [9.0, 8.0, 3.0, 2.0]))
        second = output([30, 21, 22, 23], [9.0, 8.0, 7.0, 6.0])
        return one, stepped(strategy, one, second, memory, step=1)[0]

    def test_takes_back_what_the_second_pass_contradicts(self):
        one, two = self.two_passes(PathPlanning(schedule="cosine"))
        assert one.tokens_BL.tolist() == [[20, MASK, MASK, MASK, EOS]]  # 4 cos(pi / 8) is 3.7
        assert two.tokens_BL.tolist() == [[MASK, 21, 22, MASK, EOS]]  # 4 cos(pi / 4) is 2.8

    def test_mask_predict_and_eta_0_keep_it(self):
        for strategy in (MaskPredict("cosine"), PathPlanning(eta=0.0, schedule="cosine")):
            assert self.two_passes(strategy)[1].tokens_BL.tolist() == [[20, 21, MASK, MASK, EOS]]

    def test_a_larger_eta_hides_written_positions_more_readily(self):
        """The written token has the log-probability -0.5, the others -1 and -2; one of the three is masked."""
        logits = np.full((4, IDS.vocab_size), -np.inf, np.float32)
        for i, log_prob in enumerate([-0.5, -1.0, -2.0]):
            logits[i, [20 + i, 40, 41, 42, 43, 44, 45, 46, 47]] = [
                log_prob,
                *[np.log1p(-np.exp(log_prob)) - np.log(8)] * 8,
            ]
        logits[3, EOS] = 0.0
        before = canvas([20, MASK, MASK], written=[0])
        out = output([20, 21, 22]).replace(logits_BLV=jnp.asarray(logits)[None])
        for eta, hidden in [(1.0, 2), (3.0, 2), (5.0, 0)]:
            after, _ = stepped(PathPlanning(eta), before, out, step=1, num_steps=3)
            assert np.flatnonzero(after.masked_BL[0]).tolist() == [hidden]
            assert after.tokens_BL[0, hidden] == before.initial_BL[0, hidden]

    def test_a_written_token_of_probability_0_is_taken_back_unless_eta_is_0(self):
        before = canvas([20, MASK, MASK], start=[MASK] * 3, written=[0])
        out = output([30, 21, 22])
        out = out.replace(logits_BLV=jnp.where(jnp.arange(IDS.vocab_size) == 20, -jnp.inf, out.logits_BLV))
        for eta, tokens in [(0.0, [20, 21, MASK, EOS]), (1.0, [MASK, 21, 22, EOS])]:
            confident = out.replace(logits_BLV=out.logits_BLV.at[0, 2].multiply(0.5))
            after, _ = stepped(PathPlanning(eta), before, confident, step=1, num_steps=3)
            assert after.tokens_BL.tolist() == [tokens]

    @pytest.mark.parametrize("judges", ["written", "drawn", "random"])
    def test_eta_0_keeps_a_written_token_when_all_are_certain(self, judges):
        before = canvas([20, MASK, MASK], start=[MASK] * 3, written=[0])
        certain = output([20, 21, 22], [1e4] * 3)  # all log-probabilities are 0
        for seed in range(5):
            strategy = PathPlanning(eta=0.0, judges=judges)
            after, _ = stepped(strategy, before, certain, step=1, num_steps=3, key_B=keys(1, seed))
            assert after.tokens_BL[0, 0] == 20 and after.masked_BL.sum() == 1

    def test_random_judges_hide_each_position_as_often(self):
        """Of all three with eta 1, of the two masked ones with eta 0; the probabilities do not matter."""
        rows = 1_000
        one = canvas([20, MASK, MASK], start=[MASK] * 3, written=[0])
        before = jax.tree.map(lambda each: jnp.repeat(each, rows, axis=0), one)
        logits_BLV = jnp.repeat(output([20, 21, 22], [9.0, 9.0, 0.1]).logits_BLV, rows, axis=0)
        for eta, shares in [(1.0, [1 / 3] * 3), (0.0, [0.0, 0.5, 0.5])]:
            strategy = PathPlanning(eta, judges="random")
            after, _ = stepped(strategy, before, Output(logits_BLV), step=1, num_steps=3)
            assert_allclose(after.masked_BL[:, :3].mean(0), shares, atol=0.06)
