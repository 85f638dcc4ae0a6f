"""The decoders of examples/decoders, with small models of random weights and ids that are not T5's."""

import causal_lm
import encoder_decoder
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.fakes import keys

from padir.refinement import DecoderIds, MaskPredict, Padir, Renoise, Threshold, Uniform, draft, refine, until

V, D, EOS = 23, 16, 19
MASKED = DecoderIds(vocab_size=V, mask_id=11, padding=EOS)  # the mask is inside the vocabulary, 0 is a token
PROMPTS = [[0, 7, EOS, 2], [3], [22, 0]]
ANSWER = 5


def weights(seed):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(size, D)) for name, size in (("embed", V), ("place", 32), ("query", D), ("head", V))}


def attend(xp, w, tokens_BL, present_BL, memory_BSD=None, source_mask_BS=None):
    """Logits of a layer in which every position attends to all that are present, in NumPy or JAX."""
    x_BLD = w["embed"][tokens_BL] + w["place"][: tokens_BL.shape[1]]
    key_BKD, mask_BK = x_BLD, present_BL
    if memory_BSD is not None:
        key_BKD = xp.concatenate([x_BLD, memory_BSD], axis=1)
        mask_BK = xp.concatenate([present_BL, source_mask_BS], axis=1)
    score_BLK = xp.einsum("bld,de,bke->blk", x_BLD, w["query"], key_BKD) / D
    prob_BLK = xp.exp(score_BLK - score_BLK.max(-1, keepdims=True)) * (mask_BK > 0)[:, None]
    prob_BLK = prob_BLK / prob_BLK.sum(-1, keepdims=True)
    return (x_BLD + xp.einsum("blk,bkd->bld", prob_BLK, key_BKD)) @ w["head"].T


def language_model(seed):
    w = weights(seed)
    return lambda tokens_BL, present_BL: attend(np, w, tokens_BL, present_BL)


def one_by_one(model, prompt, ids):
    """LLaDA's low-confidence remasking with a step for each token: the surest masked position is written."""
    tokens_L = np.array([*prompt, *[ids.mask] * ANSWER])
    for _ in range(ANSWER):
        logits_LV = model(tokens_L[None], np.ones((1, len(tokens_L))))[0].astype(np.float32)
        logits_LV[:, list(ids.special)] = -np.inf
        prob_LV = np.exp(logits_LV - logits_LV.max(-1, keepdims=True))
        prob_LV /= prob_LV.sum(-1, keepdims=True)
        masked_L = tokens_L == ids.mask
        at = np.argmax(np.where(masked_L, prob_LV.max(-1), -1))
        tokens_L[at] = logits_LV[at].argmax()
    return tokens_L[len(prompt) :].tolist()


