"""The exact decoder, and errors of strategies beside it that a person can compute."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from support.fakes import IDS, canvas, given
from support.refusals import refused

from padir.refinement import STRATEGIES, MaskPredict, SundaeSampling, parse_strategy
from padir.studies.analysis import analyses, audit
from padir.studies.analysis.truth import FIRST, ExactDecoder, Joint, noise_rate

PIECES = 300
TWO = Joint(np.array([[7, 8], [8, 7]]), np.array([0.5, 0.5]))  # two right answers that differ in both positions
FIVE = Joint(np.array([[9, 9, 9], [9, 8, 7], [7, 8, 9], [8, 8, 8], [7, 9, 8]]), np.array([0.35, 0.25, 0.2, 0.15, 0.05]))


def targets(joint, draws=4_000):
    return audit.Targets(["hand"], [joint], PIECES, draws)


def of(joint, strategy, steps, canvas="mask", draws=4_000):
    found, _ = audit.errors_of(targets(joint, draws), parse_strategy(strategy), canvas, steps, 0)
    return audit.Errors(*(float(each[0]) for each in found))


def weights(joint, shown_L, rate):
    """w_k times the likelihood of the canvas, factor by factor, in float64."""
    return np.array(
        [
            w * np.prod([(1 - rate) * (z == x) + rate / PIECES for z, x in zip(shown_L, answer_L, strict=True)])
            for w, answer_L in zip(joint.prob_K, joint.tokens_KL, strict=True)
        ]
    )


def no_noise(canvas):
    return jnp.zeros(len(canvas.tokens_BL))


@pytest.mark.parametrize("rate", [1.0, 0.6, 0.01])
def test_a_random_canvas_gives_the_posterior(rate):
    oracle = ExactDecoder.of([FIVE], PIECES)
    shown = [(8, 8, 9), (7, 9, 9), (8, 9, 7), (9, 9, 9)]
    noise = 200 - FIRST + 7  # no right token
    shown.append((noise, 8, noise))
    tokens_BL = jnp.array([[*(FIRST + token - 7 for token in row), IDS.eos] for row in shown])
    output = oracle.decoder(lambda canvas: jnp.full(len(shown), rate))(given(tokens_BL))
    for row, found_LV, keep_L in zip(shown, np.exp(output.logits_BLV), output.keep_logits_BL, strict=True):
        weight_K = weights(FIVE, row, rate)
        weight_K /= weight_K.sum()
        for i, token in itertools.product(range(3), (7, 8, 9)):
            exact = weight_K[FIVE.tokens_KL[:, i] == token].sum()
            assert found_LV[i, FIRST + token - 7] == pytest.approx(exact, rel=1e-4, abs=1e-7)
        right = [weight_K[FIVE.tokens_KL[:, i] == row[i]].sum() for i in range(3)]
        assert_allclose(jax.nn.sigmoid(keep_L[:3]), right, rtol=1e-3, atol=1e-6)
        assert found_LV[:3].sum(-1) == pytest.approx(1, abs=1e-5)


def test_a_masked_canvas_is_conditioned_on_what_is_visible():
    """By hand: given 8 in the middle, the second, third and fourth answers are left, with 25, 20 and 15 of 60. Tokens
    that no right answer has together are the limit: the answers that agree with most of them."""
    oracle = ExactDecoder.of([FIVE], PIECES)
    hidden = oracle.ids.mask
    tokens_BL = jnp.array([[hidden, FIRST + 1, hidden, 1], [FIRST, FIRST + 1, FIRST, 1], [FIRST + 2, hidden, FIRST, 1]])
    prob_BLV = np.exp(oracle.decoder(no_noise)(given(tokens_BL)).logits_BLV)[:, :3, FIRST:]
    assert_allclose(prob_BLV[0] * 60, [[20, 15, 25], [0, 60, 0], [25, 15, 20]], rtol=1e-5)
    # 7 8 7 is no answer; 9 8 7 and 7 8 9, with 25 and 20 of 45, differ from it in one token each.
    assert_allclose(prob_BLV[1] * 45, [[20, 0, 25], [0, 45, 0], [25, 0, 20]], rtol=1e-5)
    assert_allclose(prob_BLV[2], [[0, 0, 1], [0, 1, 0], [1, 0, 0]], rtol=1e-5)


def test_a_position_that_is_not_seen_is_not_conditioned_on():
    """A decontextualised decoder: position 0 sees position 1 alone, all others see nothing."""
    oracle = ExactDecoder.of([FIVE], PIECES)
    visible_BLL = jnp.zeros((1, 4, 4), bool).at[0, 0, 1].set(True)
    tokens_BL = jnp.array([[FIRST + 2, FIRST + 1, FIRST + 2, 1]])
    prob_LV = np.exp(oracle.decoder(no_noise)(given(tokens_BL, visible_BLL)).logits_BLV)[0, :3, FIRST:]
    assert_allclose(prob_LV[0] * 60, [20, 15, 25], rtol=1e-5)
    assert_allclose(prob_LV[1:], [[0, 0.6, 0.4], [0.25, 0.2, 0.55]], atol=1e-6)


def test_sentences_have_numbers_and_answers_of_their_own():
    """Two sentences, with other tokens and with fewer answers, in one batch: padding answers have no weight."""
    other = Joint(np.array([[50, 60, 70]]), np.array([1.0]))
    oracle = ExactDecoder.of([FIVE, other], PIECES)
    tokens_BL = jnp.array([[oracle.ids.mask] * 3 + [1]] * 4)
    prob_BLV = np.exp(oracle.decoder(no_noise)(given(tokens_BL)).logits_BLV)[:, :3, FIRST:]
    assert_allclose(prob_BLV[0], prob_BLV[1])
    assert_allclose(prob_BLV[1, 1], [0, 0.6, 0.4], atol=1e-6)
    assert_allclose(prob_BLV[3], np.eye(3), atol=1e-6)


def test_one_pass_mixes_as_often_as_a_person_computes():
    """Both positions are 7 or 8, by half. The argmax, with ties to the lower id, writes 7 7: always a mixture. Draws
    mix in one half of the cases."""
    assert of(TWO, "mask_predict", 1) == (1.0, 1.0, pytest.approx(np.log(4_000 + 1.5)))
    drawn = of(TWO, "padir:temperature=1.0", 1)
    assert drawn.not_right == pytest.approx(0.5, abs=0.03)
    assert drawn.tv == pytest.approx(0.5, abs=0.03)
    assert drawn.kl == pytest.approx(np.log(2), abs=0.05)  # each answer has a quarter instead of a half


@pytest.mark.parametrize("canvas", audit.CANVASES)
def test_fewer_mixtures_with_more_passes(canvas):
    """Without remasking each position is written in one of T passes, all equally likely: both in the same pass with
    probability 1 / T, and then half of the draws mix. The errors of the two answers are equal, so that the total
    variation is the share of mixtures. A random piece of 300 is known for noise as surely as a mask."""
    for steps in (1, 2, 4):
        found = of(TWO, "remdm:sigma=0.0", steps, canvas, draws=2_000)
        assert found.not_right == pytest.approx(1 / (2 * steps), abs=0.03)
        assert found.tv == pytest.approx(found.not_right, abs=0.03)


def test_one_position_a_pass_gives_the_truth():
    """By enumeration the product of the oracle's conditionals from left to right is each answer's probability, so that
    a whole sentence as a block of Gibbs draws exact samples in L + 1 passes."""
    oracle, hidden = ExactDecoder.of([FIVE], PIECES), ExactDecoder.of([FIVE], PIECES).ids.mask
    for answer_L, prob in zip(FIVE.tokens_KL - 7 + FIRST, FIVE.prob_K, strict=True):
        rows = [[*answer_L[:i], *[hidden] * (3 - i), 1] for i in range(3)]
        log_prob_BLV = oracle.decoder(no_noise)(given(jnp.array(rows))).logits_BLV
        chain = sum(float(log_prob_BLV[i, i, answer_L[i]]) for i in range(3))
        assert np.exp(chain) == pytest.approx(prob, rel=1e-5)
    exact, rough = (of(FIVE, "block_gibbs:block=9", steps) for steps in (4, 1))
    floor = audit.errors_of_draws(targets(FIVE), 0)
    assert exact.not_right == 0 and exact.tv < 3 * floor.tv[0] < 0.06 and exact.kl < 0.005
    # In one pass all positions are drawn alone: of 27 products the five answers have these.
    single = [(0.25, 0.15, 0.6), (0, 0.6, 0.4), (0.25, 0.2, 0.55)]
    product = [np.prod([single[i][token - 7] for i, token in enumerate(row)]) for row in FIVE.tokens_KL]
    assert rough.not_right == pytest.approx(1 - sum(product), abs=0.03)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_single_right_answer_leaves_no_error(name):
    only = Joint(np.array([[9, 8, 8, 7]]), np.array([1.0]))
    strategy = parse_strategy(name)
    for kind in audit.CANVASES:
        if audit.suits(strategy, kind):
            for steps in (1, 2, 5):
                found, passes_G = audit.errors_of(targets(only, 20), strategy, kind, steps, 0)
                assert found.not_right[0] == found.tv[0] == 0, (kind, steps)
                assert 1 <= passes_G[0] <= steps


def test_the_rate_is_the_share_of_noise():
    """All of a canvas is noise before the first pass. Then it is what is not written, or the strategy's own rate."""
    fresh = canvas([10, 11, 12, 13])
    half = fresh.replace(written_BL=jnp.array([[True, False, True, False, False]]))
    whole = fresh.replace(written_BL=fresh.editable_BL)
    for strategy, later in ((MaskPredict(), (0.5, 0.0)), (SundaeSampling(share=0.3), (0.5, 0.5))):
        assert noise_rate(strategy, fresh).tolist() == [1.0]
        assert [float(noise_rate(strategy, each)[0]) for each in (half, whole)] == pytest.approx(later)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        *(
            (lambda wrong=wrong: ExactDecoder.of(wrong, PIECES), "sentences of one length")
            for wrong in ([], [FIVE, TWO])
        ),
        (lambda: ExactDecoder.of([FIVE], 2), "at least 3"),
        (lambda: of(TWO, "padir:remask=logits", 2), "remask"),
        (lambda: audit.strategies_of(names=["padir", "paddir"]), "no strategy 'paddir'"),
        (lambda: audit.strategies_of(["no_such_module:Mine"]), "no strategy no_such_module:Mine"),
        (lambda: audit.strategies_of(["math:pi"]), "math:pi must be a strategy"),
        (
            lambda: audit.strategies_of(["datetime:date"]),
            "datetime:date missing name an instance",
        ),  # fields lack defaults
    ],
)
def test_what_is_refused(call, words):
    with refused(words):
        call()


