"""The rules of public samplers of masked and diffusion language models, in NumPy: one function is one pass.

They were written from the public sources named below, without a look at padir's strategies. public_samplers.json
holds the tokens that the public code itself gives for the inputs of `recorded_inputs`.

A function takes the logits of the pass, the tokens that the decoder read, and every uniform that the pass draws:
one for each id (token_u_BLV) or one for each position (order_u_BL). It returns the tokens after the pass.
`mask_id` marks a hidden position. `share` and `chance` are numbers between 0 and 1.
"""

import numpy as np


def recorded_inputs(seed, passes=8, rows=3, length=8, ids=10):
    """Weights of a small decoder and uniforms for all passes; NumPy promises the same numbers in each version."""
    random = np.random.RandomState(seed)
    weights_LV = 2 * random.standard_normal((length, ids))
    weights_LLVV = random.standard_normal((length, length, ids, ids))
    token_u_TBLV = random.uniform(size=(passes, rows, length, ids))
    order_u_TBL = random.uniform(size=(passes, rows, length))
    return (weights_LV, weights_LLVV), token_u_TBLV, order_u_TBL


def decode(weights, tokens_BL, mask_id=None):
    """Logits that depend on each token; the mask is never predicted."""
    weights_LV, weights_LLVV = weights
    positions = np.arange(tokens_BL.shape[-1])
    logits_BLV = weights_LV + np.stack([weights_LLVV[:, positions, row].sum(1) for row in tokens_BL])
    if mask_id is not None:
        logits_BLV[..., mask_id] = -1e9
    return logits_BLV


def log_softmax(logits_BLV):
    shifted_BLV = np.float64(logits_BLV) - np.max(logits_BLV, -1, keepdims=True)
    return shifted_BLV - np.log(np.exp(shifted_BLV).sum(-1, keepdims=True))


def at_tokens(values_BLV, tokens_BL):
    return np.take_along_axis(values_BLV, tokens_BL[..., None], -1)[..., 0]


def highest(scores_BL, counts_B):
    """Marks the counts_B highest scores of each row; of equal scores the first."""
    rank_BL = np.argsort(np.argsort(-scores_BL, -1, kind="stable"), -1)
    return rank_BL < np.asarray(counts_B)[:, None]


def llada_shares(hidden_B, steps):
    """The number of tokens that each pass writes; the first passes take the remainder of the division.

    ML-GSAI/LLaDA, generate.py:22-40, commit b7e6c3565f194352da44b38dd12b6970597309f3 (MIT until the commit 6e1f67ea,
    which removed the file; the README names MIT for the models).
    """
    whole_B, rest_B = np.divmod(np.asarray(hidden_B), steps)
    return whole_B[:, None] + (np.arange(steps) < rest_B[:, None])


def llada_draw(logits_BLV, token_u_BLV, temperature):
    """The most probable ids, or at a positive temperature those that win with Gumbel noise times the temperature.

    ML-GSAI/LLaDA, generate.py:8-19 and 91-92. exp(logit) / (-log u)^temperature has the same winner.
    """
    noise_BLV = -np.log(-np.log(token_u_BLV)) if temperature else 0.0
    return (logits_BLV + temperature * noise_BLV).argmax(-1)


def llada_pass(logits_BLV, tokens_BL, mask_id, counts_B, token_u_BLV, order_u_BL=None, temperature=0.0):
    """Writes the counts_B surest of the drawn tokens, or with order_u_BL those of the greatest uniforms.

    ML-GSAI/LLaDA, generate.py:74-118, without guidance and with one block. Sure is the probability of the drawn token
    by the logits themselves: neither the temperature nor the noise changes it. No written token is hidden again.
    """
    hidden_BL = tokens_BL == mask_id
    drawn_BL = llada_draw(logits_BLV, token_u_BLV, temperature)
    sure_BL = at_tokens(log_softmax(logits_BLV), drawn_BL) if order_u_BL is None else order_u_BL
    written_BL = highest(np.where(hidden_BL, sure_BL, -np.inf), counts_B)
    return np.where(written_BL, drawn_BL, tokens_BL)


