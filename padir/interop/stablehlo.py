"""Programs in StableHLO, which JAX runs without padir on CPU, CUDA and TPU (`jax.export`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from padir import checks
from padir.decoding import refine_batch
from padir.decoding.autoregressive import score_drafts
from padir.decoding.batches import SHORTEST
from padir.decoding.loaded import LoadedModel
from padir.decoding.options import Decoding
from padir.decoding.refine_batch import BUCKET, DraftInputs, RefineOptions
from padir.decoding.rerank import CausalScore, OwnScore
from padir.decoding.translation import packed_without_repeats
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.interop.options import exportable
from padir.models.length import top_lengths
from padir.models.params import in_model_dtype
from padir.models.products import for_any_machine
from padir.models.transformer import Transformer
from padir.text.ids import EOS, round_up

PLATFORMS = ("cpu", "cuda", "tpu")
_KNOWN_PLATFORMS = (*PLATFORMS, "rocm")


def jax_programs(
    translator: Translator,
    decoding: Decoding | None = None,
    *,
    source_length: int,
    target_length: int,
    platforms: Sequence[str] = PLATFORMS,
) -> dict[str, bytes]:
    """Serialises a refining model as two programs, for any number of sentences B and of drafts N of each sentence.

        encode(params, source_BS) -> length_BM, memory
        refine(params, memory, length_BN, draw_BN, num_steps, seed) -> target_BNL, count_BN, score_BN, passes_BN

    source_BS holds the rows of `LoadedModel.source_tokens`, padded with 0. length_BM holds the lengths to try, most
    likely first; the caller takes N of them. draw_BN numbers drafts of equal
    length. target_BNL holds the ids of each target, and count_BN their number. score_BN is highest for the draft that
    `Translator` chooses, except that it prefers drafts without broken characters. Integers are int32.

    `translator.side(decoding).params` are an argument, and part of no program. The bytes depend neither on them nor on
    the machine and its JAX settings.

    Args:
      decoding: options of the mode "refine", None for the model's own; each call has its own num_steps, num_lengths,
        num_drafts and seed.
      source_length: S, with EOS and the [LENGTH] token that most models read first.
      target_length: L, with EOS; the programs try no longer drafts.
      platforms: platforms of both programs, of "cpu", "cuda", "tpu" and "rocm".

    Raises:
      PadirError: the model or the options cannot be exported, a length is out of range, or a platform is unknown.

    >>> translator = Translator.load("de_en")
    >>> programs = jax_programs(translator, source_length=16, target_length=16, platforms=["cpu"])
    >>> encode, refine = (jax.export.deserialize(bytearray(program)).call for program in programs.values())
    >>> rows, _ = translator.loaded.source_tokens(["Wo ist der Bahnhof?"], truncate=False)
    >>> source_BS = translator.loaded.padded(rows, 1, [16])
    >>> length_BM, memory = encode(translator.params, source_BS)
    >>> draw_B1, four, seed = jnp.array([[0]]), jnp.array(4), jnp.array(0)
    >>> target_BNL, count_BN, *_ = refine(translator.params, memory, length_BM[:, :1], draw_B1, four, seed)
    >>> translator.tokenizer.decode(target_BNL[0, 0, : count_BN[0, 0]].tolist())
    "Where's the station?"
    """
    decoding = exportable(translator, decoding or translator.refining)
    loaded = translator.side(decoding)
    config = loaded.card.config
    longest = round_up(config.geometry.longest_source(config.max_length) + config.length_token, BUCKET)
    checks.whole_numbers(source_length=source_length, target_length=target_length)
    checks.within(SHORTEST, longest, source_length=source_length)
    checks.within(SHORTEST, config.max_length, target_length=target_length)
    if not platforms or not {*platforms} <= {*_KNOWN_PLATFORMS}:
        raise PadirError("platforms", f"one or more of {', '.join(_KNOWN_PLATFORMS)}", [*platforms])
    encode = _encode(loaded, decoding, target_length)
    refine = _refine(loaded, decoding, target_length)
    b, n = jax.export.symbolic_shape("b, n")
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), loaded.params)
    source_BS = jax.ShapeDtypeStruct((b, source_length), np.int32)
    count_BN = jax.ShapeDtypeStruct((b, n), np.int32)
    number = jax.ShapeDtypeStruct((), np.int32)
    with _settings():
        *_, memory = jax.eval_shape(encode, params, source_BS)
        exported = {
            "encode": jax.export.export(encode, platforms=platforms)(params, source_BS),
            "refine": jax.export.export(refine, platforms=platforms)(
                params, memory, count_BN, count_BN, number, number
            ),
        }
        return {name: bytes(program.serialize()) for name, program in exported.items()}


def _encode(loaded: LoadedModel, decoding: Decoding, target_length: int) -> Any:
    """The program that encodes sources and predicts the lengths of their targets."""
    config = loaded.card.config
    known = config.max_length if config.geometry.sized_by_target else 1

    def encode(params, source_BS):
        encoded, cross_kv = refine_batch.encode(loaded.model, params, source_BS)
        length_BM = top_lengths(encoded.length, known, decoding.length_window)
        return jnp.clip(length_BM, SHORTEST, target_length), (cross_kv, encoded.segment_BS, source_BS)

    return jax.jit(encode)


def _refine(loaded: LoadedModel, decoding: Decoding, target_length: int) -> Any:
    """The program that refines drafts, reads targets out of them, and scores the targets."""
    assert decoding.strategy is not None and decoding.canvas is not None
    model = loaded.model
    rule = cast(Any, decoding.rule)  # own or causal score: `exportable` refuses others
    own = rule if isinstance(rule, OwnScore) else OwnScore(rule.length_normalization)
    options = RefineOptions(target_length, decoding.strategy, decoding.canvas)
    repeat_V = np.ones(model.ids.num_embeddings, bool)  # ids that stay when they equal their left neighbour
    if decoding.drops_repeats:
        repeat_V = np.isin(np.arange(repeat_V.size), [*loaded.tokenizer.copied])

    def read_again(params, memory, target_RL):
        """The causal side's score of the targets (`padir.decoding.batches`)."""
        causal = Transformer(model.config.as_causal(), model.ids)
        log_prob_RL = score_drafts(causal, in_model_dtype(model.config, params), *memory, target_RL)
        return rule.of(log_prob_RL.sum(-1), (target_RL > 0).sum(-1))

    def refine(params, memory, length_BN, draw_BN, num_steps, seed):
        cross_kv, segment_BS, source_BS = memory
        inputs = DraftInputs(cross_kv, segment_BS, source_BS, length_BN, draw_BN)
        refined = refine_batch.refine_drafts(
            model,
            params,
            inputs,
            options=options,
            num_steps=num_steps,
            seed=seed,
            blank_penalty=decoding.blank_penalty,
        )
        kept_RL = model.config.geometry.kept(refined.tokens_RL, refined.free_RL, model.ids)
        target_RL = packed_without_repeats(refined.tokens_RL, kept_RL, jnp.asarray(repeat_V))
        score_R = own.of(refined.log_prob_R, refined.free_RL.sum(-1))
        if isinstance(rule, CausalScore):  # a single draft leaves no choice: its score is that of the rule "own"
            score_R = jax.lax.cond(
                jnp.asarray(length_BN.shape[1]) == 1,
                lambda: score_R,
                lambda: read_again(params, (cross_kv, segment_BS), target_RL),
            )
        target_BNL = target_RL.reshape(*length_BN.shape, target_length)
        count_BN = (target_BNL > EOS).sum(-1)
        return target_BNL, count_BN, score_R.reshape(length_BN.shape), refined.passes_R.reshape(length_BN.shape)

    return jax.jit(refine)


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """JAX's default settings, whatever this process has set, products for any machine, and no source locations."""
    limit = jax.config.jax_traceback_in_locations_limit  # pyright: ignore[reportAttributeAccessIssue]
    with (
        for_any_machine(),
        jax.enable_x64(False),
        jax.default_prng_impl("threefry2x32"),
        jax.threefry_partitionable(True),
        jax.default_matmul_precision(None),
        jax.numpy_dtype_promotion("standard"),
    ):
        jax.config.update("jax_traceback_in_locations_limit", 0)
        try:
            yield
        finally:
            jax.config.update("jax_traceback_in_locations_limit", limit)