def test_errors_of_counts():
    """Of 10 outputs 6 and 1 are right: q is 0.6, 0.1 and 0.3 beside the truth 0.5, 0.5; KL has 11.5 in all."""
    found = audit.errors([np.array([6, 1])], [TWO], 10)
    assert found.not_right == pytest.approx(0.3)
    assert found.tv == pytest.approx((0.1 + 0.4 + 0.3) / 2)
    assert found.kl == pytest.approx(0.5 * np.log(0.5 * 11.5 / 6.5) + 0.5 * np.log(0.5 * 11.5 / 1.5))


def test_the_floor_is_that_of_draws_from_the_truth():
    """The mean absolute deviation of the share of R fair coins is about sqrt(1 / (2 pi R))."""
    for draws in (100, 2_500):
        found = audit.errors_of_draws(audit.Targets(["hand"] * 400, [TWO] * 400, PIECES, draws), 0)
        assert found.tv.mean() == pytest.approx(1 / np.sqrt(2 * np.pi * draws), rel=0.1)
        assert (found.not_right == 0).all()


def test_numbers_of_passes():
    assert targets(FIVE).steps() == [1, 2, 4]
    assert targets(Joint(np.zeros((1, 8), int), np.ones(1))).steps() == [1, 2, 4, 8, 9]