def fast_dllm_threshold_pass(logits_BLV, tokens_BL, mask_id, threshold, token_u_BLV, temperature=0.0):
    """Writes each drawn token of at least the probability `threshold`, and in any case the surest one.

    NVlabs/Fast-dLLM, llada/generate.py:235-261, commit 24cc59e75f20a6384bae8c905965bb090b96388e (Apache-2.0).
    """
    hidden_BL = tokens_BL == mask_id
    drawn_BL = llada_draw(logits_BLV, token_u_BLV, temperature)
    sure_BL = np.where(hidden_BL, np.exp(at_tokens(log_softmax(logits_BLV), drawn_BL)), -np.inf)
    written_BL = hidden_BL & ((sure_BL >= threshold) | highest(sure_BL, np.ones(len(tokens_BL))))
    return np.where(written_BL, drawn_BL, tokens_BL)


def fast_dllm_factor_pass(logits_BLV, tokens_BL, mask_id, factor, token_u_BLV, temperature=0.0):
    """Writes the n surest tokens, n the first count whose next token c has (n + 2) (1 - c) > factor.

    Fast-dLLM's get_transfer_index_dynamic, as lizhuo-luo/DAWN carries it: llada/generate.py:389-430, commit
    ab428980e325e85b04b100e1dd27ed1ad4ddb005 (Apache-2.0). The surest token is always written. When only the least sure
    one fails, the public code writes all.
    """
    hidden_BL = tokens_BL == mask_id
    drawn_BL = llada_draw(logits_BLV, token_u_BLV, temperature)
    sure_BL = np.where(hidden_BL, np.exp(at_tokens(log_softmax(logits_BLV), drawn_BL)), -np.inf)
    counts_B = []
    for sure_L, hidden_L in zip(sure_BL, hidden_BL, strict=True):
        falling_H = np.sort(sure_L[hidden_L])[::-1]
        fails_H = falling_H < 1 - factor / (2 + np.arange(len(falling_H)))
        first = next((at for at, fails in enumerate(fails_H) if at and fails), len(falling_H))
        counts_B.append(len(falling_H) if first == len(falling_H) - 1 else first)
    return np.where(highest(sure_BL, counts_B), drawn_BL, tokens_BL)


def race(weights_BLV, token_u_BLV):
    """Draws an id by weights, which need no sum of 1 (kuleshov-group/mdlm, diffusion.py:24-28)."""
    return (weights_BLV / (1e-10 - np.log(token_u_BLV + 1e-10))).argmax(-1)


def mask_never(logits_BLV, mask_id):
    """Probabilities without the mask (kuleshov-group/mdlm, diffusion.py:261-277, for a hidden position)."""
    return np.exp(log_softmax(np.where(np.arange(logits_BLV.shape[-1]) == mask_id, -1e6, logits_BLV)))


def mdlm_pass(logits_BLV, tokens_BL, mask_id, chance_now, chance_next, token_u_BLV):
    """A hidden position stays hidden with the chance chance_next / chance_now, else it takes a drawn token.

    kuleshov-group/mdlm, diffusion.py:592-637, commit c112c526d193436838c98d81455ee51f90309470 (Apache-2.0). One race
    decides both. Written tokens stay. The chance of a mask at time t is (1 - 1e-3) t in _ddpm_update, by
    noise_schedule.py:117-150, and t in _ddpm_caching_update.
    """
    hidden_BL = tokens_BL == mask_id
    weights_BLV = mask_never(logits_BLV, mask_id) * (chance_now - chance_next)
    weights_BLV[..., mask_id] = chance_next
    return np.where(hidden_BL, race(weights_BLV, token_u_BLV), tokens_BL)


def remdm_cap_pass(logits_BLV, tokens_BL, mask_id, chance_now, chance_next, cap, token_u_BLV):
    """Hides each written token with the chance `cap` or less, and writes more hidden positions to make up for it.

    kuleshov-group/remdm, diffusion.py:26-31 and 700-713, commit f830d659fb98d9b2c79ff71bfa12d578312b688a (Apache-2.0).
    """
    hidden_BL1 = (tokens_BL == mask_id)[..., None]
    kept_now, kept_next = 1 - chance_now, 1 - chance_next
    back = min(cap, (1 - kept_next) / kept_now) if kept_now > 0 else cap
    same_BLV = np.arange(logits_BLV.shape[-1]) == tokens_BL[..., None]
    prob_BLV = np.where(hidden_BL1, mask_never(logits_BLV, mask_id), same_BLV)
    weights_BLV = prob_BLV * np.where(hidden_BL1, (kept_next - (1 - back) * kept_now) / chance_now, 1 - back)
    stay_BL1 = np.where(hidden_BL1, (1 - kept_next - back * kept_now) / chance_now, back)
    weights_BLV[..., mask_id] = stay_BL1[..., 0]
    return race(weights_BLV, token_u_BLV)


