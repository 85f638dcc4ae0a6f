"""padir's strategies beside the rules of public samplers: the same logits and uniforms give the same tokens."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support import public_samplers as public
from support.fakes import given

from padir.refinement import DecoderIds, Factor, Output, PathPlanning, Remdm, Renoise, Threshold, hold
from padir.refinement.loop import propose
from padir.refinement.scores import forbid

RECORDS = json.loads((Path(__file__).parents[1] / "support" / "public_samplers.json").read_text())
MASK = 9  # the last of the 10 ids of the recorded runs


def recorded_pass(record, step, logits_BLV, tokens_BL, token_u_BLV, order_u_BL):
    """One pass of the NumPy rule that a record names, with the record's settings."""
    rule, temperature = record["rule"], record.get("temperature", 0.0)
    first_BL = np.array(record["tokens_TBL"][0])
    draws = (logits_BLV, tokens_BL, MASK)
    if rule == "llada":
        counts_B = public.llada_shares((first_BL == MASK).sum(-1), record["steps"])[:, step]
        order_u_BL = order_u_BL if record["order"] == "random" else None
        return public.llada_pass(*draws, counts_B, token_u_BLV, order_u_BL, temperature)
    if rule == "fast_dllm_threshold":
        return public.fast_dllm_threshold_pass(*draws, record["threshold"], token_u_BLV, temperature)
    if rule == "fast_dllm_factor":
        return public.fast_dllm_factor_pass(*draws, record["factor"], token_u_BLV, temperature)
    if rule in ("mdlm", "remdm"):
        if step == record["steps"]:  # the last canvas of the public code: the most probable ids for what is hidden
            return np.where(tokens_BL == MASK, public.mask_never(logits_BLV, MASK).argmax(-1), tokens_BL)
        now, after = (1 - (1 - 1e-5) * np.arange(step, step + 2) / record["steps"]).tolist()
        if rule == "remdm":
            return public.remdm_cap_pass(*draws, now, after, record["cap"], token_u_BLV)
        return public.mdlm_pass(*draws, now, after, token_u_BLV)
    fixed_BL, shown = first_BL != MASK, (step + 1) / record["steps"]
    if rule == "p2":
        return public.p2_pass(*draws, fixed_BL, shown, token_u_BLV, temperature, record["eta"])
    return public.open_dllm_p2_pass(*draws, fixed_BL, shown, token_u_BLV, temperature)


def name(record):
    return f"{record['rule']}-{record['seed']}"


@pytest.mark.parametrize("record", [each for each in RECORDS if each["rule"] != "diffusion_gemma"], ids=name)
def test_a_rule_gives_the_tokens_of_the_public_code(record):
    weights, token_u_TBLV, order_u_TBL = public.recorded_inputs(record["seed"])
    tokens_TBL = np.array(record["tokens_TBL"])
    for step, (tokens_BL, expected_BL) in enumerate(zip(tokens_TBL[:-1], tokens_TBL[1:], strict=True)):
        logits_BLV = public.decode(weights, tokens_BL, MASK)
        found_BL = recorded_pass(record, step, logits_BLV, tokens_BL, token_u_TBLV[step], order_u_TBL[step])
        assert_array_equal(found_BL, expected_BL)


@pytest.mark.parametrize("record", [each for each in RECORDS if each["rule"] == "diffusion_gemma"], ids=name)
def test_diffusion_gemma_gives_the_canvases_and_stops_of_its_code(record):
    (weights_LV, weights_LLVV), token_u_TBLV, order_u_TBL = public.recorded_inputs(record["seed"])
    weights = (record["sharp"] * weights_LV, record["mix"] * weights_LLVV)
    canvas_TBL, done_B = np.array(record["tokens_TBL"]), np.zeros(3, bool)
    for step, stopped_B in enumerate(record["stopped_TB"]):
        logits_BLV = public.decode(weights, canvas_TBL[step])
        remaining = 1 - step / record["steps"]
        found_BL, stop_B = public.diffusion_gemma_pass(
            logits_BLV, canvas_TBL[step], remaining, token_u_TBLV[step], order_u_TBL[step]
        )
        assert_array_equal(np.where(done_B[:, None], canvas_TBL[step], found_BL), canvas_TBL[step + 1])
        done_B |= stop_B
        assert_array_equal(done_B, stopped_B)


