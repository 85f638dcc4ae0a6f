"""padir's strategies beside the rules of public samplers: the same logits and uniforms give the same tokens."""

import json
from pathlib import Path

import numpy as np
import pytest
from support import public_samplers as public

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
        np.testing.assert_array_equal(found_BL, expected_BL)


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
        np.testing.assert_array_equal(np.where(done_B[:, None], canvas_TBL[step], found_BL), canvas_TBL[step + 1])
        done_B |= stop_B
        np.testing.assert_array_equal(done_B, stopped_B)