def test_masks_are_for_masked_canvases():
    pairs = {(name, kind) for name, _, kind in audit.strategies_of()}
    masks_only = {"block_gibbs", "block_gibbs:block=99", "independent_parallel", "easy_first", "prediction_rejecter"}
    assert pairs == {
        (name, kind)
        for name in audit.STRATEGIES
        for kind in ("mask", "uniform")
        if (name != "rejecter" if kind == "mask" else name not in masks_only)  # the head judges tokens on pieces
    }
    assert {name.partition(":")[0] for name in audit.STRATEGIES} == {*STRATEGIES}


@pytest.mark.parametrize("seed", range(5))
def test_the_likeliest_tokens_are_no_wording(seed):
    joint = audit.wordings(np.random.default_rng(seed))
    assert joint.tokens_KL.shape == (5, 6) and len(np.unique(joint.tokens_KL, axis=0)) == 5
    assert joint.prob_K.sum() == pytest.approx(1)
    likeliest_L = [int(joint.prob_K[joint.tokens_KL[:, i] == 1].sum() > 0.5) for i in range(6)]
    assert likeliest_L not in joint.tokens_KL.tolist()


def test_spin_glasses_have_several_modes():
    """A mode is a state that is likelier than every state that differs from it in one spin."""
    modes = []
    for seed in range(20):
        joint = audit.spin_glass(np.random.default_rng(seed))
        assert joint.tokens_KL.shape == (64, 6) and joint.prob_K.sum() == pytest.approx(1)
        index = {tuple(row): k for k, row in enumerate(joint.tokens_KL.tolist())}
        near = [[index[(*row[:i], 1 - row[i], *row[i + 1 :])] for i in range(6)] for row in index]
        modes.append((joint.prob_K > joint.prob_K[near].max(-1)).sum())
    assert min(modes) >= 1 and np.mean(modes) >= 2