class Given:
    """Answers the draws of one pass of a strategy by given uniforms (`padir.refinement.segments.Draws`)."""

    def __init__(self, token_u_BLV, order_u_BL, share_u_BL=None):
        self.token_u_BLV, self.order_u_BL, self.share_u_BL = token_u_BLV, order_u_BL, share_u_BL

    def tokens(self, logits_BLV, temperature, open_BL):
        return jnp.asarray(
            (np.asarray(logits_BLV) - temperature * np.log(-np.log(self.token_u_BLV))).argmax(-1), jnp.int32
        )

    def subset(self, among_BL, count_BL):
        lowest_BL = public.highest(np.where(among_BL, -self.order_u_BL, -np.inf), np.asarray(count_BL)[:, 0])
        return jnp.asarray(lowest_BL) & among_BL

    def share(self, among_BL, rate):
        return among_BL & jnp.asarray(self.share_u_BL < np.asarray(rate))

    def pieces(self, where_BL, ids):
        return jnp.asarray(self.order_u_BL * len(ids.noise), jnp.int32)


ROWS, PROMPT, LENGTH, IDS = 3, 2, 8, 10
MASKED, RANDOM = DecoderIds(vocab_size=IDS, mask_id=MASK), DecoderIds(vocab_size=IDS, random_ids=range(IDS))
HIDDEN = LENGTH - PROMPT


def start(seed):
    """Rows of masks behind a prompt of two tokens, which no strategy rewrites."""
    tokens_BL = np.full((ROWS, LENGTH), MASK)
    tokens_BL[:, :PROMPT] = np.random.RandomState(seed).randint(0, MASK, (ROWS, PROMPT))
    canvas = given(jnp.full((ROWS, LENGTH), MASK), segment_BL=jnp.ones((ROWS, LENGTH), int), ids=MASKED)
    return hold(canvas, jnp.broadcast_to(jnp.arange(LENGTH) < PROMPT, canvas.tokens_BL.shape), jnp.asarray(tokens_BL))


def passes(seed, strategy, num_steps, share_u=None, sharp=1.0):
    """Yields the step, logits, tokens, uniforms, and padir's tokens after each pass of a strategy."""
    (weights_LV, weights_LLVV), token_u_TBLV, order_u_TBL = public.recorded_inputs(seed)
    canvas = start(seed)
    memories = (), ()
    for step in range(num_steps):
        tokens_BL = np.asarray(canvas.tokens_BL)
        logits_BLV = public.decode((sharp * weights_LV, weights_LLVV), tokens_BL, MASK)
        token_u_BLV, order_u_BL = token_u_TBLV[step], order_u_TBL[step]
        share_u_BL = None if share_u is None else share_u(logits_BLV, tokens_BL, token_u_BLV)
        output = Output(forbid(jnp.asarray(logits_BLV, jnp.float32), MASKED.special))
        draws = Given(token_u_BLV, order_u_BL, share_u_BL)
        canvas, memories = propose(draws, canvas, output, strategy, memories, step=step, num_steps=num_steps)
        yield step, logits_BLV, tokens_BL, token_u_BLV, order_u_BL, np.asarray(canvas.tokens_BL)


SEEDS = pytest.mark.parametrize("seed", [100, 101])


def shares(num_steps):
    """LLaDA's shares as a schedule: the share of positions that each pass leaves masked."""
    return tuple((1 - np.cumsum(public.llada_shares([HIDDEN], num_steps)[0]) / HIDDEN).round(9).tolist())


@SEEDS
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("judges", ["drawn", "random"])
@pytest.mark.parametrize("num_steps, schedule", [(3, "linear"), (6, "linear"), (4, shares(4)), (5, shares(5))])
def test_llada_is_path_planning_with_eta_0(seed, temperature, judges, num_steps, schedule):
    strategy = PathPlanning(0.0, temperature, schedule, judges)
    for step, logits_BLV, tokens_BL, token_u_BLV, order_u_BL, ours_BL in passes(seed, strategy, num_steps):
        counts_B = public.llada_shares([HIDDEN] * ROWS, num_steps)[:, step]
        order_u_BL = order_u_BL if judges == "random" else None
        theirs_BL = public.llada_pass(logits_BLV, tokens_BL, MASK, counts_B, token_u_BLV, order_u_BL, temperature)
        assert_array_equal(ours_BL, theirs_BL)


