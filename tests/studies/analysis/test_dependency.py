"""Dependency: estimators against exact values of small joint distributions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from support.fakes import FIRST, IDS, conditionals, given
from support.refusals import refused
from support.tiny_model import random_translator

from padir import Decoding
from padir.data.toy import references
from padir.evaluation import TestSet
from padir.refinement.scores import forbid
from padir.studies.analysis import agreement, attention, dependency, study
from padir.studies.analysis.agreement import Agreement
from padir.studies.analysis.dependency import Dependence, dependence, joined_dependence
from padir.studies.analysis.truth import Joint, joints

PAIRS = np.array([[0, 1], [0, 2], [1, 2]])
HAT = "Im Februar zeigt sein Mann Maria einen Hut."  # in February first or last, Maria a hat or a hat to Maria
MASKS = np.array([IDS.mask] * 3 + [IDS.eos])


def random_joint(seed, choices=3):
    joint_VVV = np.random.default_rng(seed).dirichlet(np.full(choices**3, 0.4)) + 1e-3
    return (joint_VVV / joint_VVV.sum()).reshape(choices, choices, choices)


def asked(decoder):
    """What `dependence` asks for, of a fake model."""

    def distribution(tokens_RL, position_R):
        log_RLV = jax.nn.log_softmax(decoder(given(jnp.asarray(tokens_RL))), axis=-1)
        return np.asarray(log_RLV)[np.arange(len(position_R)), position_R]

    return distribution


def information(joint_VV):
    outer_VV = joint_VV.sum(1, keepdims=True) * joint_VV.sum(0, keepdims=True)
    return float((joint_VV * np.log(joint_VV / outer_VV)).sum())


@pytest.mark.parametrize("seed", range(3))
def test_given_nothing_it_is_the_mutual_information(seed):
    joint_VVV = random_joint(seed)
    model = asked(conditionals(joint_VVV))
    found = dependence(model, MASKS, MASKS, np.array([True] * 3 + [False]), PAIRS, values=3)
    expected = [information(joint_VVV.sum(k)) for k in (2, 1, 0)]
    assert_allclose(found.information_P, expected, atol=2e-5)
    assert_allclose(found.coverage_P, 1.0, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_given_the_rest_it_is_conditional(seed):
    joint_VVV, state = random_joint(seed), (2, 0, 1)
    model = asked(conditionals(joint_VVV))
    tokens_L = np.array([*(FIRST + v for v in state), IDS.eos])
    found = dependence(model, tokens_L, MASKS, np.zeros(4, bool), PAIRS, values=3)
    rest = [joint_VVV[:, :, state[2]], joint_VVV[:, state[1], :], joint_VVV[state[0]]]
    assert_allclose(found.information_P, [information(j / j.sum()) for j in rest], atol=2e-5)


def test_fewer_values_cover_less():
    joint_VVV = random_joint(0)
    model = asked(conditionals(joint_VVV))
    found = dependence(model, MASKS, MASKS, np.array([True] * 3 + [False]), PAIRS, values=2)
    singles = [np.sort(joint_VVV.sum(axes))[::-1][:2].sum() for axes in ((1, 2), (0, 2), (0, 1))]
    expected = [(singles[i] + singles[j]) / 2 for i, j in PAIRS]
    assert_allclose(found.coverage_P, expected, atol=1e-5)
    tried = []  # by pair: the joint distributions of two values of one position and any of the other
    for joint_VV in (joint_VVV.sum(k) for k in (2, 1, 0)):
        i, j = (np.argsort(-joint_VV.sum(axis))[:2] for axis in (1, 0))
        tried.append([joint_VV[i], joint_VV[:, j]])
    expected = [np.mean([information(some / some.sum()) for some in both]) for both in tried]
    assert_allclose(found.information_P, expected, atol=2e-5)
    with refused("values at least 2, got 1"):
        dependence(model, MASKS, MASKS, np.zeros(4, bool), PAIRS, values=1)


def test_both_directions_of_a_pair_count():
    """With 2 of 3 values the two directions differ, so that one of them alone changes with the pair's order."""
    model = asked(conditionals(random_joint(0)))
    masked_L = np.array([True] * 3 + [False])
    one, other = (dependence(model, MASKS, MASKS, masked_L, np.asarray(p), values=2) for p in (PAIRS, PAIRS[:, ::-1]))
    assert_allclose(one.information_P, other.information_P, rtol=1e-6)


@pytest.mark.parametrize("given_draft", [False, True])
def test_a_joint_passes_the_cycle_test(given_draft):
    joint_VVV = random_joint(4)
    model = asked(conditionals(joint_VVV))
    tokens_L = np.array([FIRST, FIRST + 1, FIRST + 2, IDS.eos])
    masked_L = np.array([not given_draft] * 3 + [False])
    found = dependence(model, tokens_L, MASKS, masked_L, PAIRS, values=3)
    assert found.cycle_gap_P.max() < 1e-4
    assert np.abs(found.odds_P2).max() > 0.5  # else there was nothing to agree on
    if not given_draft:
        joint_VV = joint_VVV.sum(2)
        a, b = (np.argsort(-joint_VV.sum(axis))[:2] for axis in (1, 0))
        block = np.log(joint_VV[np.ix_(a, b)])
        assert found.odds_P2[0, 0] == pytest.approx(block[0, 0] + block[1, 1] - block[0, 1] - block[1, 0], abs=1e-4)


