"""Attention that is sown, measures of pairs made of it, and what tells stutter from the rest."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from support.fakes import IDS
from support.refusals import refused
from support.tiny import tiny_model

from padir import Decoding
from padir.evaluation import TestSet
from padir.models.config import ModelConfig
from padir.studies.analysis import attention
from padir.studies.analysis.association import auc, separation, within
from padir.studies.analysis.attention import Maps, attend
from padir.studies.analysis.study import check_model


def encoded(model, params, sources):
    source_BS = jnp.array(sources)
    bound = model.bind({"params": params})
    segment_BS = (source_BS > 0).astype(jnp.int32)
    memory = bound.encode(source_BS, segment_BS)
    return bound.cross_kv(memory.memory_BSD), memory.segment_BS


SOURCES = [[IDS.length, 40, 41, IDS.eos], [IDS.length, 42, IDS.eos, 0]]


@pytest.fixture(scope="module")
def looked():
    """Two sentences, three and two tokens long, with the maps of a pass."""
    model, params = tiny_model()
    tokens_BL = jnp.array([[10, 11, IDS.eos], [12, IDS.eos, 0]])
    segment_BL = (tokens_BL > 0).astype(jnp.int32)
    memory = encoded(model, params, SOURCES)
    return model, params, tokens_BL, segment_BL, memory, attend(model, params, tokens_BL, segment_BL, *memory)


def test_every_layer_and_head_is_there(looked):
    *_, (maps, _) = looked
    assert maps.own_RJHLL.shape == maps.positional_RJHLL.shape == (2, 2, 2, 3, 3)
    assert maps.cross_RJHLS.shape == (2, 2, 2, 3, 4)
    for attn in (maps.own_RJHLL, maps.positional_RJHLL, maps.cross_RJHLS):
        assert_allclose(attn[0].sum(-1), 1.0, rtol=1e-5)
        assert np.ptp(np.asarray(attn[0]), axis=0).max() > 1e-3  # layers differ
    assert np.all(np.asarray(maps.own_RJHLL[1])[..., :2, 2] == 0)  # no one looks at padding
    assert np.all(np.asarray(maps.cross_RJHLS[:, ..., 0])[0] == 0)  # nor at [LENGTH]
    assert np.all(np.asarray(maps.cross_RJHLS[1])[..., :2, 3] == 0)


def test_hypotheses_have_the_attention_that_they_have_alone(looked):
    """Cross-attention folds the hypotheses of a sentence into its queries."""
    model, params, tokens_BL, segment_BL, memory, (maps, best_BL) = looked
    first = jax.tree.map(lambda x: x[:1], memory)
    twice_RL, segment_RL = jnp.stack([tokens_BL[0], tokens_BL[0][::-1]]), jnp.repeat(segment_BL[:1], 2, 0)
    both, best_RL = attend(model, params, twice_RL, segment_RL, *first)
    assert_allclose(both.cross_RJHLS[0], maps.cross_RJHLS[0], atol=1e-5)
    assert_allclose(both.own_RJHLL[0], maps.own_RJHLL[0], atol=1e-5)
    assert np.abs(both.cross_RJHLS[1] - both.cross_RJHLS[0]).max() > 1e-3
    assert best_RL[0].tolist() == best_BL[0].tolist()


def test_who_does_not_ask_gets_the_same_program(looked):
    """What is sown and not collected leaves no trace in the compiled computation."""
    model, params, tokens_BL, segment_BL, memory, _ = looked

    def decode(mutable):
        args = (tokens_BL, segment_BL, *memory)
        return jax.make_jaxpr(lambda p: model.apply({"params": p}, *args, method="draft_states", mutable=mutable))(
            params
        )

    plain, asked = decode(False), decode(["intermediates"])
    assert len(asked.jaxpr.outvars) == len(plain.jaxpr.outvars) + 2 * 3  # layers × kinds
    assert len(asked.jaxpr.eqns) == len(plain.jaxpr.eqns)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: check_model(ModelConfig(causal=True)), "autoregressive"),
        (lambda: check_model(ModelConfig(decontextualised=True)), "decontextualised"),
        (lambda: auc(np.arange(60.0), np.ones(60, bool)), "pairs of both kinds, got 60"),
    ],
)
def test_what_is_refused(call, words):
    with refused(words):
        call()


def fake_maps():
    """One sentence of three positions, one layer of two heads, two source positions."""
    own = np.zeros((1, 1, 2, 3, 3))
    own[0, 0, 0] = [[0.2, 0.8, 0.0], [0.4, 0.5, 0.1], [0.0, 0.3, 0.7]]
    own[0, 0, 1] = [[0.9, 0.1, 0.0], [0.1, 0.0, 0.9], [0.0, 0.5, 0.5]]
    cross = np.zeros((1, 1, 2, 3, 2))
    cross[0, 0, 0] = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    cross[0, 0, 1] = [[0.5, 0.5], [1.0, 0.0], [1.0, 0.0]]
    return Maps(own, cross)


def test_measures_of_a_table_that_can_be_checked_by_hand():
    values = attention.measure_pairs(fake_maps(), 0, attention.adjacent_pairs(3))
    assert "positional_min" not in values
    expected = {
        "self_min": [0.1, 0.2],
        "self_avg": [0.35, 0.45],
        "self_max": [0.6, 0.7],
        "tv_min": [0.0, 0.0],
        "tv_avg": [0.25, 0.5],
        "tv_max": [0.5, 1.0],
        "cosine_min": [0.0, 0.0],
        "cosine_avg": [(1 - 0.5**0.5) / 2, 0.5],
        "cosine_max": [1 - 0.5**0.5, 1.0],
    }
    assert set(values) == set(expected)
    for name, value_P in expected.items():
        assert_allclose(values[name], value_P, atol=1e-12, err_msg=name)
    assert attention.adjacent_pairs(1).shape == (0, 2)


def test_the_table_has_means_deviations_and_area():
    found = attention.Neighbours(
        {"tv_avg": np.array([0.1, 0.3, 0.2, 0.6, 0.7])},
        np.array([True, True, False, False, False]),
        np.array([0, 1, 0, 1, 1]),
    )
    (row,) = found.table()
    assert row["stutter_mean"] == pytest.approx(0.2) and row["stutter_sd"] == pytest.approx(0.02**0.5)
    assert row["other_mean"] == pytest.approx(0.5) and row["other_sd"] == pytest.approx(np.std([2, 6, 7], ddof=1) / 10)
    assert row["auc"] == pytest.approx(1 / 6)
    assert row["auc_low"] <= row["auc"] <= row["auc_high"]
    none = dataclasses.replace(found, stutter_P=np.zeros(5, bool)).table()
    assert none[0]["stutter_mean"] is None and "auc" not in none[0]


def test_area_is_the_chance_of_the_right_order():
    rng = np.random.default_rng(0)
    score_P, label_P = rng.integers(0, 5, 60).astype(float), rng.random(60) < 0.4
    pairs_of = [(a > b) + (a == b) / 2 for a in score_P[label_P] for b in score_P[~label_P]]
    assert auc(score_P, label_P) == pytest.approx(np.mean(pairs_of))


def test_intervals_are_wider_where_pairs_come_in_groups():
    rng = np.random.default_rng(1)
    of_group = rng.normal(size=40)  # all pairs of a sentence are alike
    score_P, label_P = of_group.repeat(25), (of_group + rng.normal(size=40) > 0).repeat(25)
    alone = separation(score_P, label_P, np.arange(1000))
    grouped = separation(score_P, label_P, np.arange(40).repeat(25))
    assert alone.value == grouped.value
    assert grouped.high - grouped.low > 2 * (alone.high - alone.low)


def test_intervals_are_those_of_samples_that_are_written_out():
    """The weighted figures against those of the pairs of the groups drawn, each as often as it was drawn."""
    rng = np.random.default_rng(2)
    group_P = np.repeat(np.arange(12), rng.integers(1, 6, 12))
    score_P = rng.integers(0, 4, len(group_P)).astype(float)  # with many equal values
    label_P = rng.normal(size=len(group_P)) > 0
    found = separation(score_P, label_P, group_P, seed=3, resamples=60)
    draws, drawn = np.random.default_rng(3), []
    for _ in range(60):
        times_G = draws.multinomial(12, np.full(12, 1 / 12))
        drawn.append(auc(np.repeat(score_P, times_G[group_P]), np.repeat(label_P, times_G[group_P])))
    assert found.value == pytest.approx(auc(score_P, label_P))
    assert_allclose((found.low, found.high), np.percentile(drawn, [2.5, 97.5]), rtol=1e-9)


def test_within_a_sentence_what_sentences_differ_in_does_not_help():
    """A score that knows the sentence and nothing else, where some sentences stutter more than others."""
    rng = np.random.default_rng(5)
    rate_G = rng.random(60)
    group_P = np.arange(60).repeat(20)
    label_P = rng.random(1200) < rate_G[group_P]
    assert separation(rate_G[group_P], label_P, group_P).low > 0.7
    assert within(rate_G[group_P], label_P, group_P).value == 0.5
    score_P = rate_G[group_P] + rng.normal(size=1200) + label_P
    compared = [
        (a > b) + (a == b) / 2
        for group in range(60)
        for a in score_P[(group_P == group) & label_P]
        for b in score_P[(group_P == group) & ~label_P]
    ]
    found = within(score_P, label_P, group_P)
    assert found.value == pytest.approx(np.mean(compared)) and found.low < found.value < found.high
    assert np.isnan(within(score_P[:2], np.array([True, False]), np.array([0, 1])).value)


def test_what_has_no_interval_is_no_number():
    score_P, label_P = np.array([1.0, 2.0, 3.0]), np.array([False, True, True])
    one = separation(score_P, label_P, np.zeros(3, int))
    assert one.value == 1.0 and np.isnan(one.low) and np.isnan(one.high)


def test_neighbours_of_real_drafts(translator):
    """Stutter is read off the draft, and the pass that writes it differs from the one that reads it."""
    sources = ["eins zwei drei", "vier fünf sechs sieben acht", ""]
    test_set = TestSet("numbers", "de", "en", sources, ["one", "two", ""])
    from padir.studies.analysis.study import refined

    decoding = Decoding(num_steps=1, batch_size=2)
    writes = attention.neighbours(translator, test_set, decoding, step=1)
    reads = attention.neighbours(translator, test_set, decoding, step=1, when="reads")
    (one,) = refined(translator, test_set, decoding)
    expected = [
        one.tokens_TBL[1, row, i] == one.tokens_TBL[1, row, i + 1]
        for row, _ in one.rows()
        for i in range(one.length_B[row] - 2)
    ]
    assert writes.stutter_P.tolist() == reads.stutter_P.tolist() == expected
    assert set(writes.sentence_P.tolist()) <= {0, 1} and len(expected) > 0
    assert np.abs(writes.values["tv_avg"] - reads.values["tv_avg"]).max() > 1e-4
    assert_allclose(writes.values["positional_avg"], reads.values["positional_avg"], atol=1e-6)
    with refused("writes, reads, got 'sees'"):
        attention.neighbours(translator, test_set, decoding, when="sees")
