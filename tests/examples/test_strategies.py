"""The strategies of examples/strategies; the contract tests run on them, too."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from correctors import GibbsCorrector, PredictorCorrector
from left_to_right import LeftToRight
from numpy.testing import assert_allclose
from support.fakes import (
    EQUALS_VVV,
    FIRST,
    IDS,
    canvas,
    conditionals,
    distance,
    histogram,
    keys,
    moody,
    oracle,
    output,
    stepped,
)
from support.refusals import refused

from padir import Decoding, config
from padir.refinement import BlockGibbs, Mask, MaskPredict, Padir, Remdm, Threshold, Uniform, draft, refine
from padir.refinement.strategies import check_strategy

EOS, MASK, ROWS = IDS.eos, IDS.mask, 2_000
PIECES = IDS.end_regular - IDS.first_regular
RATE = 0.3

CONDITIONALS = conditionals(EQUALS_VVV)


@pytest.mark.parametrize(("count", "seen"), [(1, [1, 2, 3, 4]), (3, [3, 4])])
def test_left_to_right_writes_the_leftmost(count, seen):
    start = canvas([MASK] * 4)
    refined = refine(
        keys(1), start, oracle(jnp.array([[20, 21, 22, 23, EOS]])), LeftToRight(count), num_steps=9, traced_steps=9
    )
    for tokens_BL, written in zip(refined.tokens_TBL[1:], seen, strict=False):
        assert (tokens_BL[0, :4] != MASK).tolist() == [place < written for place in range(4)]
    assert refined.passes_B.tolist() == [len(seen)]


def test_the_gin_file_makes_its_strategy():
    config.parse(["examples/strategies/corrector.gin"], allow_imports=["correctors"])
    assert config.configured(Decoding)().strategy == PredictorCorrector(MaskPredict(), share=0.1)


def off(tokens_BL, expected_VVV):
    """How far the rows are from a distribution over states of three or four tokens."""
    return distance(histogram(tokens_BL, len(expected_VVV)), expected_VVV)


@functools.partial(jax.jit, static_argnums=(0, 1))
def drawn(strategy, exact, start, num_steps):
    return refine(keys(ROWS), start, exact, strategy, num_steps=num_steps, traced_steps=40)


def noised(rate):
    """The joint's distribution of noisy canvases, with all pieces but its three tokens as a fourth token."""
    kernel = np.full((3, 4), rate / PIECES)
    kernel[range(3), range(3)] += 1 - rate
    kernel[:, 3] = rate * (PIECES - 3) / PIECES
    return np.einsum("abc,ax,by,cz->xyz", EQUALS_VVV, kernel, kernel, kernel)


def posteriors(canvas):
    """A decoder that knows p(x_i | z) exactly, for uniform noise at `RATE`."""
    state_K3 = jnp.stack(jnp.meshgrid(*[jnp.arange(3)] * 3, indexing="ij"), -1).reshape(-1, 3)
    same_BK3 = canvas.tokens_BL[:, None, :3] - FIRST == state_K3
    likelihood_BK3 = jnp.where(same_BK3, 1 - RATE + RATE / PIECES, RATE / PIECES)
    weight_BK = jnp.asarray(EQUALS_VVV, jnp.float32).reshape(-1) * likelihood_BK3.prod(-1)
    is_VK3 = (state_K3 == jnp.arange(3)[:, None, None]).astype(jnp.float32)
    logits_BLV = jnp.full((*canvas.tokens_BL.shape, IDS.vocab_size), -jnp.inf).at[:, 3:, EOS].set(0.0)
    return logits_BLV.at[:, :3, FIRST : FIRST + 3].set(jnp.log(jnp.einsum("bk,vki->biv", weight_BK, is_VK3)))


