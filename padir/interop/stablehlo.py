"""Export of a model as StableHLO programs that JAX runs without padir on CPU, CUDA and TPU (`padir export`).

A folder of `export_model` holds

    encode_S.jax_export     one for each source length S: source tokens [b, S] -> lengths to try, likeliest first, their
                            log-probabilities, and memory
    refine_L.jax_export     one for each target length L: memory of sources of any length, and lengths of n drafts of
                            each sentence -> targets [b, n, L], their numbers of tokens, scores and passes
    search_S.jax_export     of an autoregressive model, instead of both: source tokens -> the same of its search
    weights.safetensors     the parameters, which are arguments of every program and part of none
    vocab.model             the SentencePiece file
    export.json             lengths, ids and options for the loader
    exported.py             the loader (`padir.interop.standalone`), which runs without padir
    manifest.json           sha256 of each of these files, checked when the folder is loaded

The number of sentences b and of drafts n a sentence is left open. The bytes do not depend on the machine that writes
them: differences between devices are decided inside the program (`_in_groups`), JAX settings that would change a
program are fixed, and source locations are left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast

import flax.traverse_util
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from padir import checks
from padir.decoding import autoregressive
from padir.decoding import refine_batch as drafts
from padir.decoding.batches import SHORTEST
from padir.decoding.options import Decoding
from padir.decoding.refine_batch import BUCKET, POSITIONS, DraftInputs, RefineOptions
from padir.decoding.rerank import CausalScore, OwnScore
from padir.decoding.translation import packed_without_repeats
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.interop import standalone
from padir.interop.standalone import program_file
from padir.models.config import ModelConfig
from padir.models.directory import ModelCard
from padir.models.length import log_probs, top_lengths
from padir.models.params import in_model_dtype
from padir.models.products import for_any_machine
from padir.models.transformer import Transformer
from padir.storage.folders import atomic_folder, check_replaceable
from padir.storage.manifest import write_manifest
from padir.text.ids import EOS, round_up

PLATFORMS = ("cpu", "cuda", "tpu")
_KNOWN_PLATFORMS = (*PLATFORMS, "rocm")


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Row lengths of the exported programs, increasing; None means all multiples of `step` that the model needs.

    Attributes:
      source: source lengths in tokens, with EOS and the [LENGTH] token that most models read first; the last one limits
        the sources.
      target: target lengths in tokens, with EOS; the model's maximum is always added. None for autoregressive models,
        whose target lengths follow from the sources.
      step: distance between lengths if no lengths are given.

    Raises:
      PadirError: lengths do not increase or are below 2, or the step is below 1.
    """

    source: tuple[int, ...] | None = None
    target: tuple[int, ...] | None = None
    step: int = BUCKET

    def __post_init__(self):
        for name in ("source", "target"):
            lengths = getattr(self, name)
            if lengths is None:
                continue
            object.__setattr__(self, name, tuple(lengths))
            if not lengths or lengths[0] < 2 or any(a >= b for a, b in zip(lengths, lengths[1:], strict=False)):
                raise PadirError(f"the {name} lengths must increase and be at least 2, got {list(lengths)}")
        checks.counts(1, step=self.step)

    def of(self, config: ModelConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(source lengths, target lengths) of a model's programs; an autoregressive model has no target lengths.

        Raises:
          PadirError: a length is longer than the model takes, or target lengths are given for an autoregressive model.
        """
        longest = config.readout.longest_source(config.max_length) + config.length_token
        source = self.source or self._steps(round_up(longest, self.step))
        if source[-1] > round_up(longest, max(self.step, BUCKET)):
            raise PadirError(f"the model reads at most {longest} source tokens, got a length of {source[-1]}")
        if config.causal:
            if self.target is not None:
                raise PadirError(
                    "an autoregressive model's target lengths follow from its source lengths: leave them out"
                )
            return source, ()
        target = self.target or self._steps(config.max_length)
        if target[-1] > config.max_length:
            raise PadirError(f"the model writes at most {config.max_length} tokens, got a length of {target[-1]}")
        return source, target if target[-1] == config.max_length else (*target, config.max_length)

    def _steps(self, longest: int) -> tuple[int, ...]:
        return (*range(self.step, longest, self.step), longest)


def export_model(
    translator: Translator,
    folder: str | PathLike[str],
    decoding: Decoding | None = None,
    *,
    lengths: Lengths = Lengths(),  # noqa: B008
    platforms: Sequence[str] = PLATFORMS,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """Writes a model as programs that `padir.interop.standalone` loads.

    Args:
      folder: the folder to write, whole or not at all.
      decoding: decoding options. num_steps, top_k, draws, seed and batch_size become the loader's defaults, the other
        options become part of the programs.
      platforms: devices that every program runs on, of "cpu", "cuda", "tpu" and "rocm".
      overwrite: replace an earlier export in the folder.
      progress: receives the name of each program that is written.

    Returns:
      The metrics that `padir export` prints: numbers of programs and bytes.

    Raises:
      PadirError: the folder holds something else, the options do not fit the model or cannot be exported, or a
        platform is unknown.
    """
    decoding = exportable(translator, decoding or translator.decoding)
    loaded = translator.side(decoding)
    source_lengths, target_lengths = lengths.of(loaded.card.config)
    unknown = [platform for platform in platforms if platform not in _KNOWN_PLATFORMS]
    if unknown or not platforms:
        raise PadirError(f"platforms must be one or more of {', '.join(_KNOWN_PLATFORMS)}, got {list(platforms)}")
    flat = flax.traverse_util.flatten_dict(jax.device_get(loaded.params), sep="/")
    params = {name: np.asarray(value) for name, value in flat.items()}
    description = _describe(loaded.card, decoding, source_lengths, target_lengths, platforms, params)
    sizes = {}
    check_replaceable(folder, standalone.DESCRIPTION, overwrite=overwrite)
    with atomic_folder(folder) as unfinished:
        copied = translator.tokenizer.copied
        for name, program, arguments in programs(
            loaded.model, decoding, params, copied, source_lengths, target_lengths
        ):
            data = serialise(program, arguments, platforms)
            (unfinished / name).write_bytes(data)
            sizes[name] = len(data)
            progress(name)
        save_weights(unfinished / standalone.WEIGHTS, params)
        (unfinished / standalone.VOCABULARY).write_bytes(translator.tokenizer.model_bytes)
        (unfinished / standalone.DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
        shutil.copyfile(standalone.__file__, unfinished / "exported.py")
        write_manifest(unfinished)
    files = [path for path in Path(folder).iterdir() if path.is_file()]
    return {
        "programs": len(sizes),
        "program_bytes": sum(sizes.values()),
        "weight_bytes": (Path(folder) / standalone.WEIGHTS).stat().st_size,
        "bytes": sum(path.stat().st_size for path in files),
        "platforms": list(platforms),
    }


def exportable(translator: Translator, decoding: Decoding) -> Decoding:
    """Decoding options with the model's own strategy and canvas; refuses options that programs cannot have."""
    rule = {"rerank": decoding.rerank, "margin": decoding.margin}  # `resolved` forgets them for a single draft
    decoding = dataclasses.replace(translator.resolved(decoding), **rule)
    refines = translator.refines(decoding)
    if translator.card.config.length_head == "oracle" and refines:
        what = "the model's length head is 'oracle', which predicts no length"
        raise PadirError(what, remedy="export a model with another length head")
    readout = translator.card.config.readout
    if refines and not readout.sized_by_target and decoding.top_k > 1:
        remedy = "take top_k=1, because exported programs read one sentence out of a canvas"
        raise PadirError("top_k", f"1 for an export of a {readout.name} model", decoding.top_k, remedy)
    margin = getattr(decoding.rule, "margin", None) is not None
    excluded = ("shortlist", decoding.shortlist), ("n_best", decoding.n_best), ("keep", decoding.keep)
    for name, wrong in (*excluded, ("margin", margin)):
        if wrong:
            raise PadirError(f"{name} cannot be exported: translate with padir, or leave it out")
    if refines and not isinstance(decoding.rule, OwnScore | CausalScore):
        what = "only the rules 'own' and, for a dual model, 'causal' can choose among exported hypotheses"
        raise PadirError(what, got=decoding.rerank, remedy="take the rule 'own', as with --rerank own")
    if decoding.length_weight and translator.card.config.length_head != "token":
        raise PadirError("length_weight needs a length head that gives probabilities ('token'): use length_weight=0")
    return decoding


def _describe(card: ModelCard, decoding: Decoding, source_lengths, target_lengths, platforms, params) -> dict[str, Any]:
    """The content of export.json."""
    from padir import __version__

    config, prefix = card.config, [card.ids.length] if card.config.length_token else []
    longest = config.readout.longest_source(config.max_length)
    options = ("batch_size", "seed", *(() if config.causal else ("num_steps", "top_k", "draws")))
    return {
        "format": standalone.FORMAT,
        "padir": __version__,
        "jax": jax.__version__,
        "kind": "search" if config.causal else "refine",
        "source_language": card.source_language,
        "target_language": card.target_language,
        "platforms": list(platforms),
        "source_buckets": list(source_lengths),
        "target_buckets": list(target_lengths),
        "max_source_tokens": min(longest, source_lengths[-1] - len(prefix)) - 1,
        "source_prefix": prefix,
        "dtypes": {name: str(value.dtype) for name, value in params.items()},
        "options": {name: getattr(decoding, name) for name in options},
        "canvas_deterministic": decoding.canvas is not None and decoding.canvas.deterministic,
    }


def save_weights(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes arrays as safetensors, in bfloat16 if this changes no float32 value, which halves the file."""
    small = {name: value.astype(jnp.bfloat16) if value.dtype == np.float32 else value for name, value in arrays.items()}
    exact = all(np.array_equal(small[name].astype(value.dtype), value) for name, value in arrays.items())
    whole = {name: np.ascontiguousarray(value) for name, value in (small if exact else arrays).items()}
    path.write_bytes(safetensors.numpy.save(whole))  # save_file lets nobody else read the file


def programs(
    model: Transformer,
    decoding: Decoding,
    params: dict[str, Any],
    copied: frozenset[int],
    source_lengths: Sequence[int],
    target_lengths: Sequence[int],
) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """(file name, function, shapes of the function's arguments) of every program; `copied` is of the tokenizer."""
    b, n, s = jax.export.symbolic_shape("b, n, s")
    number, config = jax.ShapeDtypeStruct((), np.int32), model.config
    count = config.max_length if config.readout.sized_by_target else 1  # of lengths that the model knows

    def ints(*shape) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, np.int32)

    def encode(params, source_BS):
        encoded, cross_kv = drafts.encode(model, _tree(params), source_BS)
        length_BM, log_prob_BM = top_lengths(encoded.length, count, decoding.adjacent)
        length_BM = jnp.clip(length_BM, SHORTEST, config.max_length)
        if (all_BM := log_probs(encoded.length)) is not None:
            log_prob_BM = jnp.take_along_axis(all_BM, length_BM - 1, axis=1)  # of the length that is tried
        return length_BM, log_prob_BM, (cross_kv, encoded.segment_BS, source_BS)

    def search(params, source_BS, seed):
        (longest,) = autoregressive.length_limits([source_BS.shape[1]], config.max_length)
        limit_B = autoregressive.LENGTH_FACTOR * (source_BS > 0).sum(1) + autoregressive.LENGTH_EXTRA
        limit_B = jnp.minimum(limit_B, config.max_length)
        rows, score_BN, passes_B = autoregressive.write_targets(
            model, _tree(params), source_BS, limit_B, search=decoding.search, max_length=longest, seed=seed
        )
        return rows.tokens_BNL, rows.length_BN - 1, score_BN, jnp.broadcast_to(passes_B[:, None], score_BN.shape)

    like = {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in params.items()}
    for length in source_lengths:
        if config.causal:
            yield program_file("search", length), search, (like, ints(b, length), number)
        else:
            yield program_file("encode", length), encode, (like, ints(b, length))
    for length in target_lengths:
        *_, some = jax.eval_shape(encode, like, ints(b, source_lengths[0]))
        memory = jax.tree.map(lambda x: jax.ShapeDtypeStruct((b, s, *x.shape[2:]), x.dtype), some)
        log_prob_BN = jax.ShapeDtypeStruct((b, n), np.float32)
        arguments = (like, memory, ints(b, n), log_prob_BN, ints(b, n), number, number)
        yield program_file("refine", length), _refine(model, decoding, copied, length), arguments


def _refine(model, decoding: Decoding, copied: frozenset[int], length: int) -> Callable[..., Any]:
    """The program that refines drafts of at most `length` tokens, reads targets out of them, and scores the targets."""
    assert decoding.strategy is not None and decoding.canvas is not None
    rule = cast(Any, decoding.rule)  # own or causal score: `export` refuses others
    own = rule if isinstance(rule, OwnScore) else OwnScore(rule.brevity)
    repeat_V = np.ones(model.ids.num_embeddings, bool)  # ids that stay when they equal their left neighbour
    if decoding.drops_repeats:
        repeat_V = np.isin(np.arange(repeat_V.size), [*copied])

    def again(params, memory, target_RL):
        """The causal side's score of the targets (`padir.decoding.batches`)."""
        causal, params = Transformer(model.config.as_causal(), model.ids), in_model_dtype(model.config, params)
        log_prob_RL = autoregressive.score_drafts(causal, params, *memory, target_RL)
        return rule.of(log_prob_RL.sum(-1), (target_RL > 0).sum(-1))

    options = RefineOptions(length, decoding.strategy, decoding.canvas)

    def refine(params, memory, length_BN, length_log_prob_BN, draw_BN, num_steps, seed):
        cross_kv, segment_BS, source_BS = memory

        def rows(rows_at_once: int | None):
            refined = drafts.refine_drafts(
                model,
                _tree(params),
                DraftInputs(cross_kv, segment_BS, source_BS, length_BN, draw_BN),
                options=dataclasses.replace(options, rows_at_once=rows_at_once),
                num_steps=num_steps,
                seed=seed,
                blank_penalty=decoding.blank_penalty,
            )
            shape, tokens_RL, free_RL = length_BN.shape, refined.tokens_RL, refined.free_RL
            kept_RL = model.config.readout.kept(tokens_RL, free_RL, model.ids)
            target_RL = packed_without_repeats(tokens_RL, kept_RL, jnp.asarray(repeat_V))
            score_R = own.of(refined.log_prob_R, free_RL.sum(-1), length_log_prob_BN.reshape(-1))
            if isinstance(rule, CausalScore):  # a single draft leaves no choice: its score is that of the rule "own"
                score_R = jax.lax.cond(
                    jnp.asarray(shape[1], jnp.int32) == 1,
                    lambda: score_R,
                    lambda: again(_tree(params), (cross_kv, segment_BS), target_RL),
                )
            by_row = (target_RL > EOS).sum(-1), score_R, refined.passes_R
            return (target_RL.reshape(*shape, length), *(each_R.reshape(shape) for each_R in by_row))

        group = max(1, POSITIONS // length)
        return jax.lax.cond(_in_groups(length_BN.size, group), lambda: rows(group), lambda: rows(None))

    return refine


def _in_groups(rows: Any, group: int) -> jax.Array:
    """True on a CPU with more rows than a group, where `Translator` refines the rows in groups.

    XLA knows the device and the number of rows when it compiles, and keeps only one branch.
    """
    return jax.lax.platform_dependent(
        jnp.asarray(rows, jnp.int32), cpu=lambda rows: rows > group, default=lambda rows: jnp.zeros_like(rows, bool)
    )


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


def serialise(program: Callable[..., Any], arguments: tuple[Any, ...], platforms: Sequence[str]) -> bytes:
    """The bytes of a program for all platforms at once, in the format of jax.export."""
    with _settings():
        return bytes(jax.export.export(jax.jit(program), platforms=platforms)(*arguments).serialize())


def _tree(params: dict[str, Any]) -> Any:
    return flax.traverse_util.unflatten_dict(params, sep="/")
