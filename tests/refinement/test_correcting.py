"""Correctors: the distributions that they leave unchanged or approach, and the passes that they take."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import IDS, canvas, conditionals, keys, moody, oracle, output, posteriors

from padir.errors import PadirError
from padir.refinement.corruption import Mask, Uniform
from padir.refinement.drafting import draft
from padir.refinement.loop import refine
from padir.refinement.strategies import (
    BlockGibbs,
    GibbsCorrector,
    Padir,
    PredictorCorrector,
    Rejecter,
    check_strategy,
)

EOS, MASK, FIRST, ROWS = IDS.eos, IDS.mask, 10, 2_000
PIECES = IDS.end_regular - IDS.first_regular

JOINT_VVV = np.full((3, 3, 3), 0.25 / 24)
JOINT_VVV[range(3), range(3), range(3)] = np.array([3, 2, 1]) / 8


def noised(joint_VVV, rate):
    """The distribution of noisy canvases, with all pieces but the three tokens of the joint as a fourth token."""
    kernel = np.full((3, 4), rate / PIECES)
    kernel[range(3), range(3)] += 1 - rate
    kernel[:, 3] = rate * (PIECES - 3) / PIECES
    return np.einsum("abc,ax,by,cz->xyz", joint_VVV, kernel, kernel, kernel)


def distance(tokens_BL, expected):
    """Total variation between the rows' histogram and a distribution over states of three or four tokens."""
    choices = expected.shape[0]
    state_B3 = np.asarray(tokens_BL)[:, :3] - FIRST
    state_B3 = np.where((state_B3 < 0) | (state_B3 > 2), 3, state_B3)
    counts = np.zeros((4, 4, 4))
    np.add.at(counts, tuple(state_B3.T), 1)
    assert choices == 4 or (state_B3 < 3).all()
    return 0.5 * np.abs(counts[:choices, :choices, :choices] / len(tokens_BL) - expected).sum()


@functools.partial(jax.jit, static_argnums=(0, 1))
def drawn(strategy, exact, start, num_steps):
    return refine(keys(ROWS), start, exact, strategy, num_steps=num_steps, trace=40)


RATE = 0.3
POSTERIORS = posteriors(jnp.asarray(JOINT_VVV, jnp.float32), FIRST, RATE)
CONDITIONALS = conditionals(jnp.asarray(JOINT_VVV), FIRST)


class TestGibbsCorrector:
    def after(self, strategy, passes):
        start = draft(keys(ROWS), jnp.full(ROWS, 4), 4, Uniform(), IDS)
        return drawn(strategy, POSTERIORS, start, 40).tokens_TBL[passes]

    @pytest.mark.slow
    def test_approaches_the_distribution_of_noisy_canvases(self):
        expected = noised(JOINT_VVV, RATE)
        assert distance(self.after(GibbsCorrector(RATE), 1), expected) > 0.2  # three independent draws
        assert distance(self.after(GibbsCorrector(RATE), 39), expected) < 0.08

    @pytest.mark.slow
    def test_a_wrong_rate_or_all_positions_at_once_do_not(self):
        expected = noised(JOINT_VVV, RATE)
        assert distance(self.after(GibbsCorrector(0.1), 39), noised(JOINT_VVV, 0.1)) > 0.15
        assert distance(self.after(GibbsCorrector(RATE, share=1.0), 39), expected) > 0.12

    def test_the_first_canvas_tells_nothing(self):
        """Dividing by the likelihood of any rate below 1 would repel the tokens that it happens to show."""
        before, logits = canvas([20, 21, 22]), output([20, 21, 22], [3.0] * 3)
        prob_LV = np.asarray(jax.nn.softmax(logits.logits_BLV[0, :3]))
        starts = jax.tree.map(lambda each: jnp.repeat(each, ROWS, axis=0), (before, logits))
        after, _ = GibbsCorrector(1e-6).step(keys(ROWS), *starts, (), step=0, num_steps=9)
        kept_L = np.asarray(after.tokens_BL[:, :3] == before.tokens_BL[:, :3]).mean(0)
        np.testing.assert_allclose(kept_L, prob_LV[range(3), [20, 21, 22]], atol=0.05)

    def test_divides_the_own_token_out(self):
        """If a decoder knows nothing but the odds of z_i under the noise, every token is as likely."""
        strategy, before = GibbsCorrector(0.4), canvas([20, 21, MASK])
        odds_L2 = np.log([0.6 + 0.4 / PIECES, 0.4 / PIECES])
        logits_LV = np.full((4, IDS.vocab_size), odds_L2[1], np.float32)
        logits_LV[[0, 1], [20, 21]] = odds_L2[0]
        flat = strategy._without_own(jnp.asarray(logits_LV)[None], before, 0.4)[
            0, :3, IDS.first_regular : IDS.end_regular
        ]
        np.testing.assert_allclose(flat, jnp.broadcast_to(flat[:, :1], flat.shape), atol=1e-5)

    def test_draws_its_share_and_the_last_step_writes_the_argmax(self):
        strategy, before = GibbsCorrector(1e-9, share=0.3), canvas([10] * 10)
        for step, written in [(0, 10), (1, 3), (8, 10)]:
            after, _ = strategy.step(keys(1, step), before, output([20] * 10, [60.0] * 10), (), step=step, num_steps=9)
            assert (after.tokens_BL[0] == 20).sum() == written

    def test_wrong_numbers(self):
        with pytest.raises(PadirError, match="GibbsCorrector.rate must be above 0, got 0.0"):
            GibbsCorrector(0.0)


