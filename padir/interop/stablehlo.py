"""`padir export`: a model as StableHLO programs that JAX alone can run, on CPUs, CUDA and TPUs.

A folder of `export_model` holds

    encode_S.jax_export     for each source length S: source tokens [b, S] -> what the length head says, and the memory
    refine_L.jax_export     for each target length L: the memory of sources of any length and the lengths of n drafts
                            of each sentence -> refined tokens [b, n, L], their log-probabilities and passes
    search_S.jax_export     of an autoregressive model, in place of both: source tokens -> what its search wrote
    weights.safetensors     the parameters: arguments of every program, and so in none of them
    vocab.model             the SentencePiece file
    export.json             lengths, ids and options: all that the loader needs to know
    exported.py             the loader (`padir.interop.standalone`), which does without padir
    manifest.json           sha256 of each of these, checked when loaded

The programs are those that `Translator` runs (`padir.decoding.refine_batch`, `padir.decoding.autoregressive`), traced
with the number of sentences b and of hypotheses n left open. They do not depend on the machine that writes them: what
differs between devices is chosen inside (`_in_groups`), settings of JAX that would change a program are fixed, and
source locations left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from padir.decoding import autoregressive
from padir.decoding import refine_batch as drafts
from padir.decoding.options import Decoding
from padir.decoding.refine_batch import BUCKET, Tried, rows_on_a_cpu
from padir.decoding.rerank import OwnScore
from padir.decoding.search import SEARCHES
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.interop import standalone as exported
from padir.models.card import name_and_fields
from padir.models.length import log_probs, top_lengths
from padir.refinement.corruption import CORRUPTIONS
from padir.refinement.strategies import STRATEGIES, Padir
from padir.storage.folders import atomic_folder, check_replaceable
from padir.storage.manifest import write_manifest
from padir.text.ids import round_up

PLATFORMS = ("cpu", "cuda", "tpu")
_KNOWN_PLATFORMS = (*PLATFORMS, "rocm")


@dataclasses.dataclass(frozen=True)
class Lengths:
    """The row lengths that there are programs for, increasing; None: all multiples of 8 that the model can need.

    Attributes:
      source: in tokens, with EOS and the [LENGTH] token that most models read first. The last one limits the sources.
      target: in tokens, with EOS; what the model can write at most is always among them. An autoregressive model's
        follow from the sources'.
      step: multiples of it where none are named.

    Raises:
      PadirError: they do not increase, or one is below 2.
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
                raise PadirError(f"the {name} lengths must increase, from 2 on, got {list(lengths)}")
        if self.step < 1:
            raise PadirError(f"the step between lengths must be at least 1, got {self.step}")

    def of(self, translator: Translator) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The source and target lengths of a model; no target lengths where it is autoregressive.

        Raises:
          PadirError: one is longer than the model takes.
        """
        config = translator.card.config
        longest = config.max_length + config.length_token
        source = self.source or self._steps(round_up(longest, self.step))
        if source[-1] > round_up(longest, max(self.step, BUCKET)):
            raise PadirError(f"the model reads at most {longest} source tokens, got a length of {source[-1]}")
        if config.causal:
            if self.target is not None:
                raise PadirError("an autoregressive model's target lengths follow from its sources': name no others")
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
    """Writes a model as programs; `padir.interop.standalone` loads them.

    Args:
      translator: of float32 or 8-bit weights.
      folder: to write, whole or not at all.
      decoding: strategy, canvas and search become part of the programs; the other fields are what the loader does
        unless told otherwise.
      lengths: that there are programs for.
      platforms: that each program is for, of "cpu", "cuda", "tpu" and "rocm".
      overwrite: whether an earlier export in the folder may be replaced.
      progress: told the name of each program that is written.

    Returns:
      The figures that `padir export` prints: programs and bytes.

    Raises:
      PadirError: the folder holds something else, the options do not fit the model or cannot be exported, or a
        platform is unknown.
    """
    decoding = _exportable(translator, decoding or Decoding())
    source_lengths, target_lengths = lengths.of(translator)
    unknown = [platform for platform in platforms if platform not in _KNOWN_PLATFORMS]
    if unknown or not platforms:
        raise PadirError(f"platforms must be some of {', '.join(_KNOWN_PLATFORMS)}, got {list(platforms)}")
    params = {name: np.asarray(value) for name, value in _flat(jax.device_get(translator.params)).items()}
    description = _describe(translator, decoding, source_lengths, target_lengths, platforms, params)
    sizes = {}
    check_replaceable(folder, exported.DESCRIPTION, overwrite=overwrite)
    with atomic_folder(folder) as unfinished:
        for name, program, arguments in _programs(translator, decoding, params, source_lengths, target_lengths):
            data = _serialised(program, arguments, platforms)
            (unfinished / name).write_bytes(data)
            sizes[name] = len(data)
            progress(name)
        save_weights(unfinished / exported.WEIGHTS, params)
        (unfinished / exported.VOCABULARY).write_bytes(translator.tokenizer.model_bytes)
        (unfinished / exported.DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
        shutil.copyfile(exported.__file__, unfinished / "exported.py")
        write_manifest(unfinished)
    files = [path for path in Path(folder).iterdir() if path.is_file()]
    return {
        "programs": len(sizes),
        "program_bytes": sum(sizes.values()),
        "weight_bytes": (Path(folder) / exported.WEIGHTS).stat().st_size,
        "bytes": sum(path.stat().st_size for path in files),
        "platforms": list(platforms),
    }


def _exportable(translator: Translator, decoding: Decoding) -> Decoding:
    """The decoding with the model's own strategy and canvas, if all of it can be exported."""
    decoding = translator.resolved(decoding)
    if translator.card.config.length_head == "oracle" and not translator.card.config.causal:
        raise PadirError("the model's length head is 'oracle', which predicts no length: export a model with another")
    for name in ("prune", "shortlist", "n_best"):
        if getattr(decoding, name) != getattr(Decoding, name):
            raise PadirError(f"{name} cannot be exported: translate with padir, or leave it out")
    if not isinstance(decoding.rerank, OwnScore):
        raise PadirError(
            f"only the model's own score can choose among exported hypotheses, got {decoding.rerank}: leave --rerank"
            " out"
        )
    if decoding.rerank.length_weight and translator.card.config.length_head != "token":
        raise PadirError("length_weight needs a length head that gives probabilities ('token'): use length_weight=0")
    return decoding


