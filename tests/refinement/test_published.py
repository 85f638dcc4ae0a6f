"""Strategies and transitions against independent NumPy implementations of the rules that their sources publish."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support import published_rules
from support.fakes import IDS, clean, judging, keys, moods, moody

from padir.refinement import (
    FromStrategy,
    Glat,
    Mask,
    MaskPredict,
    PathPlanning,
    PredictionRejecter,
    Remdm,
    RewriteAll,
    Uniform,
    draft,
    from_tokens,
    refine,
)
from padir.refinement.scores import Output
from padir.text.ids import EOS

LENGTHS = [2, 4, 6, 9, 12, 12]  # EOS included
TABLES = [np.asarray(table, np.float64) for table in moods(0)]
BANNED = sorted(IDS.special)


def raw_logits(editable_L):
    """The decoder `moody` in NumPy: logits [L, V] of the editable positions of one sentence."""
    own_VV, left_VV, place_LV = TABLES
    return own_VV[editable_L] + left_VV[np.concatenate([[0], editable_L[:-1]])] + 2 * place_LV[: len(editable_L)]


def log_probs(editable_L):
    """Log-probabilities [L, V] of the ids that may be written."""
    logits_LV = raw_logits(editable_L)
    logits_LV[:, BANNED] = -np.inf
    return logits_LV - np.log(np.exp(logits_LV).sum(-1, keepdims=True))


def normalised(canvas):
    """`moody` as log-probabilities, whose sums over passes NumPy can repeat."""
    banned_V = jnp.isin(jnp.arange(IDS.vocab_size), jnp.array(BANNED))
    return jax.nn.log_softmax(jnp.where(banned_V, -jnp.inf, moody()(canvas)))


def lowest(score_L, count):
    """The positions of the `count` lowest scores; ties go to the leftmost."""
    return np.argsort(score_L, kind="stable")[:count]


def assert_same(strategy, corruption, rule, decoder=normalised):
    """Compares `refine` for 1 to 10 passes with `rule`, from (free initial tokens, T) to the result."""
    start = draft(keys(len(LENGTHS)), jnp.array(LENGTHS), max(LENGTHS), corruption, IDS)
    run = jax.jit(lambda steps: refine(keys(len(LENGTHS)), start, decoder, strategy, num_steps=steps).tokens_BL)
    different = 0
    for steps in range(1, 11):
        for row, (ours_L, length) in enumerate(zip(np.asarray(run(steps)), LENGTHS, strict=True)):
            theirs_L = rule(np.asarray(start.tokens_BL[row, : length - 1]), steps)
            different += (ours_L[: length - 1] != theirs_L).sum()
    assert different == 0


def with_eos(editable_LV):
    """Rows [L, V] of the editable positions, and EOS, of which the decoder is certain."""
    return np.append(editable_LV, [np.where(np.arange(IDS.vocab_size) == EOS, 0.0, -np.inf)], axis=0)


def published_decoder(tokens_L):
    return with_eos(log_probs(tokens_L[:-1]))


def judge(logits_LV):
    """The two logits of the learned rejecter: it approves predictions that lead by more than 0.5."""
    top_L2 = np.sort(logits_LV)[:, -2:]
    return np.stack([np.zeros(len(logits_LV)), top_L2[:, 1] - top_L2[:, 0] - 0.5], -1)


REJECTERS = {
    "linear": RewriteAll(1.0, schedule="linear"),
    "constant": RewriteAll(0.2),
    "learned": PredictionRejecter(),
}


def published(strategy):
    """The arguments of `support.published_rules` that a strategy stands for."""
    kind = "learned" if isinstance(strategy, PredictionRejecter) else "linear" if strategy.schedule else "constant"
    arguments = {"kind": kind, "remask": strategy.remask, "stutter": strategy.stutter}
    return arguments | {"share": getattr(strategy, "share", None), "judge": judge if kind == "learned" else None}


def with_remasks(firsts, corruptions):
    """Each first choice with each remasking; the corruptions take turns, so that each meets each of the others."""
    remasks = ("start", "previous", "logits")
    return [
        (*first, remask, corruptions[(i + j) % 2]) for i, first in enumerate(firsts) for j, remask in enumerate(remasks)
    ]


STRATEGIES = (
    *(REJECTERS["linear"], *(RewriteAll(share) for share in (0.1, 0.9)), REJECTERS["learned"]),
    *(dataclasses.replace(each, stutter=True) for each in REJECTERS.values()),
)


@pytest.mark.parametrize(
    ("strategy", "remask", "corruption"),
    with_remasks([(strategy,) for strategy in STRATEGIES], (Mask(), Uniform())),
    ids=str,
)
def test_the_published_rejecters(strategy, remask, corruption):
    """Tokens after every pass of 1 to 10, for 0 to 15 editable positions.

    Of the last pass we keep the predictions, repeats included. The constant and the learned rejecter end where the
    published loop stops, the linear one where the decoder predicts its own input, without noise. No token is then
    left remasked. Except with summed logits, which go on changing, all passes would have given the same tokens.
    """
    strategy = dataclasses.replace(strategy, remask=remask)
    start = draft(keys(16), jnp.arange(1, 17), 16, corruption, IDS)
    decoder = judging(normalised, "prediction") if isinstance(strategy, PredictionRejecter) else normalised
    run = jax.jit(lambda steps: refine(keys(16), start, decoder, strategy, num_steps=steps, traced_steps=10))
    linear = dataclasses.replace(REJECTERS["linear"], remask=remask, stutter=strategy.stutter)
    early = 0
    for steps in range(1, 11):
        refined = run(steps)
        tokens_TBL, needed_B = np.asarray(refined.tokens_TBL), np.asarray(refined.passes_B)
        for row in range(16):
            start_L, needed = tokens_TBL[0, row, : row + 1], needed_B[row]
            canvases, predictions = published_rules.passes(
                published_decoder, start_L, num_steps=steps, **published(strategy)
            )
            for number in range(1, needed):
                assert_array_equal(tokens_TBL[number, row, : row + 1], canvases[number - 1])
            assert_array_equal(tokens_TBL[steps, row, : row + 1], predictions[needed - 1])
            if remask != "logits":
                assert_array_equal(tokens_TBL[steps, row, : row + 1], predictions[-1])
            if strategy != linear:
                assert needed == published_rules.stopping_pass(start_L, canvases)
            early += 0 < row and needed < steps
    assert early or strategy == linear


def test_the_number_of_taken_back_positions():
    """By hand, for 10 passes: 3 positions with EOS lose 2 2 2 1 1 1 1 1 1, as EOS counts and one goes at least."""
    start = draft(keys(2), jnp.array([3, 10]), 10, Mask(), IDS)
    for strategy, expected in [
        (
            RewriteAll(1.0, schedule="linear"),
            ([2, 2, 2, 1, 1, 1, 1, 1, 1, 0], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
        ),
        (RewriteAll(0.2), ([1, 1], [2] * 9)),
    ]:
        refined = refine(keys(2), start, normalised, strategy, num_steps=10, traced_steps=10)
        for row in range(2):
            masked_T = np.asarray((refined.tokens_TBL[1:, row] == IDS.mask).sum(-1)).tolist()
            assert masked_T[: len(expected[row])] == expected[row] and masked_T[-1] == 0


@pytest.mark.parametrize(
    ("kind", "stutter", "remask", "corruption"),
    with_remasks(itertools.product(REJECTERS, (False, True)), (Mask(0.7), Uniform(0.7))),
    ids=str,
)
def test_the_published_second_stage(kind, stutter, remask, corruption):
    """A transition's canvas, also where all are rejected; the initial tokens are the first stage's input."""
    strategy = dataclasses.replace(REJECTERS[kind], remask=remask, stutter=stutter)
    tokens_BL, editable_BL, segment_BL = clean(np.arange(1, 17), 16)
    noisy_BL, chosen_BL = corruption(keys(16), tokens_BL, editable_BL, segment_BL, ids=IDS)
    canvas = from_tokens(noisy_BL, noisy_BL, editable_BL, segment_BL, IDS)
    output = judging(normalised, "prediction")(canvas)
    ours_BL = FromStrategy(strategy)(keys(16), canvas, output, tokens_BL, chosen_BL, progress=0.0)[0].tokens_BL
    for row in range(16):
        corrupted_L = np.asarray(noisy_BL[row, : row + 1])
        logits_LV = published_decoder(corrupted_L)
        theirs_L = published_rules.second_stage(logits_LV, corrupted_L, **published(strategy))
        assert_array_equal(ours_BL[row, : row + 1], theirs_L)


def test_mask_predict():
    """Each pass predicts the masks alone, and masks the floor(L (T - t) / T) least confident tokens again."""

    def rule(start, steps):
        now, score = start.copy(), np.zeros(len(start))
        for step in range(1, steps + 1):
            masked, found = now == IDS.mask, log_probs(now)
            now[masked], score[masked] = found.argmax(-1)[masked], found.max(-1)[masked]
            now[lowest(score, len(start) * (steps - step) // steps)] = IDS.mask
        return now

    assert_same(MaskPredict(), Mask(), rule)


def test_p2_judges_another_token_than_padirs_rule():
    """From the third pass on: the written tokens are then no longer the pass's own choice everywhere."""
    start = draft(keys(20), jnp.full(20, 13), 13, Mask(), IDS)
    for steps, differ in [(2, False), (6, True)]:
        found = [
            refine(keys(20), start, normalised, PathPlanning(judges=judges), num_steps=steps).tokens_BL
            for judges in ("written", "drawn")
        ]
        assert (found[0] != found[1]).any() == differ