def p2_pass(logits_BLV, tokens_BL, mask_id, fixed_BL, shown_share, token_u_BLV, temperature=0.0, eta=1.0):
    """Hides the least sure positions of all that are not fixed; the hidden ones among the others take drawn tokens.

    pengzhangzhi/Path-Planning, src/path_planning/p2.py:58-87, score_function.py:23-26, utils.py:20-23 and 91-97, commit
    68675ea2d9dc5d62f4d81d10cb75845b1bbbc9fb (Apache-2.0), without a planner. Sure is the log-probability of the drawn
    token after the temperature and with the Gumbel noise in the logits; `eta` multiplies it for written tokens.
    Positions as sure as the first one that stays are not hidden.
    """
    hidden_BL = tokens_BL == mask_id
    noisy_BLV = np.float64(logits_BLV)
    if temperature:
        noisy_BLV = noisy_BLV / temperature - np.log(-np.log(token_u_BLV + 1e-8) + 1e-8)
    drawn_BL = noisy_BLV.argmax(-1)
    sure_BL = at_tokens(log_softmax(noisy_BLV), drawn_BL)
    sure_BL = np.where(fixed_BL, np.inf, np.where(hidden_BL, sure_BL, eta * sure_BL))
    counts_B = np.array((~fixed_BL).sum(-1) * np.float32(1 - shown_share), np.float32).astype(int)
    hide_BL = sure_BL < np.take_along_axis(np.sort(sure_BL), counts_B[:, None], -1)
    return np.where(hide_BL, mask_id, np.where(hidden_BL, drawn_BL, tokens_BL))


def open_dllm_p2_pass(logits_BLV, tokens_BL, mask_id, fixed_BL, shown_share, token_u_BLV, temperature=0.0):
    """Path planning without `eta` and without noise in the scores: sure is the drawn token's tempered probability.

    pengzhangzhi/Open-dLLM, veomni/models/transformers/qwen2/generation_utils.py:36-64 and 227-277, commit
    8b38787794e7e13e74ab6f5d2ec9240595a1a777 (Apache-2.0).
    """
    hidden_BL = tokens_BL == mask_id
    log_prob_BLV = log_softmax(logits_BLV / (temperature or 1.0))
    drawn_BL = (log_prob_BLV - (np.log(-np.log(token_u_BLV)) if temperature else 0.0)).argmax(-1)
    sure_BL = np.where(fixed_BL, np.inf, at_tokens(log_prob_BLV, drawn_BL))
    counts_B = np.floor(np.float32((~fixed_BL).sum(-1)) * np.float32(1 - shown_share))
    hide_BL = highest(-sure_BL, counts_B)
    return np.where(hide_BL, mask_id, np.where(hidden_BL, drawn_BL, tokens_BL))


def diffusion_gemma_pass(logits_BLV, canvas_BL, remaining, token_u_BLV, canvas_u_BL, stop_entropy=0.005):
    """Takes the drawn tokens of least entropy, puts random ids at all other positions, and says which rows stop.

    google-deepmind/gemma, gemma/diffusion/_sampler.py:105-184, 217-293 and 348-491, _early_stopping.py:64-161,
    _chat_sampler.py:52-71, commit 7691fd4e7f26c9ec5db38110dddb3addfab4d767 (Apache-2.0). `remaining` is the share of
    passes that are left, this one included: it takes the temperature from 0.8 towards 0.4. A position is taken while
    the entropies before it, in rising order, sum to at most 0.1. A row stops when the most probable ids are the canvas
    that this pass read and the mean entropy, after the temperature, is at most `stop_entropy`. The canvas of the
    stopping pass is the result, random ids included.
    """
    log_prob_BLV = log_softmax(logits_BLV / (0.4 + (0.8 - 0.4) * remaining))
    drawn_BL = (log_prob_BLV - np.log(-np.log(token_u_BLV))).argmax(-1)
    entropy_BL = -(np.exp(log_prob_BLV) * log_prob_BLV).sum(-1)
    rising_BL = np.sort(entropy_BL, -1)
    counts_B = (np.cumsum(rising_BL, -1) - rising_BL <= 0.1).sum(-1)
    random_BL = np.int64(canvas_u_BL * logits_BLV.shape[-1])
    stop_B = (log_prob_BLV.argmax(-1) == canvas_BL).all(-1) & (entropy_BL.mean(-1) <= stop_entropy)
    return np.where(highest(-entropy_BL, counts_B), drawn_BL, random_BL), stop_B