class TestPredictorCorrector:
    ONE_SHOT = "remdm:sigma=0.0"  # in one step it draws the product of the marginals

    def run(self, strategy, num_steps):
        start = draft(keys(ROWS), jnp.full(ROWS, 4), 4, Mask(), IDS)
        return drawn(strategy, CONDITIONALS, start, num_steps).tokens_BL

    @pytest.mark.slow
    def test_corrections_lead_from_the_product_of_the_marginals_to_the_joint(self):
        strategy = PredictorCorrector(self.ONE_SHOT, corrections=39, share=0.3, temperature=1.0)
        assert distance(self.run(strategy, 1), JOINT_VVV) > 0.4
        assert distance(self.run(strategy, 40), JOINT_VVV) < 0.06

    @pytest.mark.slow
    def test_a_right_distribution_stays_right(self):
        """The strategy alone takes 20 steps, with hardly two positions in one; a correction comes after each."""
        strategy = PredictorCorrector(self.ONE_SHOT, corrections=1, share=0.3, temperature=1.0)
        assert distance(self.run(strategy, 40), JOINT_VVV) < 0.1

    def test_corrects_written_positions_only_and_between_the_steps(self):
        start = draft(keys(1), jnp.array([9]), 9, Mask(), IDS)
        refined = refine(
            keys(1), start, moody(start.segment_BL), PredictorCorrector(share=0.5), num_steps=7, trace=True
        )
        hidden = (np.asarray(refined.tokens_TBL)[1:, 0, :8] == MASK).sum(-1).tolist()
        # The four steps of mask_predict leave 6, 4, 2 and 0 hidden, and of the 2, 4 and 6 written ones half is hidden.
        assert hidden == [6 + 1, 6, 4 + 2, 4, 2 + 3, 2, 0]
        assert refined.passes_B.tolist() == [7]

    def test_corrections_go_on_when_the_strategy_is_done(self):
        start = draft(keys(1), jnp.array([4]), 4, Uniform(), IDS)
        answer = oracle(jnp.array([[20, 21, 22, EOS]]))
        assert refine(keys(1), start, answer, Padir(), num_steps=9).passes_B.tolist() == [2]
        refined = refine(keys(1), start, answer, PredictorCorrector("padir", share=0.3), num_steps=9)
        assert refined.passes_B.tolist() == [9] and refined.tokens_BL.tolist() == [[20, 21, 22, EOS]]

    def test_every_pass_corrects_when_the_strategy_is_done(self):
        start = draft(keys(1), jnp.array([9]), 9, Mask(), IDS)
        strategy = PredictorCorrector("threshold:tau=0.0", share=0.5)  # done after its first step
        refined = refine(keys(1), start, moody(start.segment_BL), strategy, num_steps=6, trace=True)
        hidden = (np.asarray(refined.tokens_TBL)[1:, 0, :8] == MASK).sum(-1).tolist()
        assert hidden == [4, 4, 4, 4, 4, 0]

    @pytest.mark.parametrize(("strategy", "oscillates"), [("padir", True), ("padir:end_cycles=False", False)])
    def test_tells_that_the_strategy_oscillated(self, strategy, oscillates):
        """20 gives 30 and 30 gives 20. A correction may break this cycle, which then begins anew."""

        def decoder(tokens_BL):
            best_BL = jnp.array([[0, 11, EOS]]).at[:, 0].set(jnp.where(tokens_BL[:, 0] == 20, 30, 20))
            return 9.0 * jax.nn.one_hot(best_BL, IDS.vocab_size)

        start = canvas([7, 8], start=[20, 8])
        refined = refine(keys(1), start, decoder, PredictorCorrector(strategy, share=0.1), num_steps=20)
        assert refined.memory.oscillated_B.tolist() == [oscillates]
        other = refine(keys(1), start, decoder, PredictorCorrector("mask_predict"), num_steps=2)
        assert not hasattr(other.memory, "oscillated_B")

    def test_needs_what_the_strategy_needs(self):
        class Ordinary:
            decontextualised = rejecter = False

        for wrapped, strategy in (("rejecter", Rejecter()), ("block_gibbs", BlockGibbs())):
            for each in (strategy, PredictorCorrector(wrapped)):
                with pytest.raises(PadirError, match="needs a rejecter head|without masks"):
                    check_strategy(each, canvas=Uniform(), trained=Uniform(), config=Ordinary)
        check_strategy(PredictorCorrector("threshold"), canvas=Uniform(), trained=Uniform(), config=Ordinary)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"strategy": "easy_first"}, "must be a strategy that can be corrected, got 'easy_first'"),
            ({"strategy": "predictor_corrector"}, "must be a strategy that can be corrected"),
            ({"strategy": "threshold:tau=2.0"}, "Threshold.tau must be in"),
            ({"strategy": "guess"}, "no strategy is called 'guess'"),
            ({"corrections": 0}, "corrections must be at least 1, got 0"),
            ({"share": 0.0}, "share must be above 0"),
        ],
    )
    def test_wrong_fields(self, fields, message):
        with pytest.raises(PadirError, match=message):
            PredictorCorrector(**fields)


def test_needs_what_the_wrapped_strategy_needs():
    assert PredictorCorrector("block_gibbs").needs == BlockGibbs.needs == {"mask"}
    assert not PredictorCorrector("threshold").needs
