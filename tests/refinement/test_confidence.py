import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bounds import EntropyBound
from numpy.testing import assert_array_equal
from support.fakes import IDS, canvas, conditionals, keys, moody, oracle, output, spread, stepped, unseen
from support.refusals import refused

from padir.refinement import EasyFirst, Mask, Renoise, Threshold, draft, refine

EOS, MASK = IDS.eos, IDS.mask


def first_step(strategy, out, free, num_steps=3, step=0):
    after, _ = stepped(strategy, canvas([MASK] * free), out, step=step, num_steps=num_steps)
    assert_array_equal(after.masked_BL, after.tokens_BL == MASK)
    return after.tokens_BL[0, :-1].tolist(), bool(after.done_B[0])


class TestThreshold:
    def test_writes_tokens_above_the_threshold(self):
        out = spread(1, 2, 4)  # probabilities 1, 1/2 and 1/4
        assert first_step(Threshold(0.6), out, 3) == ([20, MASK, MASK], False)
        assert first_step(Threshold(0.4), out, 3) == ([20, 21, MASK], False)
        assert first_step(Threshold(0.2), out, 3) == ([20, 21, 22], True)
        assert first_step(Threshold(0.5), out, 3) == ([20, MASK, MASK], False)  # not more than 1/2

    def test_falls_linearly(self):
        strategy, out = Threshold(0.9, final_tau=0.1), spread(2, 3, 4)  # 0.5, 0.33, 0.25
        written = [sum(t != MASK for t in first_step(strategy, out, 3, 5, step)[0]) for step in range(5)]
        assert written == [1, 1, 1, 2, 3]  # thresholds 0.9, 0.7, 0.5, 0.3, and the last

    def test_one_position_a_step_at_most_confident_and_one_shot_at_0(self):
        start = draft(keys(3), jnp.array([4, 6, 9]), 9, Mask(), IDS)
        decoder = moody()
        assert refine(keys(3), start, decoder, Threshold(1.0), num_steps=20).passes_B.tolist() == [3, 5, 8]
        assert refine(keys(3), start, decoder, Threshold(0.0), num_steps=20).passes_B.tolist() == [1, 1, 1]


class TestEntropyBound:
    @pytest.mark.parametrize(
        ("gamma", "expected"),
        [
            # Entropies log 2, log 4, log 2, log 8. In ascending order 20, 22, 21, 23 have before them 0, log 2, log 4
            # and log 16.
            (0.0, [20, MASK, MASK, MASK]),
            (math.log(2) - 0.01, [20, MASK, MASK, MASK]),
            (math.log(2) + 0.01, [20, MASK, 22, MASK]),
            (math.log(4) + 0.01, [20, 21, 22, MASK]),
            (math.log(16) + 0.01, [20, 21, 22, 23]),
        ],
    )
    def test_writes_the_largest_set_within_the_bound(self, gamma, expected):
        assert first_step(EntropyBound(gamma), spread(2, 4, 2, 8), 4)[0] == expected

    def test_certain_tokens_use_up_none_of_the_bound(self):
        assert first_step(EntropyBound(0.0), spread(1, 1, 3, 1), 4)[0] == [20, 21, 22, 23]  # 0 before the last of them
        assert first_step(EntropyBound(0.0), spread(3, 1, 3, 1), 4)[0] == [20, 21, MASK, 23]


class TestEasyFirst:
    def test_each_position_sees_those_that_were_easier_at_step_0(self):
        strategy, start = EasyFirst(), unseen(canvas([MASK] * 3))
        one, memory = stepped(strategy, start, output([20, 21, 22], [4.0, 9.0, 6.0]))
        assert one.tokens_BL.tolist() == [[20, 21, 22, EOS]] and not one.done_B[0]
        # The order is 21, 22, 20; all see EOS, as before.
        expected = [[0, 1, 1, 1], [0, 0, 0, 1], [0, 1, 0, 1]]
        assert one.visible_BLL[0, :3].astype(int).tolist() == expected
        two, memory = stepped(strategy, one, output([30, 21, 22], [9.0, 1.0, 1.0]), memory, step=1)
        assert two.tokens_BL.tolist() == [[30, 21, 22, EOS]] and not two.done_B[0]
        assert two.visible_BLL[0, :3].astype(int).tolist() == expected  # later confidences change nothing
        three, _ = stepped(strategy, two, output([30, 21, 22], [1.0, 1.0, 1.0]), memory, step=2)
        assert three.done_B[0]

    def test_the_limit_is_greedy_decoding_in_that_order(self):
        """On an exact joint: the easiest by its marginal, the next given the first, the last given both."""
        joint_VVV = jnp.asarray(np.random.RandomState(23).dirichlet(np.full(27, 0.3)).reshape(3, 3, 3), jnp.float32)
        marginals = [joint_VVV.sum(axis=tuple({0, 1, 2} - {i})) for i in range(3)]
        order = sorted(range(3), key=lambda i: -float(marginals[i].max()))
        known, table = {}, np.asarray(joint_VVV)
        for i in order:
            given = table[tuple(slice(known[j], known[j] + 1) if j in known else slice(None) for j in range(3))]
            known[i] = int(given.sum(axis=tuple({0, 1, 2} - {i})).argmax())
        assert [known[i] for i in range(3)] != [int(m.argmax()) for m in marginals]  # else nothing is tested
        start = unseen(draft(keys(1), jnp.array([4]), 4, Mask(), IDS))
        refined = refine(keys(1), start, conditionals(joint_VVV), EasyFirst(), num_steps=9)
        assert (refined.tokens_BL[0, :3] - 10).tolist() == [known[i] for i in range(3)]
        assert refined.passes_B[0] <= 4  # three to write, one to see that nothing changes

    def test_an_ordinary_canvas_is_refused(self):
        with refused("use model decontextualised=True"):
            EasyFirst().init(keys(1), canvas([MASK]))


