"""Export of a model as StableHLO programs that JAX runs without padir on CPU, CUDA and TPU (`padir export`).

A folder of `export_model` holds

    encode_S.jax_export     one for each source length S: source tokens [b, S] -> output of the length head, and memory
    refine_L.jax_export     one for each target length L: memory of sources of any length, and lengths of n drafts of
                            each sentence -> refined tokens [b, n, L], their log-probabilities and passes
    search_S.jax_export     of an autoregressive model, instead of both: source tokens -> targets that its search wrote
    weights.safetensors     the parameters, which are arguments of every program and part of none
    vocab.model             the SentencePiece file
    export.json             lengths, ids and options for the loader
    exported.py             the loader (`padir.interop.standalone`), which runs without padir
    manifest.json           sha256 of each of these files, checked when the folder is loaded
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from padir import checks
from padir.decoding import autoregressive
from padir.decoding.options import Decoding
from padir.decoding.refine_batch import BUCKET
from padir.decoding.rerank import OwnScore
from padir.decoding.search import SEARCHES
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.interop import standalone, traced_programs
from padir.models.card import name_and_fields
from padir.refinement.corruption import CORRUPTIONS
from padir.refinement.strategies import STRATEGIES
from padir.storage.folders import atomic_folder, check_replaceable
from padir.storage.manifest import write_manifest
from padir.text.ids import round_up

PLATFORMS = ("cpu", "cuda", "tpu")
_KNOWN_PLATFORMS = (*PLATFORMS, "rocm")


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Row lengths of the exported programs, increasing; None for all multiples of `step` that the model needs.

    Attributes:
      source: source lengths in tokens, with EOS and the [LENGTH] token that most models read first; the last one limits
        the sources.
      target: target lengths in tokens, with EOS; the model's maximum is always added. None for autoregressive models,
        whose target lengths follow from the sources.
      step: distance between lengths where none are named.

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
                raise PadirError(f"the {name} lengths must increase, from 2 on, got {list(lengths)}")
        checks.at_least(1, step=self.step)

    def of(self, translator: Translator) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(source lengths, target lengths) of a model's programs; an autoregressive model has no target lengths.

        Raises:
          PadirError: a length is longer than the model takes, or target lengths of an autoregressive model.
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
    """Writes a model as programs that `padir.interop.standalone` loads.

    Args:
      translator: the model, with float32 or 8-bit weights.
      folder: the folder to write, whole or not at all.
      decoding: decoding options. Strategy, canvas and search become part of the programs; the other fields become the
        loader's defaults.
      lengths: row lengths of the programs.
      platforms: devices that every program runs on, of "cpu", "cuda", "tpu" and "rocm".
      overwrite: replace an earlier export in the folder.
      progress: receives the name of each program that is written.

    Returns:
      The metrics that `padir export` prints: numbers of programs and bytes.

    Raises:
      PadirError: the folder holds something else, the options do not fit the model or cannot be exported, or a
        platform is unknown.
    """
    decoding = _exportable(translator, decoding or translator.decoding)
    source_lengths, target_lengths = lengths.of(translator)
    unknown = [platform for platform in platforms if platform not in _KNOWN_PLATFORMS]
    if unknown or not platforms:
        raise PadirError(f"platforms must be some of {', '.join(_KNOWN_PLATFORMS)}, got {list(platforms)}")
    flat = flax.traverse_util.flatten_dict(jax.device_get(translator.params), sep="/")
    params = {name: np.asarray(value) for name, value in flat.items()}
    description = _describe(translator, decoding, source_lengths, target_lengths, platforms, params)
    sizes = {}
    check_replaceable(folder, standalone.DESCRIPTION, overwrite=overwrite)
    with atomic_folder(folder) as unfinished:
        for name, program, arguments in traced_programs.programs(
            translator.model, decoding, params, source_lengths, target_lengths
        ):
            data = traced_programs.serialise(program, arguments, platforms)
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


def _exportable(translator: Translator, decoding: Decoding) -> Decoding:
    """Decoding options with the model's own strategy and canvas filled in, checked for what programs cannot do."""
    decoding = translator.resolved(decoding)
    if translator.card.config.length_head == "oracle" and not translator.card.config.causal:
        raise PadirError("the model's length head is 'oracle', which predicts no length: export a model with another")
    if translator.card.config.ctc:
        raise PadirError(
            "a CTC model cannot be exported, as exported programs do not collapse tokens: translate with padir"
        )
    for name in ("prune", "shortlist", "n_best", "draft"):
        if getattr(decoding, name) != getattr(Decoding, name):
            raise PadirError(f"{name} cannot be exported: translate with padir, or leave it out")
    if not isinstance(decoding.rerank, OwnScore):
        raise PadirError(
            f"only the model's own score can rerank exported hypotheses, got {decoding.rerank}: take the rule 'own'"
        )
    if decoding.rerank.length_weight and translator.card.config.length_head != "token":
        raise PadirError("length_weight needs a length head that gives probabilities ('token'): use length_weight=0")
    return decoding


def _describe(
    translator: Translator, decoding: Decoding, source_lengths, target_lengths, platforms, params
) -> dict[str, Any]:
    """The content of export.json."""
    from padir import __version__

    card = translator.card
    causal, prefix = card.config.causal, [card.ids.length] if card.config.length_token else []
    described = {
        "format": standalone.FORMAT,
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
    lengths = dataclasses.asdict(decoding.lengths)
    adjacent = lengths.pop("adjacent")
    described["options"] |= {"num_steps": decoding.num_steps, **lengths}
    return described | {
        "adjacent_lengths": adjacent,
        "drop_repeats": decoding.drops_repeats,
        "length_head": card.config.length_head,
        "brevity": decoding.rerank.brevity,
        "length_weight": decoding.rerank.length_weight,
        "strategy": name_and_fields(decoding.strategy, STRATEGIES),
        "canvas": name_and_fields(decoding.canvas, CORRUPTIONS),
        "canvas_deterministic": decoding.canvas.deterministic,
    }


def save_weights(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes arrays as safetensors, in bfloat16 if this changes no float32 value, which halves the file."""
    small = {name: value.astype(jnp.bfloat16) if value.dtype == np.float32 else value for name, value in arrays.items()}
    exact = all(np.array_equal(small[name].astype(value.dtype), value) for name, value in arrays.items())
    whole = {name: np.ascontiguousarray(value) for name, value in (small if exact else arrays).items()}
    path.write_bytes(safetensors.numpy.save(whole))  # save_file lets nobody else read the file
