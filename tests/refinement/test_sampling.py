"""Samplers: what a step does, and that chains have the distributions that they should have."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.fakes import IDS, canvas, conditionals, distance, histogram, keys, moody, output, stepped, unseen

from padir.refinement import Mask, Uniform, draft, refine, write
from padir.refinement.scores import Output, forbid
from padir.refinement.segments import PLACE, choose, choose_share, random_pieces
from padir.refinement.strategies.sampling import BlockGibbs, IndependentParallel, SundaeSampling, sample_tokens

EOS, MASK = IDS.eos, IDS.mask
ROWS = 2_000

# Two thirds of the mass lie on the states of three equal tokens: far from the product of the marginals.
JOINT_VVV = np.random.RandomState(0).dirichlet(np.ones(27)).reshape(3, 3, 3) / 3
JOINT_VVV[range(3), range(3), range(3)] += np.array([3, 2, 1]) / 9
EXACT = conditionals(JOINT_VVV)


def drafts(rows=ROWS):
    return draft(keys(rows), jnp.full(rows, 4), 4, Mask(), IDS)


@functools.partial(jax.jit, static_argnames="strategy")
def refined_by(strategy, start, num_steps):
    """One program for every number of steps."""
    return refine(keys(ROWS), start, EXACT, strategy, num_steps=num_steps)


def product_of_marginals(joint_VVV):
    a, b, c = (joint_VVV.sum(axis=tuple({0, 1, 2} - {i})) for i in range(3))
    return np.einsum("a,b,c->abc", a, b, c)


def after_a_sweep(before_VVV):
    """The product of the leave-one-out conditionals of JOINT_VVV, given states that are distributed like that."""
    one, two, three = (JOINT_VVV / JOINT_VVV.sum(axis=i, keepdims=True) for i in range(3))
    return np.einsum("abc,xbc,ayc,abz->xyz", before_VVV, one, two, three)


# 2,000 exact draws from 27 states are off by 0.5 * sum of E|error| <= 0.5 * sqrt(2 / pi * 27 / 2000) = 0.046 or less.
NOISE = 0.065


def test_the_joint_is_far_from_the_distributions_of_wrong_samplers():
    assert distance(JOINT_VVV, product_of_marginals(JOINT_VVV)) > 0.2
    assert distance(after_a_sweep(product_of_marginals(JOINT_VVV)), JOINT_VVV) > 0.1
    assert distance(after_a_sweep(product_of_marginals(JOINT_VVV)), product_of_marginals(JOINT_VVV)) > 0.1


class TestSampleTokens:
    def test_tokens_do_not_depend_on_the_positions_that_the_same_key_chooses(self):
        """A strategy of one's own gives one key to all draws of a step; which positions are drawn says nothing."""
        rows, segment_BL = keys(ROWS), jnp.ones((ROWS, 4), int)
        everywhere_BL = segment_BL > 0
        token_BL, _ = sample_tokens(rows, Output(jnp.zeros((ROWS, 4, 4))), segment_BL, 1.0)
        for chosen_BL in (
            choose_share(rows, everywhere_BL, segment_BL, 0.5),
            choose_share(rows, everywhere_BL, segment_BL, 0.5, PLACE),
            choose(rows, everywhere_BL, segment_BL, 2),
            random_pieces(rows, segment_BL, IDS) % 2 == 0,
        ):
            share_V = jnp.bincount(token_BL[chosen_BL], length=4) / chosen_BL.sum()
            assert_allclose(share_V, 0.25, atol=0.03)  # of 4,000 draws: 4 standard errors

    def test_temperature_0_is_the_argmax_and_forbidden_ids_are_never_drawn(self):
        logits_BLV = jnp.broadcast_to(jnp.array([1.0, 2.0, -jnp.inf]), (ROWS, 1, 3))
        segment_BL = jnp.ones((ROWS, 1), int)
        assert (sample_tokens(keys(ROWS), Output(logits_BLV), segment_BL, 0.0)[0] == 1).all()
        assert set(np.unique(sample_tokens(keys(ROWS), Output(logits_BLV), segment_BL, 5.0)[0])) == {0, 1}


