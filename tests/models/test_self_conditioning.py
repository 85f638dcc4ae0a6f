"""Self-conditioning: what the decoder is told of its last pass, in the model, the loop, training and translation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import IDS, keys
from support.tiny import one_layer_model, pairs, rows_of
from support.tiny_model import random_translator

from padir.errors import PadirError
from padir.models import ModelConfig, transformer
from padir.refinement import Constant, Output, Padir, Uniform, draft, refine
from padir.refinement.canvas import unbelieving
from padir.training.objective import Objective

BATCH = rows_of([pairs([(4, 6), (5, 8)]), pairs([(7, 9)], seed=1)], 16, 16)


@functools.cache
def believer():
    return one_layer_model(self_conditioning=True)


@functools.partial(jax.jit, static_argnums=0)
def decoded(model, params, belief_BLD=None):
    bound = model.bind({"params": params})
    encoded = bound.encode(BATCH.source_BS, BATCH.source_segment_BS, num_segments=2)
    cross_kv = bound.cross_kv(encoded.memory_BSD)
    seen = BATCH.target_BL, BATCH.target_segment_BL, cross_kv, encoded.segment_BS
    return bound.decode(*seen, belief_BLD=belief_BLD)


class TestModel:
    def test_a_belief_of_zeros_is_none_and_another_changes_the_logits(self):
        model, params = believer()
        plain = decoded(model, params)
        zeros = jnp.zeros((*BATCH.target_BL.shape, model.config.width))
        np.testing.assert_array_equal(decoded(model, params, zeros).logits_BLV, plain.logits_BLV)
        assert (jnp.abs(decoded(model, params, zeros + 1.0).logits_BLV - plain.logits_BLV).max(-1) > 1e-3)[:, :9].all()

    def test_a_belief_is_the_mean_embedding_under_the_distribution(self):
        model, params = believer()
        output = decoded(model, params)
        expected = jax.nn.softmax(output.logits_BLV) @ params["token_embedder"]["embedding"]
        np.testing.assert_allclose(output.belief_BLD, expected, rtol=1e-3, atol=1e-4)
        model, params = one_layer_model()
        assert decoded(model, params).belief_BLD is None and "belief_projection" not in params

    def test_no_gradient_flows_through_a_belief(self):
        model, params = believer()
        gradient = jax.grad(lambda params: decoded(model, params).belief_BLD.sum())(params)
        assert not any(leaf.any() for leaf in jax.tree.leaves(gradient))

    def test_the_logits_are_computed_once(self, monkeypatch):
        """A search block by block would project all states a second time."""
        monkeypatch.setattr(transformer, "MOST_LOGITS", 0)
        for model, params in (believer(), one_layer_model()):
            memory_BSD = jnp.ones((1, 4, model.config.width))
            cross_kv, ones_BL = model.bind({"params": params}).cross_kv(memory_BSD), jnp.ones((1, 4), jnp.int32)
            output = model.bind({"params": params}).decode(ones_BL, ones_BL, cross_kv, ones_BL, find_best=True)
            assert (output.found_BL is None) == model.config.self_conditioning

    @pytest.mark.parametrize("other", ["causal", "dual", "decontextualised"])
    def test_excludes_other_decoders(self, other):
        with pytest.raises(PadirError, match="self_conditioning=True excludes"):
            ModelConfig(self_conditioning=True, **{other: True})


class TestLoop:
    def run(self, **options):
        start = unbelieving(draft(keys(4), jnp.array([2, 4, 6, 8]), 8, Uniform(), IDS), 3)

        def decoder(canvas):
            """Counts the passes of each row in its belief, and writes 10 more than the count, up to 13."""
            answer_BL = jnp.minimum(10 + canvas.belief_BLD[..., 0].astype(int), 13)
            return Output(9.0 * jax.nn.one_hot(answer_BL, IDS.vocab_size), belief_BLD=canvas.belief_BLD + 1)

        return refine(keys(4), start, decoder, Padir(remask="none"), **options)

    def test_each_pass_sees_the_belief_of_the_pass_before(self):
        for steps in (1, 2, 3):
            assert (self.run(num_steps=steps).tokens_BL[3, :7] == 9 + steps).all()
        refined = self.run(num_steps=9)
        assert refined.passes_B.tolist() == [5] * 4 and (refined.canvas.belief_BLD[..., 0] == 5).all()

    def test_in_groups_of_rows_and_in_parts(self):
        whole = self.run(num_steps=3)
        grouped = self.run(num_steps=3, rows_at_once=3)
        np.testing.assert_array_equal(grouped.tokens_BL, whole.tokens_BL)
        np.testing.assert_array_equal(grouped.canvas.belief_BLD, whole.canvas.belief_BLD)


class TestTraining:
    @functools.partial(jax.jit, static_argnums=(0, 1))
    def gradient(self, objective):
        model, params = believer()
        loss = lambda params: objective(jax.random.key(0), params, BATCH, model=model, num_segments=2, dropout=False)[0]  # noqa: E731
        return jax.grad(loss)(params)

    def test_the_second_stage_trains_the_projection(self):
        for weights in (("all", "all"), ("none", "all")):
            assert self.gradient(Objective(stage_weights=weights))["belief_projection"]["kernel"].any()

    def test_one_stage_is_refused(self):
        with pytest.raises(PadirError, match="stages must be at least 2, got 1"):
            self.gradient(Objective(stage_weights=("all",)))


def test_translates(tokenizer):
    """The first pass is that of any candidate; the second knows the first, in groups and with more lengths alike."""
    translator = random_translator(tokenizer, self_conditioning=True, max_length=8)
    texts = ["eins", "zwei drei vier", "fünf sechs sieben acht"]
    found = translator.translate(texts, num_steps=3, strategy=Constant())
    alone = [translator.translate([text], num_steps=3, strategy=Constant())[0] for text in texts]
    assert [one.text for one in found] == [one.text for one in alone]
    more = translator.translate(texts, num_steps=3, strategy=Constant(), top_k=3, n_best=3)
    best = [
        max(score for _, score in three.candidates) for three in more
    ]  # the text may be of another: whole characters
    assert all(one.score <= score + 1e-5 for one, score in zip(found, best, strict=True))
