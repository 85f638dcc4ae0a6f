"""MDLM's ancestral sampler (Sahoo et al., 2024) as a function that `padir audit` checks."""

import numpy as np


def step(tokens, logits, uniforms, mask, step, num_steps, temperature):
    """Draws a token for each mask, and writes it with probability 1 / (number of passes that are left)."""
    prob = np.exp(logits / temperature)
    share = np.cumsum(prob / prob.sum(-1, keepdims=True), axis=-1)
    drawn = (share <= uniforms[..., :1]).sum(-1)
    chosen = (tokens == mask) & (uniforms[..., 1] < 1 / (num_steps - step))
    return np.where(chosen, drawn, tokens)
