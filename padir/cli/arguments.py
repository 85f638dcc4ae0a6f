"""Conversion of parsed command-line options to `Decoding` options and loaded models."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from padir.cli.options import given
from padir.decoding.drafters import load_draft
from padir.decoding.modes import in_mode
from padir.decoding.options import Decoding, Prune, foreign_option
from padir.decoding.rerank import RULES, OwnScore, Rerank
from padir.decoding.rescoring import rescorer
from padir.decoding.search import Beam, Sampling, Search
from padir.decoding.shortlist import Shortlist
from padir.decoding.translator import Translator
from padir.distributed.sharding import Sharding
from padir.errors import PadirError, nearest
from padir.models.config import ModelConfig
from padir.pretrained import PRETRAINED, model_folder
from padir.reporting.patience import told
from padir.storage.files import is_address

_SEVERAL = ("strategy", "top_k", "rerank", "num_steps", "beam", "shortlist", "draft")
# Options whose values `Decoding.changed` takes as they are.
_PLAIN = ("num_steps", "batch_size", "seed", "strategy", "top_k", "adjacent", "offsets", "draws", "n_best")
_OF_REFINING = (
    *("num_steps", "strategy", "top_k", "adjacent", "offsets", "draws"),
    *("keep", "rerank", "brevity", "length_weight", "n_best"),
)
_OF_CAUSAL = ("beam", "length_penalty", "sample", "draft")


def decoding_of(args: argparse.Namespace, default: Decoding = Decoding(), **chosen: Any) -> Decoding:
    """Apply gin's bindings of `Decoding` to the model's own options, and the command line's options to the result.

    Args:
      default: the model's own options (`Translator.decoding`).
      chosen: values that replace the command line's, for options that may have several values.

    Raises:
      PadirError: a value is out of its range, options exclude each other, or a gin binding has no effect.
    """
    base = default
    if args.gin:
        from padir import config

        base = _with_gin(default)
        if args.command != "train":  # training uses further bindings
            config.check_overrides()
    said = vars(args) | chosen
    said = {name: value for name, value in said.items() if value is not None}
    changes: dict[str, Any] = {name: said[name] for name in _PLAIN if name in said}
    if "keep" in said:
        changes["prune"] = Prune(said["keep"])
    if "shortlist" in said:
        changes["shortlist"] = None if said["shortlist"] == "none" else Shortlist.load(said["shortlist"])
    if {"rerank", "brevity", "length_weight"} & said.keys():
        changes["rerank"] = _rerank(said.get("rerank"), said.get("brevity"), said.get("length_weight"), base.rerank)
    if "draft" in said:
        with told(f"loading the draft {said['draft']}"):
            changes["draft"] = None if said["draft"] == "none" else load_draft(said["draft"])
    if {"beam", "length_penalty", "sample"} & said.keys():
        changes["search"] = _search(said.get("beam"), said.get("length_penalty"), said.get("sample"), base.search)
    return base.changed(**changes)


def _with_gin(default: Decoding) -> Decoding:
    """Decoding options with the values that gin binds, and the default's values for everything else."""
    from padir import config

    configured, bound = config.configured(Decoding)(), config.bound(Decoding)
    changes = {name: getattr(configured, name) for name in bound}
    for part in {"lengths", "rerank", "search"} - bound:  # gin may bind fields of the class that the default has
        value, own = getattr(configured, part), getattr(default, part)
        if type(value) is type(own):
            fields = {name: getattr(value, name) for name in config.bound(type(own))}
            changes[part] = dataclasses.replace(own, **fields)
    return default.changed(**changes)


def decodings_of(args: argparse.Namespace, default: Decoding = Decoding(), **chosen: Any) -> list[Decoding]:
    """Decoding options for every combination of values, for options that take several values."""
    axes = [getattr(args, name) or [None] for name in _SEVERAL]
    return [
        decoding_of(args, default, **dict(zip(_SEVERAL, values, strict=True)), **chosen)
        for values in itertools.product(*axes)
    ]


def _search(beam: int | None, length_penalty: float | None, temperature: float | None, base: Search) -> Search:
    """Search by --sample, or by --beam and --length_penalty; gin's search supplies the other settings."""
    if temperature is not None:
        if beam is not None or length_penalty is not None:
            raise PadirError("give either --sample or --beam with its --length_penalty, not both")
        return dataclasses.replace(base if isinstance(base, Sampling) else Sampling(), temperature=temperature)
    changes: dict[str, Any] = {"size": beam, "alpha": length_penalty}
    changes = {name: value for name, value in changes.items() if value is not None}
    return dataclasses.replace(base if isinstance(base, Beam) else Beam(), **changes)