def test_conditionals_of_two_joints_fail_it():
    """Position 0 answers by one joint, the others by another: the gap is the difference of their odds."""
    first, second = (random_joint(seed) for seed in (5, 6))
    one, other = (conditionals(j) for j in (first, second))

    def mixed(canvas):
        return jnp.where(jnp.arange(4)[None, :, None] == 0, one(canvas), other(canvas))

    found = dependence(asked(mixed), MASKS, MASKS, np.array([True] * 3 + [False]), PAIRS, values=3)
    a, b = np.argsort(-first.sum((1, 2)))[:2], np.argsort(-second.sum((0, 2)))[:2]

    def odds(joint_VV):
        block = np.log(joint_VV[np.ix_(a, b)])
        return block[0, 0] + block[1, 1] - block[0, 1] - block[1, 0]

    assert_allclose(found.odds_P2[0], [odds(first.sum(2)), odds(second.sum(2))], atol=1e-4)
    assert found.cycle_gap_P[0] > 0.1 and found.cycle_gap_P[2] < 1e-4


def test_the_summary_leaves_out_what_is_never_written():
    odds_P2 = np.array([[1.0, 1.5], [2.0, 2.5], [-1.0, 9.0]])
    one = Dependence(np.zeros(3), np.ones(3), odds_P2, np.array([0.2, 0.1, 1e-4]))
    summary = one.cycle()
    assert summary["pairs"] == 2 and summary["median_gap"] == pytest.approx(0.5)
    assert summary["correlation"] == pytest.approx(1.0)
    assert joined_dependence([one, one]).cycle()["pairs"] == 4
    assert np.isnan(one.cycle(least=0.9)["median_gap"])


def test_true_information_of_the_toy_corpus(toy_tokenizer):
    """All pairs of one length, against sums over the listed translations."""
    found = joints(HAT, toy_tokenizer)
    right = references(HAT)
    assert len(right) == 4 and found
    for length, joint in found.items():
        assert joint.tokens_KL.shape[1] == length - 1 and joint.prob_K.sum() == pytest.approx(1.0)
        texts = {toy_tokenizer.decode(tokens_L.tolist()) for tokens_L in joint.tokens_KL}
        assert joint.share == pytest.approx(sum(r.probability for r in right if r.text in texts))
        info_LL = joint.information()
        for i, j in itertools.product(range(length - 1), repeat=2):
            if i == j:
                continue
            table: dict = {}
            for tokens_L, prob in zip(joint.tokens_KL, joint.prob_K, strict=True):
                table[tokens_L[i], tokens_L[j]] = table.get((tokens_L[i], tokens_L[j]), 0) + prob
            single = [
                {v: sum(p for pair, p in table.items() if pair[side] == v) for v in {pair[side] for pair in table}}
                for side in (0, 1)
            ]
            exact = sum(p * np.log(p / single[0][v] / single[1][w]) for (v, w), p in table.items())
            assert info_LL[i, j] == pytest.approx(exact, abs=1e-9)


@pytest.fixture(scope="module")
def toy_tokenizer(tmp_path_factory):
    from padir.data.toy import ToyDeEn
    from padir.text.tokenizer import train

    lines = [line for pair in ToyDeEn(num_train=600).pairs("train") for line in pair]
    return train(lines, tmp_path_factory.mktemp("toy") / "v.model", size=600)


def test_independent_choices_have_no_information():
    joint = Joint(np.array([[1, 3], [1, 4], [2, 3], [2, 4]]), np.array([0.42, 0.18, 0.28, 0.12]))
    info_LL = joint.information()
    assert info_LL[0, 1] == pytest.approx(0, abs=1e-12)
    assert info_LL[0, 0] == pytest.approx(-(0.6 * np.log(0.6) + 0.4 * np.log(0.4)))