class TestGibbsCorrector:
    @pytest.mark.slow
    def test_approaches_the_distribution_of_noisy_canvases(self):
        start = draft(keys(ROWS), jnp.full(ROWS, 4), 4, Uniform(), IDS)
        run = functools.partial(drawn, exact=posteriors, start=start, num_steps=40)
        tokens_TBL = run(GibbsCorrector(RATE)).tokens_TBL
        assert off(tokens_TBL[1], noised(RATE)) > 0.2  # three independent draws
        assert off(tokens_TBL[39], noised(RATE)) < 0.08
        assert off(run(GibbsCorrector(0.1)).tokens_TBL[39], noised(0.1)) > 0.15
        assert off(run(GibbsCorrector(RATE, share=1.0)).tokens_TBL[39], noised(RATE)) > 0.12

    def test_the_first_canvas_tells_nothing(self):
        """Dividing by the likelihood of any rate below 1 would repel the tokens that it happens to show."""
        before, logits = canvas([20, 21, 22]), output([20, 21, 22], [3.0] * 3)
        prob_LV = np.asarray(jax.nn.softmax(logits.logits_BLV[0, :3]))
        starts = jax.tree.map(lambda each: jnp.repeat(each, ROWS, axis=0), (before, logits))
        after, _ = stepped(GibbsCorrector(1e-6), *starts)
        kept_L = np.asarray(after.tokens_BL[:, :3] == before.tokens_BL[:, :3]).mean(0)
        assert_allclose(kept_L, prob_LV[range(3), [20, 21, 22]], atol=0.05)

    def test_divides_the_own_token_out(self):
        """If a decoder knows nothing but the odds of z_i under the noise, every token is as likely."""
        odds_L2 = np.log([0.6 + 0.4 / PIECES, 0.4 / PIECES])
        logits_LV = np.full((4, IDS.vocab_size), odds_L2[1], np.float32)
        logits_LV[[0, 1], [20, 21]] = odds_L2[0]
        flat = GibbsCorrector(0.4).without_own(jnp.asarray(logits_LV)[None], canvas([20, 21, MASK]), 0.4)
        flat = flat[0, :3, IDS.first_regular : IDS.end_regular]
        assert_allclose(flat, jnp.broadcast_to(flat[:, :1], flat.shape), atol=1e-5)

    def test_draws_its_share_and_the_last_step_writes_the_argmax(self):
        strategy, out = GibbsCorrector(1e-9, share=0.3), output([20] * 10, [60.0] * 10)
        for step, written in [(0, 10), (1, 3), (8, 10)]:
            after, _ = stepped(strategy, canvas([10] * 10), out, step=step, num_steps=9, key_B=keys(1, step))
            assert (after.tokens_BL[0] == 20).sum() == written
        after, _ = stepped(GibbsCorrector(1.0, share=0.3), canvas([10] * 10), out, step=1, num_steps=9)
        assert (after.tokens_BL[0, :10] == 10).sum() >= 7, "what is not drawn is not noised"


class TestPredictorCorrector:
    @pytest.mark.slow
    @pytest.mark.parametrize(("corrections", "most"), [(39, 0.06), (1, 0.1)])
    def test_corrections_lead_to_the_joint(self, corrections, most):
        """From the product of the marginals; and a distribution that is nearly right after 20 steps stays right."""
        start = draft(keys(ROWS), jnp.full(ROWS, 4), 4, Mask(), IDS)
        strategy = PredictorCorrector(Remdm(sigma=0.0), corrections, share=0.3, temperature=1.0)
        assert off(drawn(strategy, CONDITIONALS, start, 40).tokens_BL, EQUALS_VVV) < most
        assert off(drawn(strategy, CONDITIONALS, start, 1).tokens_BL, EQUALS_VVV) > 0.4

    @pytest.mark.parametrize(
        ("strategy", "num_steps", "expected"),
        [
            # The four steps leave 6, 4, 2 and 0 hidden, and of the 2, 4 and 6 written ones half is masked.
            (MaskPredict(), 7, [6 + 1, 6, 4 + 2, 4, 2 + 3, 2, 0]),
            (Threshold(0.0), 6, [4, 4, 4, 4, 4, 0]),  # done after its first step: every further pass corrects
        ],
        ids=str,
    )
    def test_corrects_written_positions_only_and_between_the_steps(self, strategy, num_steps, expected):
        start = draft(keys(1), jnp.array([9]), 9, Mask(), IDS)
        refined = refine(
            keys(1),
            start,
            moody(),
            PredictorCorrector(strategy, share=0.5),
            num_steps=num_steps,
            traced_steps=num_steps,
        )
        assert (np.asarray(refined.tokens_TBL)[1:, 0, :8] == MASK).sum(-1).tolist() == expected
        assert refined.passes_B.tolist() == [num_steps]

    def test_corrections_go_on_when_the_strategy_is_done(self):
        start, answer = draft(keys(1), jnp.array([4]), 4, Uniform(), IDS), oracle(jnp.array([[20, 21, 22, EOS]]))
        assert refine(keys(1), start, answer, Padir(), num_steps=9).passes_B.tolist() == [2]
        refined = refine(keys(1), start, answer, PredictorCorrector(Padir(), share=0.3), num_steps=9)
        assert refined.passes_B.tolist() == [9] and refined.tokens_BL.tolist() == [[20, 21, 22, EOS]]

    def test_needs_what_the_strategy_needs(self):
        class Ordinary:
            decontextualised = rejecter = False
            rejecter_judges = "token"

        with refused("PredictorCorrector hides positions without masks"):
            check_strategy(PredictorCorrector(BlockGibbs()), canvas=Uniform(), trained=Uniform(), config=Ordinary)
        check_strategy(PredictorCorrector(Threshold()), canvas=Uniform(), trained=Uniform(), config=Ordinary)