@SEEDS
def test_llada_at_temperature_0_is_a_threshold_with_its_shares(seed):
    for step, logits_BLV, tokens_BL, token_u_BLV, _, ours_BL in passes(seed, Threshold(1.0, schedule=shares(4)), 4):
        counts_B = public.llada_shares([HIDDEN] * ROWS, 4)[:, step]
        assert_array_equal(ours_BL, public.llada_pass(logits_BLV, tokens_BL, MASK, counts_B, token_u_BLV))


def test_llada_gives_a_remainder_to_the_first_passes():
    """Six positions in four passes: LLaDA writes 2, 2, 1 and 1, the linear schedule 2, 1, 2 and 1."""
    masked = [(each[-1] == MASK).sum() // ROWS for each in passes(100, PathPlanning(0.0, judges="drawn"), 4)]
    assert masked == [4, 3, 1, 0]
    assert (HIDDEN * np.array(shares(4))).round().tolist() == [4, 2, 1, 0]


@SEEDS
@pytest.mark.parametrize("tau", [0.3, 0.6, 0.9])
def test_fast_dllms_threshold_is_ours(seed, tau):
    for _, logits_BLV, tokens_BL, token_u_BLV, _, ours_BL in passes(seed, Threshold(tau), 7):
        assert_array_equal(ours_BL, public.fast_dllm_threshold_pass(logits_BLV, tokens_BL, MASK, tau, token_u_BLV))


@pytest.mark.parametrize("bound", [0.7, 1.5])
def test_fast_dllms_factor_also_writes_a_single_rest(bound):
    """Its public code writes the least sure position with the others if that one alone fails the rule."""
    same = more = 0
    for seed in range(100, 130):
        for _, logits_BLV, tokens_BL, token_u_BLV, _, ours_BL in passes(seed, Factor(bound), 7, sharp=2.0):
            theirs_BL = public.fast_dllm_factor_pass(logits_BLV, tokens_BL, MASK, bound, token_u_BLV)
            for before_L, our_L, their_L in zip(tokens_BL, ours_BL, theirs_BL, strict=True):
                if (our_L == their_L).all():
                    same += (before_L == MASK).any()
                else:
                    more += 1
                    assert (our_L == MASK).sum() == 1 and not (their_L == MASK).any()
                    assert_array_equal(our_L[our_L != MASK], their_L[our_L != MASK])
    assert same > 20 and more > 5


def share_of_race(logits_BLV, tokens_BL, token_u_BLV):
    """The uniforms of padir's choice of places that decide as the public races between the mask and the ids.

    With exponential times X of the best id and Y of the mask, a hidden position is written if X / (X + Y) is below the
    probability of writing, and a written one hidden if Y / (X + Y) is below that of hiding: both are uniform.
    """
    times_BLV = -np.log(token_u_BLV)
    hidden_BL, mask_BL = tokens_BL == MASK, times_BLV[..., MASK]
    with np.errstate(divide="ignore"):
        best_BL = (times_BLV / public.mask_never(logits_BLV, MASK)).min(-1)
    id_BL = np.where(hidden_BL, best_BL, public.at_tokens(times_BLV, tokens_BL))
    return np.where(hidden_BL, id_BL, mask_BL) / (id_BL + mask_BL)


@SEEDS
@pytest.mark.parametrize("sigma", [0.0, 0.1, 0.4, 1.0])
def test_mdlm_and_remdm_cap_are_remdm(seed, sigma):
    """Time ends at 0 here, at 1e-5 in the public code, which writes the argmax at what is still hidden then."""
    num_steps, hidden_again = 5, 0
    for each in passes(seed, Remdm(sigma), num_steps, share_of_race):
        step, logits_BLV, tokens_BL, token_u_BLV, _, ours_BL = each
        now, after = 1 - step / num_steps, 1 - (step + 1) / num_steps
        theirs_BL = public.remdm_cap_pass(logits_BLV, tokens_BL, MASK, now, after, sigma, token_u_BLV)
        fixed_BL = np.arange(LENGTH) < PROMPT
        theirs_BL = np.where(fixed_BL, tokens_BL, theirs_BL)  # the public code knows no prompt
        assert_array_equal(ours_BL, theirs_BL)
        if sigma == 0:
            assert_array_equal(ours_BL, public.mdlm_pass(logits_BLV, tokens_BL, MASK, now, after, token_u_BLV))
        hidden_again += ((tokens_BL != MASK) & (ours_BL == MASK)).sum()
    assert bool(hidden_again) == (sigma > 0) or sigma == 0.1


def path_planned(seed, strategy, num_steps, rule, **settings):
    """The passes of a strategy and of a rule of path planning, each on padir's canvases."""
    fixed_BL = np.broadcast_to(np.arange(LENGTH) < PROMPT, (ROWS, LENGTH))
    for step, logits_BLV, tokens_BL, token_u_BLV, _, ours_BL in passes(seed, strategy, num_steps):
        shown = (step + 1) / num_steps
        yield ours_BL, rule(logits_BLV, tokens_BL, MASK, fixed_BL, shown, token_u_BLV, **settings)


@SEEDS
@pytest.mark.parametrize("num_steps", [3, 4, 6])
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0, 3.0])
def test_p2_at_temperature_0_is_path_planning(seed, eta, num_steps):
    for ours_BL, theirs_BL in path_planned(seed, PathPlanning(eta, judges="drawn"), num_steps, public.p2_pass, eta=eta):
        assert_array_equal(ours_BL, theirs_BL)