def test_agreement_of_a_model_with_the_truth(toy_tokenizer):
    """Every pair of the chosen sentences, with their truth; a model that has learned nothing finds nothing certain."""
    translator = random_translator(toy_tokenizer, max_length=40)
    test_set = TestSet("toy_de_en", "de", "en", ["Ein Bäcker war arm.", HAT], ["", ""])
    sentences = agreement.with_truth(translator, test_set)
    found = agreement.measure_agreement(translator, test_set, Decoding(num_steps=1), sentences, values=2, canvases=2)
    assert [s.number for s in sentences] == [1]
    sizes = {s.number: (s.length - 1) * (s.length - 2) // 2 for s in sentences}
    assert {n: int((found.sentence_P == n).sum()) for n in sizes} == sizes
    assert found.truth_P is not None and found.truth_P.max() > 0.5
    assert np.all(found.vary_P[found.truth_P > 1e-9])
    assert len(found.model.information_P) == 2 * len(found.truth_P)  # both canvases
    halves = np.split(found.model.information_P, 2)
    assert np.abs(halves[0] - halves[1]).max() > 1e-9
    assert np.allclose(found.values["model"], np.mean(halves, axis=0))
    singles = [
        agreement.measure_agreement(translator, test_set, Decoding(num_steps=1, seed=seed), sentences, values=2)
        for seed in (0, 1)
    ]
    for name in ("tv_avg", "self_max", "model"):  # attention, too, is the mean over canvases
        means = np.mean([one.values[name] for one in singles], axis=0)
        assert_allclose(found.values[name], means, rtol=1e-4, atol=1e-7)
    assert np.array_equal(found.score("distance"), -found.values["distance"])
    with refused("given='source'"):
        agreement.measure_agreement(translator, test_set, Decoding(), sentences, given_draft=True)


def test_a_sentence_is_measured_as_by_one_pass_for_each_question(translator, monkeypatch):
    """Canvases that are asked for several positions go through the decoder once, in parts, pairs in several groups."""
    test_set = TestSet("n", "de", "en", ["eins zwei drei vier", "neun"], ["", ""])
    (one,) = study.refined(translator, test_set, Decoding(num_steps=2), [6, 4])
    row, size = next((row, 5) for row, number in one.rows() if number == 0)
    pairs_P2 = attention.all_pairs(size)
    start_L, draft_L = one.tokens_TBL[0, row], one.tokens_TBL[-1, row]
    present_BL = jnp.array([[1] * (size + 1) + [0] * (len(start_L) - size - 1)])
    memory = jax.tree.map(lambda x: x[row : row + 1], (one.batch.cross_kv, one.batch.encoded.segment_BS))

    @jax.jit
    def log_probs(tokens_BL):
        output = translator.model.apply(
            {"params": translator.params}, tokens_BL, present_BL, *memory, method="decode"
        )  # fmt: skip
        return jax.nn.log_softmax(forbid(output.logits_BLV, translator.model.ids.special))

    def distribution(tokens_RL, position_R):
        asked_for = zip(tokens_RL, position_R, strict=True)
        return np.array([log_probs(jnp.array(tokens_L[None]))[0, position] for tokens_L, position in asked_for])

    monkeypatch.setattr(dependency, "_ROWS", 8)
    monkeypatch.setattr(dependency, "_DISTRIBUTIONS", 3 * 2 * translator.card.ids.num_embeddings)
    for given_draft in (False, True):
        masked_L = (np.arange(len(draft_L)) < size) & (not given_draft)
        expected = dependence(distribution, draft_L, start_L, masked_L, pairs_P2, values=2)
        found = dependency.sentence_dependence(translator, one, row, pairs_P2, values=2, given_draft=given_draft)
        assert expected.information_P.max() > 1e-5
        for name in ("information_P", "coverage_P", "odds_P2", "least_P"):
            assert_allclose(
                getattr(found, name), getattr(expected, name), rtol=1e-3, atol=1e-5, err_msg=name
            )  # fmt: skip


def test_the_table_finds_a_measure_that_is_the_truth():
    rng = np.random.default_rng(0)
    truth_P = np.where(rng.random(80) < 0.3, rng.random(80) + 0.1, 0.0)
    nothing = Dependence(*[np.zeros(80)] * 2, np.zeros((80, 2)), np.zeros(80))
    found = Agreement(
        {"tv_avg": 1 - truth_P, "self_avg": rng.random(80), "model": truth_P},
        truth_P,
        np.ones(80, bool),
        np.arange(80) % 2 == 0,
        np.arange(80) // 8,
        nothing,
    )
    rows = {(row["pairs"], row["measure"]): row for row in found.table()}
    assert rows["all pairs", "tv_avg"]["auc"] == rows["neighbours", "model"]["auc"] == 1.0
    assert rows["all pairs", "tv_avg"]["pearson"] == pytest.approx(1.0)
    assert 0.3 < rows["all pairs", "self_avg"]["auc"] < 0.7
    assert rows["neighbours", "model"]["number"] == 40


def test_sentences_without_a_choice_are_refused(tokenizer, toy_tokenizer):
    translator = random_translator(toy_tokenizer, max_length=40)
    one = TestSet("toy_de_en", "de", "en", ["Ein Bäcker war arm."], [""])
    assert len(references("Ein Bäcker war arm.")) == 1
    with refused("several right translations"):
        agreement.with_truth(translator, one)
    numbers = random_translator(tokenizer)
    chosen = agreement.without_truth(numbers, TestSet("n", "de", "en", ["eins", " "], ["", ""]))
    assert [s.number for s in chosen] == [0] and chosen[0].joint is None