def _describe(
    translator: Translator, decoding: Decoding, source_lengths, target_lengths, platforms, params
) -> dict[str, Any]:
    """What export.json says."""
    from padir import __version__

    card = translator.card
    causal, prefix = card.config.causal, [card.ids.length] if card.config.length_token else []
    described = {
        "format": exported.FORMAT,
        "padir": __version__,
        "jax": jax.__version__,
        "kind": "search" if causal else "refine",
        "source_language": card.source_language,
        "target_language": card.target_language,
        "platforms": list(platforms),
        "source_buckets": list(source_lengths),
        "target_buckets": list(target_lengths),
        "max_length": card.config.max_length,
        "max_source_tokens": min(card.config.max_length, source_lengths[-1] - len(prefix)) - 1,
        "source_prefix": prefix,
        "dtypes": {name: str(value.dtype) for name, value in params.items()},
        "options": {"batch_size": decoding.batch_size, "seed": decoding.seed},
    }
    if causal:
        limit = [autoregressive.LENGTH_FACTOR, autoregressive.LENGTH_EXTRA]
        search = name_and_fields(decoding.search, SEARCHES)
        return described | {"drop_repeats": False, "length_limit": limit, "search": search}
    assert decoding.canvas is not None and decoding.strategy is not None and isinstance(decoding.rerank, OwnScore)
    drop = isinstance(decoding.strategy, Padir) if decoding.drop_repeats is None else decoding.drop_repeats
    described["options"] |= {"num_steps": decoding.num_steps, **dataclasses.asdict(decoding.lengths)}
    return described | {
        "drop_repeats": drop,
        "length_head": card.config.length_head,
        "brevity": decoding.rerank.brevity,
        "length_weight": decoding.rerank.length_weight,
        "strategy": name_and_fields(decoding.strategy, STRATEGIES),
        "canvas": name_and_fields(decoding.canvas, CORRUPTIONS),
        "canvas_deterministic": decoding.canvas.deterministic,
    }