@SEEDS
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_open_dllms_p2_is_path_planning_at_temperatures_0_and_1(seed, temperature):
    strategy = PathPlanning(1.0, temperature, judges="drawn")
    for ours_BL, theirs_BL in path_planned(seed, strategy, 5, public.open_dllm_p2_pass, temperature=temperature):
        assert_array_equal(ours_BL, theirs_BL)


@pytest.mark.parametrize("rule, temperature", [(public.p2_pass, 1.0), (public.open_dllm_p2_pass, 0.5)])
def test_the_scores_of_p2_at_other_temperatures_are_not_padirs(rule, temperature):
    """The one has Gumbel noise in its scores, the other the temperature; the tokens of both are padir's."""
    different = 0
    for seed in range(100, 110):
        strategy = PathPlanning(1.0, temperature, judges="drawn")
        for ours_BL, theirs_BL in path_planned(seed, strategy, 5, rule, temperature=temperature):
            different += ((ours_BL == MASK) != (theirs_BL == MASK)).sum()
            both_BL = (ours_BL != MASK) & (theirs_BL != MASK)
            assert_array_equal(ours_BL[both_BL], theirs_BL[both_BL])
    assert different > 20


@pytest.mark.parametrize("sharp, stops", [(1.0, False), (12.0, True)])
def test_diffusion_gemma_is_renoise(sharp, stops):
    """Its canvases and stops; padir's result is the argmax, the public one the last canvas, random ids included."""
    num_steps, strategy, stopped = 6, Renoise(0.1, 0.8, final_temperature=0.4, stop_entropy=0.005), 0
    for seed in range(100, 110):
        (weights_LV, weights_LLVV), token_u_TBLV, order_u_TBL = public.recorded_inputs(seed)
        canvas_BL = np.random.RandomState(seed).randint(0, IDS, (ROWS, LENGTH))
        canvas = given(jnp.asarray(canvas_BL), segment_BL=jnp.ones((ROWS, LENGTH), int), ids=RANDOM)
        for step in range(num_steps):
            logits_BLV = public.decode((sharp * weights_LV, 3 * weights_LLVV), canvas_BL)
            uniforms = token_u_TBLV[step], order_u_TBL[step]
            theirs_BL, stop_B = public.diffusion_gemma_pass(logits_BLV, canvas_BL, 1 - step / num_steps, *uniforms)
            output = Output(jnp.asarray(logits_BLV, jnp.float32))
            proposal = strategy.step(Given(*uniforms), canvas, output, (), step=step, num_steps=num_steps)
            ended_BL, _ = strategy.stop.step(canvas, output, proposal, ())
            assert_array_equal(proposal.next.tokens_BL, theirs_BL)
            assert_array_equal(proposal.last.tokens_BL, logits_BLV.argmax(-1))
            assert_array_equal(ended_BL, np.broadcast_to(stop_B[:, None], (ROWS, LENGTH)))
            stopped += stop_B.sum()
            canvas, canvas_BL = proposal.next, theirs_BL
    assert bool(stopped) == stops
