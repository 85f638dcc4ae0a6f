"""Strategies that put fresh noise on a canvas: what they accept, take back and draw."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from support.fakes import IDS, canvas, keys, oracle, spread, stepped

from padir.refinement import EntropyBound, Renoise, refine

EOS, MASK = IDS.eos, IDS.mask


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
        assert (one.score_BL[0] < 0).tolist() == [True, False, True, False, False]
        np.testing.assert_array_equal(one.start_BL, before.start_BL)

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
        kept = refine(keys(1), start, decoder, EntropyBound(0.1), num_steps=6, banned_ids=())
        mended = refine(keys(1), start, decoder, Renoise(0.1), num_steps=6, banned_ids=())
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
        assert refined.passes_B.tolist() == [4] and (refined.canvas.score_BL[0, :3] < 0).all()
