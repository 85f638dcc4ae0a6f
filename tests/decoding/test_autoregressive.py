"""The causal model: cached and uncached, alone and in a batch, searching and scoring, agree."""

import dataclasses
import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import IDS
from support.refusals import refuses
from support.tiny import decoded, pairs, rows_of, tiny_model

from padir.decoding.autoregressive import (
    PrefixTrees,
    generate,
    length_limits,
    score_trees,
    write_targets,
)
from padir.decoding.search import Beam, Sampling
from padir.models import ModelConfig, Transformer
from padir.models.layers import RelativePositionBias, relative_position_bucket
from padir.refinement.segments import sentence_keys
from padir.text.ids import EOS, pad_rows

SEARCHES = [Beam(1), Beam(3), Sampling(size=2)]
SOURCES = rows_of([[pair] for pair in pairs([(4, 5), (6, 3), (3, 7), (7, 7)], length_token=False)], 8, 8)
LIMITS = jnp.array([12, 9, 16, 14])


@pytest.fixture(scope="module")
def causal():
    model, params = tiny_model(causal=True)
    # Sentences end at many lengths: some at their limits, some as soon as they can.
    params["token_embedder"]["embedding"] = params["token_embedder"]["embedding"].at[EOS].multiply(0.9)
    return model, params


def memory(model, params, source_BS):
    bound = model.bind({"params": params})
    encoded = bound.encode(source_BS, (source_BS > 0).astype(jnp.int32))
    return bound, bound.cross_kv(encoded.memory_BSD), encoded.segment_BS


def forced(model, params, batch):
    bound, *inputs = memory(model, params, batch.source_BS)
    return decoded(bound, batch.target_BL, batch.target_segment_BL, *inputs).logits_BLV


