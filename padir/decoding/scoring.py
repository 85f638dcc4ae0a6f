"""Log-probabilities of given sentence pairs.

An autoregressive model gives the log-probability of a target. The log-probability under a refining model cannot be
computed: the model writes all positions at once, several times over. Instead, the score of stage s = 1 .. S is

    log p_s = sum over positions i of log p(target_i | source, canvas_s)

where canvas_1 is pure noise of the target's length (the model's corruption at rate 1) and the model's own strategy
computes canvas_{s+1} from canvas_s, as in decoding. log p_1 is the log-probability of the target under one-shot
decoding, given one draw of the noise, and with special tokens, which decoding forbids, in the softmax. log p_2 to log
p_S measure how well the target is predicted from the model's own draft, which may not resemble the target. Except for
EOS, log p_s is minus the training loss of stage s at rate 1. A refining model's EOS does not count, as the length
determines its position, and the log-probability of the length is reported separately; an autoregressive model's EOS
counts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from padir.decoding.batches import SourceBatch
from padir.decoding.options import Decoding
from padir.decoding.pipeline import RefiningPipeline
from padir.decoding.refine_batch import BUCKET, DraftInputs, lay_out
from padir.decoding.translator import Translator
from padir.distributed.sharding import on_host
from padir.errors import PadirError
from padir.models.length import log_probs
from padir.models.transformer import Transformer
from padir.refinement.canvas import Canvas
from padir.refinement.loop import refine
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.scores import Output, forbid
from padir.text.batches import sorted_batches
from padir.text.ids import EOS, pad_rows, round_up


@dataclasses.dataclass(frozen=True)
class PairScore:
    """Log-probability of one target.

    Attributes:
      log_prob: log-probability of the target: the last of `stages`.
      tokens: number of tokens that `log_prob` sums over.
      stages: log p_1 .. log p_S; a single number for an autoregressive model.
      length_log_prob: log-probability of the target's length; None if the length head is no classifier.
    """

    log_prob: float
    tokens: int
    stages: tuple[float, ...]
    length_log_prob: float | None = None

    @property
    def mean(self) -> float:
        """Log-probability per token."""
        return self.log_prob / max(self.tokens, 1)


def score_pairs(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    decoding: Decoding | None = None,
) -> list[PairScore]:
    """Scores each pair with the canvas, strategy, number of stages (num_steps) and seed of `decoding`.

    Raises:
      PadirError: sources and targets differ in number, a sentence has more tokens than the model takes, or the model
        is a CTC model.
    """
    decoding = translator.resolved(decoding or Decoding())
    if len(sources) != len(targets):
        raise PadirError(f"each source needs a target, got {len(sources)} sources and {len(targets)} targets")
    if translator.card.config.causal:
        scored = translator.score(sources, targets, batch_size=decoding.batch_size)
        return [PairScore(log_prob, tokens, (log_prob,)) for log_prob, tokens in scored]
    if translator.card.config.ctc:
        raise PadirError("the tokens of a CTC model are not those of a target: score with another model")
    limit = translator.card.config.max_length
    source_tokens, _ = translator.loaded.source_tokens(sources, truncate=False)
    target_tokens = [[*tokens, EOS] for tokens in translator.tokenizer.encode_batch(targets)]
    for i, tokens in enumerate(target_tokens):
        if len(tokens) > limit:
            raise PadirError(f"target {i + 1} has {len(tokens)} tokens, the model writes {limit}: split it")
    pipeline = RefiningPipeline(translator.loaded, decoding)
    results: dict[int, PairScore] = {}
    for some in sorted_batches(
        range(len(sources)), decoding.batch_size, lambda i: (len(source_tokens[i]), len(target_tokens[i]))
    ):
        batch = SourceBatch([sources[i] for i in some], [source_tokens[i] for i in some])
        scores = _score_batch(pipeline, batch, [target_tokens[i] for i in some])
        results |= zip(some, scores, strict=True)
    return [results[i] for i in range(len(sources))]


def _score_batch(pipeline: RefiningPipeline, source: SourceBatch, targets: Sequence[list[int]]) -> list[PairScore]:
    """Scores the targets of one batch."""
    loaded, decoding, batch = pipeline.loaded, pipeline.decoding, pipeline.encode(source)
    rows = batch.source_BS.shape[0]
    lengths = [len(tokens) for tokens in targets]
    length_B = np.array(lengths + [1] * (rows - len(lengths)), np.int32)
    width = min(round_up(max(lengths), BUCKET), loaded.card.config.max_length)
    by_sentence = (batch.source_BS, length_B[:, None], np.zeros_like(length_B)[:, None])
    inputs = DraftInputs(batch.cross_kv, batch.encoded.segment_BS, *loaded.place(by_sentence))
    with loaded.on_devices():
        log_prob_BT = _stages(
            loaded.model,
            loaded.converted,
            inputs,
            loaded.place(pad_rows(list(targets), width, rows)),
            strategy=decoding.strategy,
            corruption=decoding.canvas,
            num_stages=decoding.num_steps,
            seed=decoding.seed,
        )
    length_log_prob_BM = on_host(log_probs(batch.encoded.length))
    scores = []
    for b, (length, log_prob_T) in enumerate(zip(lengths, on_host(log_prob_BT).tolist(), strict=False)):
        length_log_prob = None if length_log_prob_BM is None else float(length_log_prob_BM[b, length - 1])
        scores.append(PairScore(log_prob_T[-1], length - 1, tuple(log_prob_T), length_log_prob))
    return scores


def summary(scores: Sequence[PairScore]) -> dict[str, Any]:
    """Metrics of a file: number of pairs and tokens, and the mean log-probability per token, overall and by stage."""
    tokens = max(1, sum(score.tokens for score in scores))
    stages = [sum(each) / tokens for each in zip(*(score.stages for score in scores), strict=True)]
    return {
        "pairs": len(scores),
        "tokens": sum(score.tokens for score in scores),
        "mean": sum(score.log_prob for score in scores) / tokens,
        "stages": stages,
    }


@dataclasses.dataclass(frozen=True)
class TargetRecorder:
    """A strategy that records the target's log-probability at every step, and delegates the step to another strategy.

    A row that is done keeps the log-probabilities of its last step. The memory of this strategy is (the other
    strategy's memory, log_prob_BT).
    """

    strategy: Strategy
    target_BL: Any
    num_stages: int

    def init(self, key_B, canvas: Canvas):
        return self.strategy.init(key_B, canvas), jnp.zeros((canvas.tokens_BL.shape[0], self.num_stages))

    def step(self, key_B, canvas: Canvas, output: Output, memory, *, step, num_steps):
        inner, log_prob_BT = memory
        logits_BLV = output.logits_BLV
        at_target_BL = jnp.take_along_axis(logits_BLV, self.target_BL[..., None], axis=-1)[..., 0]
        log_prob_BL = (at_target_BL - jax.nn.logsumexp(logits_BLV, axis=-1)) * canvas.free_BL
        from_here_T = jnp.arange(self.num_stages) >= step
        log_prob_BT = jnp.where(from_here_T, log_prob_BL.sum(-1, keepdims=True), log_prob_BT)
        output = dataclasses.replace(output, logits_BLV=forbid(logits_BLV, canvas.ids.special))
        stepped, inner = self.strategy.step(key_B, canvas, output, inner, step=step, num_steps=num_steps)
        return stepped, (inner, log_prob_BT)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("strategy", "corruption", "num_stages"))
def _stages(
    model: Transformer,
    params,
    inputs: DraftInputs,
    target_BL,
    *,
    strategy: Strategy,
    corruption: Corruption,
    num_stages: int,
    seed,
):
    """Computes log p_s of each row, [B, T]."""
    key_B, canvas, logits_fn = lay_out(
        model, params, inputs, max_target_length=target_BL.shape[1], corruption=corruption, seed=seed
    )
    recorder = TargetRecorder(strategy, target_BL, num_stages)
    # No ids are banned, as a target may contain tokens that a model never writes.
    return refine(key_B, canvas, logits_fn, recorder, num_steps=num_stages, banned_ids=()).memory[1]