def _programs(
    translator: Translator, decoding: Decoding, params: dict[str, np.ndarray], source_lengths, target_lengths
) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """(file, function, shapes of its arguments) of every program."""
    model = translator.model
    b, n, s = jax.export.symbolic_shape("b, n, s")
    number = jax.ShapeDtypeStruct((), np.int32)

    def ints(*shape, dtype: Any = np.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    def encode(params, source_BS):
        encoded, cross_kv = drafts.encode(model, _tree(params), source_BS)
        said = log_probs(encoded.length)
        return (top_lengths(encoded.length, 1)[0] if said is None else said), (cross_kv, encoded.segment_BS)

    def search(params, source_BS, number_B, limit_B, seed):
        (longest,) = autoregressive.length_limits([source_BS.shape[1]], model.config.max_length)
        rows, score_BN, passes_B = autoregressive.translate(
            model, _tree(params), source_BS, number_B, limit_B, search=decoding.search, max_length=longest, seed=seed
        )
        return rows.tokens_BNL, rows.length_BN, score_BN, passes_B

    like = {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in params.items()}
    numbers = ints(b, dtype=np.uint32)
    for length in source_lengths:
        if model.config.causal:
            arguments = (like, ints(b, length), numbers, ints(b), number)
            yield exported.program_file("search", length), search, arguments
        else:
            yield exported.program_file("encode", length), encode, (like, ints(b, length))
    for length in target_lengths:
        _, some = jax.eval_shape(encode, like, ints(b, source_lengths[0]))
        memory = jax.tree.map(lambda x: jax.ShapeDtypeStruct((b, s, *x.shape[2:]), x.dtype), some)
        arguments = (like, memory, numbers, ints(b, n), ints(b, n), number, number)
        yield exported.program_file("refine", length), _refine(model, decoding, length), arguments


def _refine(model, decoding: Decoding, length: int) -> Callable[..., Any]:
    """The program that refines drafts of at most `length` tokens."""

    def refine(params, memory, number_B, length_BN, draw_BN, num_steps, seed):
        cross_kv, segment_BS = memory

        def rows(rows_at_once: int | None):
            refined = drafts.refine_drafts(
                model,
                _tree(params),
                Tried(cross_kv, segment_BS, number_B, length_BN, draw_BN),
                max_target_length=length,
                strategy=decoding.strategy,
                corruption=decoding.canvas,
                num_steps=num_steps,
                seed=seed,
                prune=None,
                rows_at_once=rows_at_once,
                traced_steps=None,
            )
            shape = length_BN.shape
            return (
                refined.tokens_RL.reshape(*shape, length),
                refined.log_prob_R.reshape(shape),
                refined.passes_R.reshape(shape),
            )

        group = rows_on_a_cpu(length)
        return jax.lax.cond(_in_groups(length_BN.size, group), lambda: rows(group), lambda: rows(None))

    return refine


def _in_groups(rows: Any, group: int) -> jax.Array:
    """Whether so many rows are taken in groups: more than a group on a CPU, as `Translator` does there.

    XLA knows both the device and the number of rows when it compiles, and keeps only one of the ways.
    """
    return jax.lax.platform_dependent(
        jnp.asarray(rows, jnp.int32), cpu=lambda rows: rows > group, default=lambda rows: jnp.zeros_like(rows, bool)
    )


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """JAX as it is by default, whatever this process has set; and no names of this machine's files in programs."""
    limit = jax.config.jax_traceback_in_locations_limit  # pyright: ignore[reportAttributeAccessIssue]
    with (
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


def _serialised(program: Callable[..., Any], arguments: tuple[Any, ...], platforms: Sequence[str]) -> bytes:
    """A program for all platforms at once, as jax.export writes it."""
    with _settings():
        return bytes(jax.export.export(jax.jit(program), platforms=platforms)(*arguments).serialize())


def _flat(params: Any) -> dict[str, Any]:
    return flax.traverse_util.flatten_dict(params, sep="/")


def _tree(params: dict[str, Any]) -> Any:
    return flax.traverse_util.unflatten_dict(params, sep="/")


def save_weights(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes arrays as safetensors; as bfloat16, which halves the file, where float32 numbers lose nothing by it."""
    small = {name: value.astype(jnp.bfloat16) if value.dtype == np.float32 else value for name, value in arrays.items()}
    exact = all(np.array_equal(small[name].astype(value.dtype), value) for name, value in arrays.items())
    whole = {name: np.ascontiguousarray(value) for name, value in (small if exact else arrays).items()}
    path.write_bytes(safetensors.numpy.save(whole))  # save_file lets nobody else read the file
