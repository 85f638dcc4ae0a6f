"""The exact decoder, and errors of strategies beside it that a person can compute."""

import dataclasses
import itertools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from support.fakes import IDS, canvas, given
from support.refusals import refused

from padir.refinement import STRATEGIES, MaskPredict, SundaeSampling, parse_strategy
from padir.studies.analysis import audit
from padir.studies.analysis.law import Law
from padir.studies.analysis.truth import FIRST, ExactDecoder, Joint, noise_rate

PIECES = 300
PIECES_FEW = 3  # every choice of a piece is enumerated
TWO = Joint(np.array([[7, 8], [8, 7]]), np.array([0.5, 0.5]))  # two right answers that differ in both positions
FIVE = Joint(np.array([[9, 9, 9], [9, 8, 7], [7, 8, 9], [8, 8, 8], [7, 9, 8]]), np.array([0.35, 0.25, 0.2, 0.15, 0.05]))


def of(joint, strategy, steps, canvas="mask"):
    found, _ = audit.errors_of(audit.Targets(["hand"], [joint], PIECES_FEW), parse_strategy(strategy), canvas, steps)
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
    mix in one half of the cases, so that each answer has a quarter instead of a half."""
    assert of(TWO, "mask_predict", 1) == (1.0, 1.0, np.inf)
    assert of(TWO, "padir:temperature=1.0", 1) == pytest.approx((0.5, 0.5, np.log(2)))


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_fewer_mixtures_with_more_passes(steps):
    """Without remasking each position is written in one of T passes, all equally likely: both in the same pass with
    probability 1 / T, and then half of the draws mix. The errors of the two answers are equal, so that the total
    variation is the share of mixtures."""
    found = of(TWO, "remdm:sigma=0.0", steps)
    assert found.not_right == pytest.approx(1 / (2 * steps)) and found.tv == pytest.approx(found.not_right)
    assert found.kl == pytest.approx(-np.log(1 - found.not_right))


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
    assert exact == pytest.approx((0, 0, 0), abs=1e-6)
    # In one pass all positions are drawn alone: of 27 products the five answers have these.
    single = [(0.25, 0.15, 0.6), (0, 0.6, 0.4), (0.25, 0.2, 0.55)]
    product = [np.prod([single[i][token - 7] for i, token in enumerate(row)]) for row in FIVE.tokens_KL]
    assert rough.not_right == pytest.approx(1 - sum(product))


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_single_right_answer_leaves_no_error(name):
    only = Joint(np.array([[9, 8, 8, 7]]), np.array([1.0]))
    strategy = parse_strategy(name)
    for kind in audit.CANVASES:
        if audit.suits(strategy, kind):
            for steps in (1, 2, 5):
                found, passes_G = audit.errors_of(audit.Targets(["hand"], [only], 3), strategy, kind, steps)
                assert found == pytest.approx((0, 0, 0), abs=1e-6), (kind, steps)
                assert 1 - 1e-5 <= passes_G[0] <= steps + 1e-5


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
        (
            lambda: audit.strategies_of(["no_such_module:Mine"]),
            "no_such_module:Mine' is in a module that is not imported",
        ),
        (lambda: audit.strategies_of(["padir"]), "MODULE:NAME, got 'padir'"),
        (lambda: audit.strategies_of(["math:pi"]), "math:pi must be a function step(tokens, logits, uniforms), or"),
        (lambda: audit.AuditOptions(targets=0), "targets must be at least 1, got 0"),
        (
            lambda: audit.strategies_of(["datetime:date"]),
            "datetime:date missing name an instance",
        ),  # fields lack defaults
    ],
)
def test_what_is_refused(call, words):
    with refused(words):
        call()


def test_errors_of_a_law():
    """The answers have 0.6 and 0.1, the rest 0.3, beside the truth 0.5, 0.5. A second target is hit exactly."""
    rows_KL = FIRST + np.array([[0, 1], [1, 0], [0, 0]])
    prob_K = np.array([0.6, 0.5, 0.1, 0.3, 0.5])
    found = Law(np.array([0, 1, 0, 0, 1]), rows_KL[[0, 0, 1, 2, 1]], prob_K, np.ones(2))
    first, second = zip(*audit.errors(found, [TWO, TWO]), strict=True)
    assert first == pytest.approx((0.3, (0.1 + 0.4 + 0.3) / 2, 0.5 * np.log(0.5 / 0.6) + 0.5 * np.log(0.5 / 0.1)))
    assert second == pytest.approx((0, 0, 0))


def test_the_best_schedule_of_a_person():
    """Two positions that say the same: one pass costs log 2, a second pass ends the cost. Three positions of which two
    say the same: the pair is drawn in one pass unless it is split, which two passes do in two of three orders."""
    assert audit.best_of(TWO) == pytest.approx([np.log(2)] + [0.0] * 6)
    pair = Joint(np.array([[a, a, b] for a in (7, 8) for b in (7, 8)]), np.full(4, 0.25))
    assert audit.best_of(pair) == pytest.approx([np.log(2), np.log(2) / 3] + [0.0] * 5)


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
    assert joint.tokens_KL.shape == (5, 5) and len(np.unique(joint.tokens_KL, axis=0)) == 5
    assert joint.prob_K.sum() == pytest.approx(1)
    likeliest_L = [int(joint.prob_K[joint.tokens_KL[:, i] == 1].sum() > 0.5) for i in range(5)]
    assert likeliest_L not in joint.tokens_KL.tolist()


def test_spin_glasses_have_several_modes():
    """A mode is a state that is likelier than every state that differs from it in one spin."""
    modes = []
    for seed in range(20):
        joint = audit.spin_glass(np.random.default_rng(seed))
        assert joint.tokens_KL.shape == (32, 5) and joint.prob_K.sum() == pytest.approx(1)
        index = {tuple(row): k for k, row in enumerate(joint.tokens_KL.tolist())}
        near = [[index[(*row[:i], 1 - row[i], *row[i + 1 :])] for i in range(5)] for row in index]
        modes.append((joint.prob_K > joint.prob_K[near].max(-1)).sum())
    assert min(modes) >= 1 and np.mean(modes) >= 2


MINE = MaskPredict()


def test_ones_own_strategy_stands_beside_the_others(tmp_path):
    pytest.importorskip("matplotlib")
    options = audit.AuditOptions(strategies=("mask_predict", "block_gibbs"), targets=3)
    own = f"{__name__}:MINE"
    found = audit.run([own], options, output=str(tmp_path), tell=print)
    rows = {(row["targets"], row["canvas"], row["strategy"], row["steps"]): row for row in found["rows"]}
    assert {key[:3] for key in rows} == {
        *itertools.product(("wordings", "spin glasses"), ("mask", "uniform"), (own, "mask_predict")),
        *itertools.product(("wordings", "spin glasses"), ("mask",), ("block_gibbs",)),
    }
    assert {key[3] for key in rows if key[2] == own} == {1, 2, 3, 4, 5, 6, 7}
    one, same = (rows["wordings", "mask", name, 1] for name in (own, "mask_predict"))
    assert {**one, "strategy": ""} == {**same, "strategy": ""}
    assert one["not_right"] == one["tv"] == 1 and one["tv_±"] == 0  # the likeliest tokens are never right
    assert one["kl"] is None  # infinite
    glasses = [row for row in rows.values() if row["targets"] == "spin glasses"]
    assert all(row["not_right"] == pytest.approx(0, abs=1e-6) for row in glasses)
    assert rows["spin glasses", "mask", "block_gibbs", 7]["tv_±"] > 0
    assert json.loads((tmp_path / "audit.json").read_text())["rows"] == found["rows"]
    assert (tmp_path / "audit_kl.png").read_bytes()[:4] == b"\x89PNG"


def test_matplotlib_is_needed_for_a_folder_alone(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as if it were not installed
    options = audit.AuditOptions(strategies=("mask_predict",), targets=1)
    assert audit.run([], options, tell=print)["rows"]
    with refused("matplotlib padir[plot]"):
        audit.run([], options, output=str(tmp_path / "new"), tell=print)
    assert not (tmp_path / "new").exists()


def test_the_interval_is_over_targets():
    found = audit.Errors(*np.array([[0.1, 0.3, 0.5, 0.7]] * 3))
    (row,) = audit._rows(audit.Targets(["hand"] * 4, [TWO] * 4, PIECES), found, np.ones(4), np.array([0, 0, 0, 0.4]))
    assert row["tv"] == pytest.approx(0.4) and row["over_best"] == pytest.approx(0.3)
    assert row["tv_±"] == pytest.approx(1.96 * np.sqrt((0.09 + 0.01) * 2 / 3) / 2)


def of_masks(tokens, logits, uniforms, mask):
    """Writes each mask with its likeliest token."""
    return np.where(tokens == mask, logits.argmax(-1), tokens)


def of_a_seed(tokens, logits, seed):
    return logits.argmax(-1)


def test_ones_own_functions_are_checked_beside_the_strategies(tmp_path):
    pytest.importorskip("matplotlib")
    said = []
    own = [f"{__name__}:of_masks", f"{__name__}:of_a_seed"]
    options = audit.AuditOptions(strategies=("mask_predict",), targets=2, samples=7)
    found = audit.run(own, options, output=str(tmp_path), tell=said.append)
    answers = {(row["sampler"], row["question"]): row["answer"] for row in found["checks"]}
    assert answers[own[0], "uses its random numbers"] == answers[own[1], "uses its random seeds"] == "no"
    assert f"{own[0]} uses its random numbers: no (two different ones give the same tokens)" in said
    assert found["sampled"] == [own[1]] and "Sampled, not exact (7 outputs" in (tmp_path / "audit.html").read_text()
    rows = {
        (row["strategy"], row["targets"]): row for row in found["rows"] if row["steps"] == 1 and row["canvas"] == "mask"
    }
    for name in own:
        errors = {key: value for key, value in rows[name, "wordings"].items() if key != "strategy"}
        assert errors == {key: value for key, value in rows["mask_predict", "wordings"].items() if key != "strategy"}


def of_its_own_numbers(tokens, logits, uniforms, mask):
    return np.where(tokens == mask, np.random.default_rng().integers(2, size=tokens.shape), tokens)


@dataclasses.dataclass(frozen=True)
class OwnNumbers(MaskPredict):
    """A strategy that draws by JAX itself."""

    def step(self, key_B, canvas, output, memory, *, step, num_steps):
        jax.vmap(jax.random.uniform)(key_B)
        return super().step(key_B, canvas, output, memory, step=step, num_steps=num_steps)


def test_what_cannot_be_enumerated_is_told_in_one_line():
    told = []
    options = audit.AuditOptions(strategies=(), targets=1)
    found = audit.run([f"{__name__}:of_its_own_numbers"], options, tell=told.append)
    assert found["rows"] == [] and "has no law: draw from uniforms, or from seed, alone" in told[-1]
    with refused("OwnNumbers cannot be enumerated (TypeError draw by choose, choose_share, random_pieces"):
        audit.run([f"{__name__}:OwnNumbers"], options)