class TestSundaeSampling:
    def test_writes_everything_and_then_the_share(self):
        strategy = SundaeSampling(share=0.3, temperature=1.0)
        before = canvas([10] * 10)
        for step, written in [(0, 10), (1, 3), (2, 3), (3, 10)]:  # the last writes the argmax everywhere
            out = output([20] * 10, [50.0] * 10)
            after, _ = stepped(strategy, before, out, step=step, key_B=keys(1, step))
            assert (after.tokens_BL[0] == 20).sum() == written
        after, _ = stepped(SundaeSampling(share=0.3, argmax_last=False), before, out, step=3)
        assert (after.tokens_BL[0] == 20).sum() == 3

    def test_every_position_is_as_likely_to_be_drawn(self):
        before = draft(keys(ROWS), jnp.full(ROWS, 5), 5, Mask(), IDS)
        out = Output(jnp.broadcast_to(50.0 * jnp.eye(IDS.vocab_size)[20], (ROWS, 5, IDS.vocab_size)))
        after, _ = stepped(SundaeSampling(share=0.5), before, out, step=1)
        assert_allclose((after.tokens_BL == 20).mean(0)[:4], 0.5, atol=4 * np.sqrt(0.25 / ROWS))

    def test_the_argmax_unroll_of_everything_is_the_argmax_of_the_argmax(self):
        start = draft(keys(3), jnp.array([4, 6, 9]), 9, Uniform(), IDS)
        decoder = moody()
        tokens_BL = start.tokens_BL
        for _ in range(3):
            logits_BLV = forbid(decoder(start.replace(tokens_BL=tokens_BL)), IDS.special)
            tokens_BL = jnp.where(start.editable_BL, logits_BLV.argmax(-1), tokens_BL)
        refined = refine(keys(3), start, decoder, SundaeSampling(share=1.0, temperature=0.0), num_steps=3)
        assert_array_equal(refined.tokens_BL, tokens_BL)

    def test_order_uncertain_rewrites_the_tokens_of_lowest_probability(self):
        before = write(
            canvas([10] * 4),
            jnp.ones((1, 5), bool),
            canvas([10] * 4).tokens_BL,
            jnp.log(jnp.array([[0.9, 0.2, 0.8, 0.1, 1.0]])),
        )
        strategy = SundaeSampling(share=0.5, temperature=0.0, order="uncertain")
        after, _ = stepped(strategy, before, output([20] * 4), step=1)
        assert after.tokens_BL.tolist() == [[10, 20, 10, 20, EOS]]

    def test_at_temperature_0_it_halts_where_the_argmax_agrees(self):
        strategy = SundaeSampling(share=0.3, temperature=0.0)
        after, _ = stepped(strategy, canvas([20, 21, 22]), output([20, 21, 22]), step=1)
        assert after.done_B.tolist() == [True]
        after, _ = stepped(strategy, canvas([20, 21, 12]), output([20, 21, 22]), step=1)
        assert after.done_B.tolist() == [False]  # whether or not this step was to write the 22