MINE = MaskPredict()


def test_ones_own_strategy_stands_beside_the_others(tmp_path):
    pytest.importorskip("matplotlib")
    options = analyses.AnalysisOptions(strategies=("mask_predict", "block_gibbs"), targets=3, outputs=20)
    own = f"{__name__}:MINE"
    found = analyses.run_oracle([own], options, output=str(tmp_path), tell=print)
    rows = {(row["targets"], row["canvas"], row["strategy"], row["steps"]): row for row in found["rows"]}
    assert {key[:3] for key in rows} == {
        *itertools.product(("wordings", "spin glasses"), ("mask", "uniform"), (own, "mask_predict")),
        *itertools.product(("wordings", "spin glasses"), ("mask",), ("block_gibbs",)),
        *itertools.product(("wordings", "spin glasses"), ("",), (audit.DRAWS,)),
    }
    assert {key[3] for key in rows if key[2] == own} == {1, 2, 4, 7}
    one, same = (rows["wordings", "mask", name, 1] for name in (own, "mask_predict"))
    assert {**one, "strategy": ""} == {**same, "strategy": ""}
    assert one["not_right"] == one["tv"] == 1 and one["tv_±"] == 0  # the likeliest tokens are never right
    assert all(row["not_right"] == 0 for row in rows.values() if row["targets"] == "spin glasses")
    assert rows["spin glasses", "mask", "block_gibbs", 7]["tv_±"] > 0
    assert json.loads((tmp_path / "oracle.json").read_text())["rows"] == found["rows"]
    assert (tmp_path / "oracle_strategies.png").read_bytes()[:4] == b"\x89PNG"


def test_the_interval_is_over_targets():
    found = audit.Errors(*np.array([[0.1, 0.3, 0.5, 0.7]] * 3))
    (row,) = audit._rows(audit.Targets(["hand"] * 4, [TWO] * 4, PIECES, 1), found, passes=np.ones(4))
    assert row["tv"] == pytest.approx(0.4)
    assert row["tv_±"] == pytest.approx(1.96 * np.sqrt((0.09 + 0.01) * 2 / 3) / 2)
