"""The rules of the published implementation for one sentence, in NumPy, written without a look at padir's code.

Source: google-research/google-research, folder padir/, commit 5b09c22d73a9d35eb6c5d2a99b95677a45053466, and
google-research/t5x, t5x/losses.py, commit cc342d419ec3e3e9c4bf1df33c82330cafdc1e16. Line numbers may be off by two.
The rules were read there, not executed. They are those of the publication, faults included, except:

- A row holds one sentence without padding: the published stutter test compares the first position of a row with its
  last one, which matters in rows without padding alone. Here the first position never stutters.
- `passes` takes all passes. The published loop stops when a pass, after re-masking, gives its own input, and can then
  leave masks (`stopping_pass`, decoding.py:707-709); it goes on for a sentence while another one of the batch moves.
- At the end, published tokens that equal their initial tokens become padding (decoding.py:736-738), which drops EOS.

Ids: 0 is padding, 1 is EOS. An array has L positions, EOS included, and V ids.
"""

import numpy as np


def rejected(kind, confidence_L, step, num_steps, share):
    """The positions that the linear or the constant rejecter remasks after the pass `step`, counted from 0.

    padir/examples/t5/network.py:606-636 and 652-672, padir/utils/padir_utils.py:78-110. A ratio in float32 times the
    number of positions, EOS among them, is cut towards 0; at least one position is remasked. All positions that are
    as doubtful as the last of these are remasked with it.
    """
    ratio = np.float32(num_steps - step - 1) / np.float32(num_steps) if kind == "linear" else np.float32(share)
    count = max(int(ratio * np.float32(len(confidence_L))), 1)
    return confidence_L <= np.sort(confidence_L)[count - 1]


def doubted(kind, logits_LV, verdict_L2, step, num_steps, share):
    """The positions that a rejecter remasks: none, linear, constant, or the learned one, by its two logits.

    padir/examples/t5/network.py:577-598 (the second logit approves; equal logits reject), 628-629 and 664-665 (the
    confidence is the greatest probability of all ids), 696-707.
    """
    if kind == "none":
        return np.zeros(len(logits_LV), bool)
    if kind == "learned":
        return verdict_L2.argmax(-1) != 1
    odds_LV = np.exp(np.float32(logits_LV) - np.float32(logits_LV).max(-1, keepdims=True))
    return rejected(kind, (odds_LV / odds_LV.sum(-1, keepdims=True)).max(-1), step, num_steps, share)


def repeats(tokens_L):
    """The tokens that equal their left neighbours (padir/utils/padir_utils.py:63-67)."""
    return np.append(False, tokens_L[1:] == tokens_L[:-1])


def refilled(predicted_L, taken_L, remask, start_L, fed_L, logits_sum_LV):
    """Replaces the tokens that are remasked (padir/config_options.py:57-90).

    By the token of the first canvas, by the token that this pass was given, or by the argmax of the raw logits summed
    over all passes so far, this one included.
    """
    return np.where(
        taken_L, {"start": start_L, "previous": fed_L, "logits": logits_sum_LV.argmax(-1)}[remask], predicted_L
    )


def passes(decoder, start_L, kind, remask, num_steps, *, share=None, stutter=False, judge=None):
    """The canvas after each of `num_steps` passes, and the predictions of each.

    padir/decoding.py:562-741, padir/utils/padir_utils.py:113-152. Every pass predicts all positions anew. The rejecter
    and the stutter test both look at the raw predictions. The last pass rejects nothing, but remasks stutter.
    """
    canvas_L, logits_sum_LV, canvases, predictions = start_L, 0.0, [], []
    for step in range(num_steps):
        logits_LV = decoder(canvas_L)
        predicted_L, logits_sum_LV = logits_LV.argmax(-1), logits_sum_LV + logits_LV
        taken_L = doubted(kind, logits_LV, judge and judge(logits_LV), step, num_steps, share) & (step < num_steps - 1)
        taken_L |= stutter & repeats(predicted_L)
        canvas_L = refilled(predicted_L, taken_L, remask, start_L, canvas_L, logits_sum_LV)
        canvases.append(canvas_L)
        predictions.append(predicted_L)
    return canvases, predictions


def stopping_pass(start_L, canvases):
    """The number of passes that the published loop takes for a sentence alone."""
    same = [np.array_equal(*pair) for pair in zip([start_L, *canvases], canvases, strict=False)]
    return 1 + same.index(True) if True in same else len(canvases)


def second_stage(logits_LV, corrupted_L, kind, remask, *, stages=2, share=None, stutter=False, judge=None):
    """The canvas of the second training stage, given the first stage's corrupted target and its logits.

    padir/models.py:174-214, padir/examples/t5/network.py:978-993. One pass, `stages` of which make up the schedule. No
    stopping rule, and no exemption of a last pass.
    """
    taken_L = doubted(kind, logits_LV, judge and judge(logits_LV), 0, stages, share)
    predicted_L = logits_LV.argmax(-1)
    return refilled(
        predicted_L, taken_L | (stutter & repeats(predicted_L)), remask, corrupted_L, corrupted_L, logits_LV
    )


def factors(normaliser, weight_BL, target_BL):
    """The factor of each token's loss in the first stage and in later stages; the length loss has the factor 1.

    padir/models.py:453-464, 487-529 and 538-559, t5x/losses.py:186-193 and 278-356. The divisor is that of the first
    stage in every stage; later stages give each real token the weight 1, also for "sentences".
    """
    real_BL = np.float32(target_BL > 0)
    if normaliser == "sentences":  # AVERAGE_PER_SEQUENCE
        weight_BL = weight_BL / weight_BL.sum(-1, keepdims=True)
    # NUM_REAL_TARGET_TOKENS is the sum of the weights, NUM_TOTAL_TARGET_TOKENS counts padding, too.
    named = {"weights": weight_BL.sum(), "positions": target_BL.size, "sentences": weight_BL.sum()}
    divisor = named.get(normaliser, normaliser)
    return weight_BL / divisor, real_BL / divisor


def tried_lengths(length_logits_N, num_lengths):
    """The lengths that are tried, EOS included (padir/decoding.py:278-309, padir/utils/padir_utils.py:304-408).

    The most likely ones, the shorter of equal ones first; a length of 1 becomes 2. With a `beam_length` b above 1, the
    published code also tries the lengths that differ by at most b // 2 from each of these.
    """
    return np.maximum(np.argsort(-length_logits_N, kind="stable")[:num_lengths] + 1, 2)