def _rerank(how: str | None, brevity: float | None, length_weight: float | None, base: Rerank) -> Rerank:
    """Rerank rule by --rerank, --brevity and --length_weight; gin's rule supplies the other settings."""
    settings = {} if brevity is None else {"brevity": brevity}
    if how == "own" or (how is None and isinstance(base, OwnScore)):
        settings |= {} if length_weight is None else {"length_weight": length_weight}
        return dataclasses.replace(base if isinstance(base, OwnScore) else OwnScore(), **settings)
    if length_weight is not None:
        raise PadirError(f"--length_weight belongs to --rerank own, got {how or base}")
    with_brevity = {name: rule for name, rule in RULES.items() if hasattr(rule, "brevity")}
    belongs = f"--brevity belongs to --rerank {', '.join(with_brevity)} or MODEL_DIR"
    if how is None:
        how = next((name for name, rule in with_brevity.items() if type(rule) is type(base)), None)
    if how is None:
        raise PadirError(f"{belongs}, got {base}: name one of them")
    if how not in RULES:
        if os.sep not in how and not os.path.exists(model_folder(how)):
            known = nearest(how, [*RULES, *PRETRAINED])
            raise PadirError(f"--rerank {how!r} is neither a rule nor a model directory", remedy=known)
        return rescorer(how, **settings)
    if how in with_brevity:
        return dataclasses.replace(with_brevity[how], **settings)  # pyright: ignore
    if settings:
        raise PadirError(f"{belongs}: minimum Bayes risk ignores lengths")
    return RULES[how]


def check_options(args: argparse.Namespace, *models: ModelConfig, decodings: Sequence[Decoding] = ()) -> None:
    """Check that the options apply to the kind of at least one model, and that --rerank has hypotheses to choose from.

    Raises:
      PadirError: an option applies to none of the models, or --rerank to none of the decodings.
    """
    if len({model.causal for model in models}) == 1:
        causal = models[0].causal
        for name in _OF_REFINING if causal else _OF_CAUSAL:
            if getattr(args, name, None) is not None:
                raise foreign_option(f"--{name}", models[0])
    most = max((_hypotheses(decoding) for decoding in decodings), default=None)
    rules = getattr(args, "rerank", None) or []
    if most == 1 and any(how != "own" for how in ([rules] if isinstance(rules, str) else rules)):
        raise PadirError(
            "--rerank chooses among several hypotheses of a sentence, got one: give it more (--top_k, --offsets or"
            " --draws)"
        )
    if most is not None and (getattr(args, "n_best", None) or 0) > most:
        expected = f"at most {most}, the number of hypotheses of a sentence"
        raise PadirError("--n_best", expected, args.n_best, "raise --top_k or --draws")


def _hypotheses(decoding: Decoding) -> int:
    """Number of hypotheses that a sentence has at the end: top-k lengths × offsets × draws, or as many as are kept."""
    search = decoding.lengths
    number = search.top_k * len(set(search.offsets)) * search.draws
    return number if decoding.prune is None else min(number, decoding.prune.keep)


def named_model(model: str) -> tuple[str, str]:
    """Split NAME=DIR; a directory without a name is its own name.

    >>> named_model("teacher=runs/teacher")
    ('teacher', 'runs/teacher')
    """
    name, separator, folder = model.partition("=")
    return (model, model) if not separator or is_address(model) or Path(model).exists() else (name, folder)


def load_model(args: argparse.Namespace, sharding: Sharding | None = None, *, step: int | None = None) -> Translator:
    """Load the model of --model, at a step of its training run, in the precision of --precision."""
    with told(f"loading {args.model}"):
        translator = Translator.load(args.model, step=step, sharding=sharding)
    translator = in_precisions("", translator, given(args, "precision").values())[0][1]
    mode = getattr(args, "mode", None)
    return translator if mode is None else in_mode(translator, mode)


def load_models(
    args: argparse.Namespace, models: Iterable[str], sharding: Sharding | None = None
) -> list[tuple[str, Translator]]:
    """Load every model, as DIR or NAME=DIR, at --step, in every precision of --precision.

    Dual models are loaded in every mode of --mode.

    Raises:
      PadirError: a mode is given, but no model is dual.
    """
    loaded: list[tuple[str, Translator]] = []
    for name, folder in map(named_model, models):
        with told(f"loading {folder}"):
            translator = Translator.load(folder, step=args.step, sharding=sharding)
        loaded += in_precisions(name, translator, args.precision or ())
    return in_modes(loaded, args.mode or ())


def in_precisions(name: str, translator: Translator, precisions: Iterable[str]) -> list[tuple[str, Translator]]:
    """One (name, translator) pair for each precision; without precisions, the unchanged translator alone."""
    made = {
        "int8": lambda: (f"{name}, int8", translator.quantised()),
        "bfloat16": lambda: (f"{name}, bfloat16", translator.in_bfloat16()),
        "float32": lambda: (name, translator),
    }
    return [made[precision]() for precision in precisions] or [(name, translator)]


def in_modes(models: list[tuple[str, Translator]], modes: Sequence[str]) -> list[tuple[str, Translator]]:
    """The models, with each dual one in every mode; without modes, the unchanged models.

    Raises:
      PadirError: there are modes, but no model is dual.
    """
    if modes and not any(translator.card.config.dual for _, translator in models):
        in_mode(models[0][1], modes[0])  # says what is wrong
    made = []
    for name, translator in models:
        if modes and translator.card.config.dual:
            made += [(f"{name}, {mode}", in_mode(translator, mode)) for mode in modes]
        else:
            made.append((name, translator))
    return made


def sharding_of(args: argparse.Namespace) -> Sharding:
    """gin's `Sharding`; call before `decoding_of`, which checks that every binding is used."""
    if not args.gin:
        return Sharding()
    from padir import config

    return config.configured(Sharding)()
