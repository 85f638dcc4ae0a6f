"""Programs in StableHLO, which JAX runs without padir on CPU, CUDA and TPU (`jax.export`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from padir import checks
from padir.decoding import encoding, refine_batch
from padir.decoding.encoding import BUCKET
from padir.decoding.loaded import LoadedModel
from padir.decoding.options import Decoding
from padir.decoding.planned_drafts import SHORTEST
from padir.decoding.refine_batch import DraftInputs, RefineOptions
from padir.interop.exported_options import exportable
from padir.interop.packing import packed_without_repeats
from padir.models.length import top_lengths
from padir.text.ids import round_up
from padir.translator import Translator

PLATFORMS = ("cpu", "cuda", "tpu")


@checks.arguments
def jax_programs(
    translator: Translator,
    decoding: Decoding | None = None,
    *,
    source_length: checks.Count,
    target_length: checks.Count,
) -> dict[str, jax.export.Exported]:
    """Exports a refining model as two programs, for any number of sentences B and of drafts N of each sentence.

        encode(params, source_BS) -> length_BM, memory
        refine(params, memory, length_BN, draw_BN, num_steps, seed) -> target_BNL, log_prob_BN, passes_BN

    source_BS holds the rows of `LoadedModel.source_tokens`, padded with 0. length_BM holds the lengths to try, most
    likely first; the caller takes N of them. draw_BN numbers drafts of equal length. target_BNL holds the ids of each
    target without repeated tokens, EOS, then 0. log_prob_BN is the draft's sum of log-probabilities; a rule of
    `Decoding.rerank` is no part of the programs. Integers are int32.

    `translator.side(decoding).params` are an argument, and part of no program. `serialize` of a program gives its
    bytes, and `jax.export.deserialize` reads them.

    Args:
      decoding: options of the mode "refine", None for the model's own; each call has its own num_steps, num_lengths,
        num_drafts and seed.
      source_length: S, with EOS and the [LENGTH] token that most models read first.
      target_length: L, with EOS; the programs try no longer drafts.

    Raises:
      PadirError: the model or the options cannot be exported, or a length is out of range.

    >>> translator = Translator.load("de_en")
    >>> programs = jax_programs(translator, source_length=16, target_length=16)
    >>> encode, refine = programs["encode"].call, programs["refine"].call
    >>> rows, _ = translator.loaded.source_tokens(["Wo ist der Bahnhof?"], truncate=False)
    >>> source_BS = translator.loaded.padded(rows, 1, [16])
    >>> length_BM, memory = encode(translator.params, source_BS)
    >>> draw_B1, four, seed = jnp.array([[0]]), jnp.array(4), jnp.array(0)
    >>> target_BNL, *_ = refine(translator.params, memory, length_BM[:, :1], draw_B1, four, seed)
    >>> translator.tokenizer.decode([i for i in target_BNL[0, 0].tolist() if i > 1])
    "Where's the station?"
    """
    decoding = exportable(translator, decoding or translator.decoding)
    loaded = translator.side(decoding)
    config = loaded.card.config
    longest = round_up(config.geometry.longest_source(config.max_length) + config.length_token, BUCKET)
    checks.within(SHORTEST, longest, source_length=source_length)
    checks.within(SHORTEST, config.max_length, target_length=target_length)
    encode = _encode(loaded, decoding, target_length)
    refine = _refine(loaded, decoding, target_length)
    b, n = jax.export.symbolic_shape("b, n")
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), loaded.params)
    source_BS = jax.ShapeDtypeStruct((b, source_length), np.int32)
    count_BN = jax.ShapeDtypeStruct((b, n), np.int32)
    number = jax.ShapeDtypeStruct((), np.int32)
    with jax.default_matmul_precision(None):  # a CPU's precision is none of other platforms
        _, memory = jax.eval_shape(encode, params, source_BS)
        export_encode = jax.export.export(jax.jit(encode), platforms=PLATFORMS)
        export_refine = jax.export.export(jax.jit(refine), platforms=PLATFORMS)
        return {
            "encode": export_encode(params, source_BS),
            "refine": export_refine(params, memory, count_BN, count_BN, number, number),
        }


def _encode(loaded: LoadedModel, decoding: Decoding, target_length: int) -> Callable[..., Any]:
    """The function that encodes sources and predicts the lengths of their targets."""
    config = loaded.card.config
    num_lengths = config.max_length if config.length_token else 1  # the number of lengths to choose from

    def encode(params, source_BS):
        encoded, cross_kv = encoding.encode(loaded.model, params, source_BS)
        length_BM = top_lengths(encoded.length, num_lengths, decoding.length_window)
        return jnp.clip(length_BM, SHORTEST, target_length), (cross_kv, encoded.segment_BS, source_BS)

    return encode


def _refine(loaded: LoadedModel, decoding: Decoding, target_length: int) -> Callable[..., Any]:
    """The function that refines drafts and reads targets out of them."""
    model = loaded.model
    assert decoding.strategy is not None and decoding.canvas is not None
    options = RefineOptions(max_target_length=target_length, strategy=decoding.strategy, corruption=decoding.canvas)
    repeat_V = np.ones(model.ids.num_embeddings, bool)  # ids that stay when they equal their left neighbour
    if decoding.drops_repeats:
        repeat_V = np.isin(np.arange(repeat_V.size), [*loaded.tokenizer.copied])

    def refine(params, memory, length_BN, draw_BN, num_steps, seed):
        cross_kv, segment_BS, source_BS = memory
        drafts = refine_batch.refine_drafts(
            model,
            params,
            DraftInputs(
                cross_kv=cross_kv,
                source_segment_BS=segment_BS,
                source_BS=source_BS,
                length_BN=length_BN,
                draw_BN=draw_BN,
                num_steps=num_steps,
                seed=seed,
                blank_penalty=decoding.blank_penalty,
            ),
            options,
        )
        kept_RL = model.config.geometry.collapse_mask(drafts.tokens_RL, drafts.editable_RL, model.ids)
        target_RL = packed_without_repeats(drafts.tokens_RL, kept_RL, jnp.asarray(repeat_V))
        shape_BN = length_BN.shape
        target_BNL = target_RL.reshape(*shape_BN, target_length)
        return target_BNL, drafts.log_prob_R.reshape(shape_BN), drafts.passes_R.reshape(shape_BN)

    return refine