class TestBlockGibbs:
    def run(self, strategy, num_steps):
        refined = refined_by(strategy, drafts(), num_steps)
        assert (refined.passes_B == num_steps).all()
        return histogram(refined.tokens_BL)

    def test_the_first_step_draws_the_product_of_the_marginals(self):
        assert distance(self.run(BlockGibbs(), 1), product_of_marginals(JOINT_VVV)) < NOISE

    @pytest.mark.parametrize(
        ("block", "num_steps"), [(3, 4), *(pytest.param(*way, marks=pytest.mark.slow) for way in ((1, 41), (2, 21)))]
    )
    def test_sequential_draws_have_the_joint_distribution(self, block, num_steps):
        """A chain that forgets its start and ends in the joint leaves it invariant."""
        assert distance(self.run(BlockGibbs(block=block), num_steps), JOINT_VVV) < NOISE

    @pytest.mark.slow
    def test_parallel_draws_only_approximate_the_joint(self):
        drawn_VVV = self.run(BlockGibbs(block=3, parallel=True), 4)
        assert distance(drawn_VVV, product_of_marginals(JOINT_VVV)) < NOISE  # so it is at every step
        assert distance(self.run(BlockGibbs(block=2, parallel=True), 15), JOINT_VVV) > 2 * NOISE

    def test_hides_a_block_and_writes_it_from_left_to_right(self):
        strategy = BlockGibbs(block=2, order="margin", temperature=0.0)
        state, memory = canvas([MASK] * 4), None
        margins = [9.0, 2.0, 9.0, 1.0]
        seen = []
        for step, tokens in enumerate([[20, 21, 22, 23], [30, 31, 32, 33], [40, 41, 42, 43]]):
            state, memory = stepped(strategy, state, output(tokens, margins), memory, step=step)
            seen.append(state.tokens_BL[0, :4].tolist())
        # Each pass writes one; after the second of a block the next one is masked, without the positions of this one.
        assert seen == [[20, MASK, 22, MASK], [20, 31, 22, MASK], [MASK, 31, MASK, 43]]

    def test_hidden_positions_get_the_argmax_at_the_last_step(self):
        strategy = BlockGibbs(block=3)
        before = canvas([MASK, 21, MASK, MASK], written=[1])
        after, _ = stepped(strategy, before, output([30, 31, 32, 33], [50.0] * 4), step=4, num_steps=5)
        assert after.tokens_BL.tolist() == [[30, 21, 32, 33, EOS]] and not after.masked_BL.any()


class TestIndependentParallel:
    def run(self, start, num_steps):
        return histogram(refined_by(IndependentParallel(), start, num_steps).tokens_BL)

    def test_a_sweep_draws_the_product_of_the_leave_one_out_conditionals(self):
        drawn_VVV = product_of_marginals(JOINT_VVV)
        assert distance(self.run(drafts(), 1), drawn_VVV) < NOISE
        assert distance(self.run(drafts(), 4), after_a_sweep(drawn_VVV)) < NOISE  # 3 passes for 3 positions
        assert distance(self.run(drafts(), 7), after_a_sweep(after_a_sweep(drawn_VVV))) < NOISE

    def test_an_unfinished_sweep_changes_nothing(self):
        whole, cut = (
            refine(keys(20), drafts(20), EXACT, IndependentParallel(), num_steps=1, traced_steps=1),
            refine(keys(20), drafts(20), EXACT, IndependentParallel(), num_steps=3, traced_steps=3),
        )
        assert_array_equal(whole.tokens_BL, cut.tokens_BL)
        masked_TBL = np.asarray(cut.tokens_TBL == MASK)
        assert masked_TBL[1, :, 0].all() and masked_TBL[1].sum() == 20  # after the draft, position 0 alone
        assert masked_TBL[2, :, 1].all() and masked_TBL[2].sum() == 20

    def test_a_decontextualised_decoder_takes_one_pass_a_sweep(self):
        drawn_VVV = product_of_marginals(JOINT_VVV)
        assert distance(self.run(unseen(drafts()), 1), drawn_VVV) < NOISE
        assert distance(self.run(unseen(drafts()), 2), after_a_sweep(drawn_VVV)) < NOISE
        refined = refine(keys(1), unseen(canvas([MASK] * 3)), EXACT, IndependentParallel(), num_steps=2)
        assert refined.canvas.visible_BLL[0, :3].astype(int).tolist() == [[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1]]

    @pytest.mark.parametrize(("seen", "passes"), [(False, 4), (True, 2)])
    def test_at_temperature_0_it_halts_after_a_sweep_that_changes_nothing(self, seen, passes):
        answer = output([20, 21, 22]).logits_BLV
        start = canvas([MASK] * 3)
        start = unseen(start) if seen else start
        refined = refine(keys(1), start, lambda canvas: answer, IndependentParallel(temperature=0.0), num_steps=20)
        assert refined.passes_B.tolist() == [passes] and refined.tokens_BL.tolist() == [[20, 21, 22, EOS]]