class TestCausalLm:
    @pytest.mark.parametrize("seed", range(4))
    def test_one_token_a_pass_is_the_plain_loop_and_prompts_stay(self, seed):
        model = language_model(seed)
        canvas = causal_lm.prompted(keys(len(PROMPTS)), PROMPTS, ANSWER, MASKED)
        decoder = causal_lm.decoder(model, MASKED)
        done = refine(keys(len(PROMPTS)), canvas, decoder, Threshold(tau=1.0), num_steps=ANSWER).canvas
        for tokens_L, prompt in zip(np.asarray(done.tokens_BL), PROMPTS, strict=True):
            end = len(prompt) + ANSWER
            assert tokens_L[: len(prompt)].tolist() == prompt
            assert tokens_L[len(prompt) : end].tolist() == one_by_one(model, prompt, MASKED)
            assert (tokens_L[end:] == MASKED.padding).all()

    def test_a_prompt_alone_gets_what_it_gets_in_a_batch(self):
        model = language_model(9)

        def answer(prompts):
            canvas = causal_lm.prompted(keys(len(prompts)), prompts, ANSWER, MASKED)
            decoder = causal_lm.decoder(model, MASKED)
            return causal_lm.answers(
                refine(keys(len(prompts)), canvas, decoder, MaskPredict(), num_steps=3).canvas, EOS
            )

        assert answer(PROMPTS)[1:] == [answer([prompt])[0] for prompt in PROMPTS[1:]]

    def test_an_answer_ends_at_its_own_eos_alone(self):
        said_V = [4, EOS, 5, 0, 6]

        def model(tokens_BL, present_BL):
            at_BL = np.cumsum(present_BL, -1) - 1 - (tokens_BL.shape[1] - ANSWER)
            return 9 * np.eye(V)[np.take(said_V, np.clip(at_BL, 0, ANSWER - 1))]

        canvas = causal_lm.prompted(keys(1), [[3, EOS, 2]], ANSWER, MASKED)
        done = refine(keys(1), canvas, causal_lm.decoder(model, MASKED), MaskPredict(), num_steps=2).canvas
        assert done.tokens_BL[0].tolist() == [3, EOS, 2, *said_V]
        assert causal_lm.answers(done, EOS) == [[4]]
        assert causal_lm.answers(done, 15) == [said_V]

    def test_shifted_logits_are_of_the_next_token(self):
        def model(tokens_BL, present_BL):
            return 9 * np.eye(V)[np.broadcast_to(np.arange(1, tokens_BL.shape[1] + 1), tokens_BL.shape)]

        canvas = causal_lm.prompted(keys(1), [[3]], ANSWER, MASKED)
        decoder = causal_lm.decoder(model, MASKED, shifted=True)
        assert refine(keys(1), canvas, decoder, MaskPredict(), num_steps=2).tokens_BL[0].tolist() == [3, 1, 2, 3, 4, 5]


class TestEncoderDecoder:
    IDS = DecoderIds(vocab_size=V, random_ids=range(V), eos=EOS, banned=(13,), padding=13)

    def drafts(self, sources, length_B):
        source_BS = np.zeros((len(sources), 4), np.int32)
        mask_BS = np.zeros_like(source_BS)
        for i, source in enumerate(sources):
            source_BS[i, : len(source)], mask_BS[i, : len(source)] = source, 1
        w = jax.tree.map(jnp.float32, weights(2))
        decoder = encoder_decoder.decoder(
            lambda tokens_BS, present_BS: w["embed"][tokens_BS] * present_BS[..., None],
            lambda memory_BSD, source_mask_BS, tokens_BL, present_BL: attend(
                jnp, w, tokens_BL, present_BL, memory_BSD, source_mask_BS
            ),
            jnp.array(source_BS),
            jnp.array(mask_BS),
        )
        return draft(keys(len(sources)), jnp.array(length_B), 7, Uniform(), self.IDS), decoder

    @pytest.mark.parametrize("strategy", [Padir(), Renoise()])
    def test_rows_do_not_depend_on_their_batch_nor_on_groups_of_rows(self, strategy):
        canvas, decoder = self.drafts([[1, 2], [3, 4, 5, 6], [0]], [7, 4, 5])
        run = jax.jit(refine, static_argnames=("strategy", "num_steps", "rows_at_once"))
        whole = run(keys(3), canvas, decoder, strategy=strategy, num_steps=4)
        grouped = run(keys(3), canvas, decoder, strategy=strategy, num_steps=4, rows_at_once=2)
        alone, decoder = self.drafts([[1, 2]], [7])
        assert_array_equal(whole.tokens_BL, grouped.tokens_BL)
        assert_array_equal(whole.tokens_BL[:1], run(keys(1), alone, decoder, strategy=strategy, num_steps=4).tokens_BL)
        for tokens_L, length in zip(np.asarray(whole.tokens_BL), (7, 4, 5), strict=True):
            assert tokens_L[length - 1] == EOS and not {EOS, 13} & {*tokens_L[: length - 1].tolist()}
            assert (tokens_L[length:] == self.IDS.padding).all()
        assert until(whole.canvas, EOS).sum(-1).tolist() == [7, 4, 5]  # the placed EOS is not editable