class TestRenoise:
    def step(self, before, out, seed=0):
        return stepped(Renoise(math.log(2) + 0.01), before, out, key_B=keys(1, seed))[0]

    def test_accepts_within_the_bound_and_gives_all_others_fresh_pieces(self):
        before, out = canvas([10, 11, 12, 13]), spread(2, 4, 2, 8)  # entropies log 2, log 4, log 2, log 8
        one, other = self.step(before, out), self.step(before, out, seed=1)
        assert one.tokens_BL[0, [0, 2]].tolist() == [20, 22] == other.tokens_BL[0, [0, 2]].tolist()
        noise = np.stack([each.tokens_BL[0, [1, 3]] for each in (before, one, other)])
        assert ((noise >= IDS.first_regular) & (noise < IDS.end_regular)).all()
        assert len(np.unique(noise, axis=0)) == 3  # neither the start's pieces nor those of another step
        assert one.written_BL[0].tolist() == [True, False, True, False, False]
        assert_array_equal(one.initial_BL, before.initial_BL)

    def test_hides_positions_behind_their_masks(self):
        assert self.step(canvas([MASK] * 4), spread(2, 4, 2, 8)).tokens_BL.tolist() == [[20, MASK, 22, MASK, EOS]]

    def test_takes_back_a_token_that_entropy_bound_keeps(self):
        """The first token looks certain, and wrong, until the second is written."""

        def decoder(canvas):
            known_BL = jnp.broadcast_to(canvas.tokens_BL[:, 1:2] == 31, canvas.tokens_BL.shape)
            seen_BL1 = known_BL[..., None]
            early = jnp.full((3, IDS.vocab_size), -30.0).at[jnp.arange(3), jnp.array([20, 31, EOS])].set(0.0)
            early = early.at[1, 30].set(-0.5)  # the second is in doubt
            late = jnp.full((3, IDS.vocab_size), -30.0).at[jnp.arange(3), jnp.array([21, 31, EOS])].set(0.0)
            return jnp.where(seen_BL1, late, early)

        start = canvas([10, 11])
        kept = refine(keys(1), start, decoder, EntropyBound(0.1), num_steps=6)
        mended = refine(keys(1), start, decoder, Renoise(0.1), num_steps=6)
        assert kept.tokens_BL.tolist() == [[20, 31, EOS]]
        assert mended.tokens_BL.tolist() == [[21, 31, EOS]]

    def test_is_done_when_the_decoder_agrees_with_a_canvas_without_noise(self):
        answer = oracle(jnp.array([[20, 21, 22, EOS]]))
        for start, passes in [(canvas([10, 11, 12]), 2), (canvas([20, 21, 22]), 2)]:  # noise that happens to be right
            refined = refine(keys(1), start, answer, Renoise(), num_steps=9)
            assert refined.passes_B.tolist() == [passes] and refined.tokens_BL.tolist() == [[20, 21, 22, EOS]]

    def test_is_not_done_while_a_position_is_noise(self):
        """A decoder that is never certain of two positions."""

        def decoder(canvas):
            tokens_BL = canvas.tokens_BL
            logits_BLV = jnp.zeros((*tokens_BL.shape, IDS.vocab_size)).at[:, 0, 20].set(20.0)
            return logits_BLV.at[:, 1].add(jax.nn.one_hot(tokens_BL[:, 2], IDS.vocab_size))

        refined = refine(keys(1), canvas([10, 11, 12]), decoder, Renoise(0.1), num_steps=4)
        assert refined.passes_B.tolist() == [4] and refined.canvas.written_BL[0, :3].all()