@pytest.mark.parametrize("rescale", [False, True])
def test_remdm_hides_with_its_schedules_probability(rescale):
    """With sigma_max = min(1, (1 - b) / a): min(eta, sigma_max) for ReMDM-cap, eta sigma_max for ReMDM-rescale."""
    rows, length, steps, eta = 400, 20, 4, 0.6
    tokens_BL = jnp.tile(jnp.array([[IDS.mask] * 10 + [30] * 10 + [EOS]]), (rows, 1))
    editable_BL = tokens_BL != EOS
    initial_BL = jnp.where(editable_BL, IDS.mask, EOS)
    before = from_tokens(tokens_BL, initial_BL, editable_BL, jnp.ones_like(tokens_BL), IDS)
    before = before.replace(score_BL=jnp.where(tokens_BL == 30, -0.5, 0.0), written_BL=tokens_BL == 30)
    output = Output(jnp.zeros((rows, length + 1, IDS.vocab_size)).at[..., BANNED].set(-jnp.inf))
    strategy = Remdm(eta, rescale=rescale)
    for step in range(1, steps):
        a, b = step / steps, (step + 1) / steps
        most = min(1, (1 - b) / a)
        sigma = eta * most if rescale else min(eta, most)
        after = strategy.step(keys(rows, step), before, output, (), step=step, num_steps=steps).next
        hidden, written = np.asarray(after.masked_BL[:, 10:20]).mean(), 1 - np.asarray(after.masked_BL[:, :10]).mean()
        tolerance = 4 * 0.5 / np.sqrt(10 * rows)
        assert hidden == pytest.approx(sigma, abs=tolerance if 0 < sigma < 1 else 1e-9)
        assert written == pytest.approx((b - (1 - sigma) * a) / (1 - a), abs=tolerance)