@functools.partial(jax.jit, static_argnums=0)
def scored(model, params, source_BS, target_RL):
    """The log-probability of each token of as many targets for each source, teacher-forced; 0 at padding."""
    present_RL = jnp.asarray(target_RL) > 0
    bound, *inputs = memory(model, params, jnp.repeat(source_BS, len(target_RL) // len(source_BS), axis=0))
    log_prob_RLV = jax.nn.log_softmax(decoded(bound, target_RL, present_RL.astype(jnp.int32), *inputs).logits_BLV)
    return jnp.where(present_RL, jnp.take_along_axis(log_prob_RLV, target_RL[..., None], axis=-1)[..., 0], 0.0)


class TestCache:
    @pytest.mark.parametrize(("search", "tied"), [*((search, True) for search in SEARCHES), (Beam(1), False)], ids=str)
    def test_agrees_token_for_token_with_none(self, search, tied, causal):
        model, params = causal if tied else tiny_model(causal=True, tied=False)
        bound, cross_kv, source_segment_BS = memory(model, params, SOURCES.source_BS)

        def uncached(tokens_BNL, slot_BNL, position, cache):
            """The whole row again, for each of its positions."""
            tokens_RL = tokens_BNL.reshape(-1, tokens_BNL.shape[-1])
            output = decoded(bound, tokens_RL, jnp.ones_like(tokens_RL), cross_kv, source_segment_BS)
            return output.logits_BLV[:, position].reshape(*tokens_BNL.shape[:2], -1), cache

        with_cache, score_BN, passes_B = write_targets(
            model, params, SOURCES.source_BS, LIMITS, search=search, max_length=16, seed=0
        )
        start = sentence_keys(SOURCES.source_BS, 0)
        without, passes_without_B = jax.jit(
            lambda key_B: generate(key_B, uncached, (), LIMITS, search, max_length=16, ids=IDS)
        )(start)
        np.testing.assert_array_equal(with_cache.tokens_BNL, without.tokens_BNL)
        np.testing.assert_array_equal(passes_B, passes_without_B)
        np.testing.assert_allclose(with_cache.log_prob_BN, without.log_prob_BN, rtol=1e-4)
        # Scoring gives the hypotheses the same log-probabilities.
        log_prob_RL = scored(model, params, SOURCES.source_BS, with_cache.tokens_BNL.reshape(-1, 16))
        log_prob_BN, done = log_prob_RL.sum(-1).reshape(with_cache.done_BN.shape), np.asarray(with_cache.done_BN)
        np.testing.assert_allclose(with_cache.log_prob_BN[done], log_prob_BN[done], rtol=1e-4)
        np.testing.assert_array_equal(score_BN > -jnp.inf, done)
        if tied:
            assert len(set(np.asarray(passes_B).tolist())) > 1

    def test_of_bfloat16_is_close(self, causal):
        model, params = causal
        half = Transformer(dataclasses.replace(model.config, dtype="bfloat16"), IDS)
        rows, _, _ = write_targets(half, params, SOURCES.source_BS, LIMITS, search=Beam(1), max_length=16, seed=0)
        present = np.asarray(rows.tokens_BNL[:, 0]) > 0
        log_prob_BL = scored(half, params, SOURCES.source_BS, rows.tokens_BNL[:, 0])
        np.testing.assert_allclose(rows.log_prob_BN[:, 0], log_prob_BL.sum(-1), rtol=0.05)
        assert present.any() and half.bind({"params": params}).empty_cache(1, 1, 4)[0][0].dtype == jnp.bfloat16

    def test_bias_of_one_query_is_its_row_of_all(self):
        bias = RelativePositionBias(2, bidirectional=False)
        params = bias.init(jax.random.key(0), 40)
        every = bias.apply(params, 40)
        for position in (0, 17, 39):
            np.testing.assert_array_equal(bias.apply(params, 40, jnp.array(position))[:, :, 0], every[:, :, position])


class TestHypotheses:
    def test_trees_of_targets_have_the_scores_of_the_targets(self, causal):
        """Targets that share a beginning or part early, an equal pair, and an empty one; 4 sentences."""
        model, params = causal
        draw = random.Random(0)
        targets = [
            [[*draw.choices((7, 8), k=draw.randint(0, 30)), EOS], [7, 8, 7, 9, EOS], [7, 8, EOS], [7, 8, EOS], []]
            for _ in range(4)
        ]
        _, *inputs = memory(model, params, SOURCES.source_BS)
        log_prob_BN = score_trees(model, params, *inputs, PrefixTrees.of(targets, 8), group=8)
        target_RL = pad_rows([each for own in targets for each in own], 32)
        expected_RL = scored(model, params, SOURCES.source_BS, target_RL)
        np.testing.assert_allclose(log_prob_BN, expected_RL.sum(-1).reshape(4, 5), rtol=1e-4, atol=1e-4)

    def test_a_prefix_of_several_targets_is_one_node(self):
        trees = PrefixTrees.of([[[7, 8, 9, EOS], [7, 8, 9, EOS], [7, 8, 6, 9, EOS]], [[5, EOS]]], 7)
        assert trees.token_BU.tolist() == [[0, 7, 8, 6, 9, 9, 0], [0, 5, 0, 0, 0, 0, 0]]
        assert trees.depth_BU.tolist() == [[0, 1, 2, 3, 4, 3, 0], [0, 1, 0, 0, 0, 0, 0]]


class TestTeacherForcing:
    @pytest.mark.parametrize("kind", ["causal", "dual"])
    def test_a_token_changes_what_comes_after_it_only(self, kind, causal):
        """A dual model has the distances of its refining decoder."""
        model, params = causal if kind == "causal" else tiny_model(dual=True)
        model = model if kind == "causal" else Transformer(model.config.as_causal(), IDS)
        assert model.bind({"params": params}).decoder.relpos_bias.bidirectional == (kind == "dual")
        before = forced(model, params, SOURCES)
        changed = dataclasses.replace(SOURCES, target_BL=SOURCES.target_BL.at[:, 2].add(1))
        moved_BL = jnp.abs(forced(model, params, changed) - before).max(-1) > 1e-6
        assert not moved_BL[:, :3].any() and moved_BL[:, 3].all()

    def test_what_a_target_holds_after_its_eos_changes_nothing(self, causal):
        model, params = causal
        other = jnp.where(SOURCES.target_segment_BL == 0, IDS.first_regular, SOURCES.target_BL)
        present = np.asarray(SOURCES.target_segment_BL) > 0
        one, two = (
            forced(model, params, dataclasses.replace(SOURCES, target_BL=t)) for t in (SOURCES.target_BL, other)
        )
        np.testing.assert_array_equal(one[present], two[present])


class TestConfig:
    def test_a_causal_model_has_neither_positions_nor_lengths(self):
        config = ModelConfig(causal=True, positional_attention=True)
        assert not config.positional_attention and not config.length_token
        assert config == ModelConfig(causal=True) != ModelConfig()

    def test_each_kind_refuses_the_passes_of_the_other(self, causal):
        bound, cross_kv, segment_BS = memory(*causal, SOURCES.source_BS)
        target_BL = SOURCES.target_BL
        inputs = target_BL, SOURCES.target_segment_BL, cross_kv, segment_BS
        refuses(bound.draft_states, "cannot decode a draft", *inputs)
        model, params = tiny_model()
        refuses(model.bind({"params": params}).target_states, "only a causal model", *inputs)

    def test_causal_buckets(self):
        # 16 exact distances, then 16 + floor(16 * log(n / 16) / log(8)) up to 31; nothing to the right is told apart.
        distances = np.array([-5, 0, 1, 15, 16, 20, 32, 64, 100, 127, 128, 500])
        expected = [0, 0, 1, 15, 16, 17, 21, 26, 30, 31, 31, 31]
        assert relative_position_bucket(-distances, bidirectional=False).tolist() == expected

    def test_length_limits(self):
        assert length_limits([1, 10, 60], max_length=128) == [18, 36, 128]