@pytest.mark.parametrize("wrong", [0, 2, 3, 5, 10])
def test_glat_shows_the_floor_of_its_share(wrong):
    """N = floor(p d) random positions, each as likely as another."""
    rows, target = 300, list(range(10, 20))
    target_BL = jnp.array([[*target, EOS]] * rows)
    best_BL = jnp.array([[*([30] * wrong), *target[wrong:], EOS]] * rows)
    editable_BL = target_BL != EOS
    canvas = from_tokens(
        jnp.where(editable_BL, IDS.mask, EOS),
        jnp.where(editable_BL, IDS.mask, EOS),
        editable_BL,
        jnp.ones_like(target_BL),
        IDS,
    )
    output = Output(9.0 * jax.nn.one_hot(best_BL, IDS.vocab_size))
    _, chosen_BL = Glat(0.4, 0.4, exact=True)(keys(rows), canvas, output, target_BL, editable_BL, progress=0.0)
    shown_BL = np.asarray(editable_BL & ~chosen_BL)[:, :10]
    assert (shown_BL.sum(-1) == int(0.4 * wrong + 1e-9)).all()
    share = int(0.4 * wrong + 1e-9) / 10
    assert_allclose(shown_BL.mean(0), share, atol=5 * np.sqrt(share * (1 - share) / rows) + 1e-9)
