"""What the options of a command line mean: corpora, models, ways of decoding."""

from __future__ import annotations

import argparse
import contextlib
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from padir.errors import PadirError


def files_of(args: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """The files that the arguments name, by split."""
    named = {split: getattr(args, split) for split in ("train", "validation", "test")}
    return {split: tuple(paths) for split, paths in named.items() if paths}


def source_of(args: argparse.Namespace) -> Any:
    """The corpus that the arguments name, or the one that gin binds."""
    from padir.data.sources import ParallelText
    from padir.interop.seqio_tasks import get_source

    files = files_of(args)
    if args.task and files:
        raise PadirError("give either --task or files, not both")
    if args.task:
        return get_source(args.task, args.data_dir)
    if not files:
        if args.gin:
            from padir import config

            with contextlib.suppress(TypeError):  # gin's word for arguments that nothing binds
                return config.configured(ParallelText)()
        raise PadirError(
            "no corpus: give --task NAME, or --languages SRC-TGT with --train, --validation or --test files"
            + (", or --data DIR, a prepared folder" if hasattr(args, "data") else "")
        )
    source_language, separator, target_language = (args.languages or "").partition("-")
    if not separator or not source_language or not target_language:
        raise PadirError(f"files need --languages SRC-TGT, such as de-en, got {args.languages!r}")
    for split, paths in files.items():
        if len(paths) > 2:
            raise PadirError(f"--{split} takes one .tsv file or two text files, got {len(paths)}")
    single: dict[str, Any] = {split: paths[0] if len(paths) == 1 else paths for split, paths in files.items()}
    return ParallelText(f"{source_language}_{target_language}", source_language, target_language, **single)


def folders_of(args: argparse.Namespace) -> tuple[str, ...]:
    """The prepared folders to train on, of the arguments or of gin."""
    from padir import config

    folders = args.data or config.macro("DATASET")
    if not folders:
        raise PadirError("no data: give --data DIR, or --gin.DATASET=DIR")
    return (folders,) if isinstance(folders, str) else tuple(folders)


def test_set_of(args: argparse.Namespace) -> Any:
    """The test set that the arguments name."""
    import dataclasses

    from padir.evaluation import TestSet

    files = files_of(args)
    if args.data and (args.task or files):
        raise PadirError("give either --data, or --task or files, not both")
    if args.data:
        return TestSet.of_prepared(args.data, args.split)
    test_set = TestSet.of_source(source_of(args), args.split)
    if files:  # which have no name but theirs
        test_set = dataclasses.replace(test_set, task=Path(files[args.split][0]).name.split(".")[0])
    return test_set


def decoding_of(args: argparse.Namespace, **chosen: Any) -> Any:
    """gin's `Decoding`, with what the command line says of it; `chosen` is one value where it may say several."""
    import dataclasses

    from padir.decoding.lengths import LengthSearch
    from padir.decoding.options import Decoding, Prune
    from padir.decoding.shortlist import Shortlist
    from padir.refinement import strategies

    if args.gin:
        from padir import config

        base = config.configured(Decoding)()
        if args.command != "train":  # which uses more than that
            config.check_overrides()
    else:
        base = Decoding()
    given = {name: value for name, value in (vars(args) | chosen).items() if value is not None}
    lengths = {name: given[name] for name in ("top_k", "draws") if name in given}
    if "offsets" in given:
        lengths["offsets"] = tuple(given["offsets"])
    changes = {name: given[name] for name in ("num_steps", "batch_size", "seed") if name in given}
    if "strategy" in given:
        changes["strategy"] = strategies.parse_strategy(given["strategy"])
    if "keep" in given:
        with _naming("keep"):
            changes["prune"] = Prune(given["keep"])
    if "shortlist" in given:
        changes["shortlist"] = None if given["shortlist"] == "none" else Shortlist.load(given["shortlist"])
    if {"rerank", "brevity", "length_weight"} & set(given):
        rule = (given.get("rerank"), given.get("brevity"), given.get("length_weight"))
        with _naming("brevity", "length_weight"):
            changes["rerank"] = _rerank(*rule, base.rerank)
    if {"beam", "length_penalty", "sample"} & set(given):
        search = (given.get("beam"), given.get("length_penalty"), given.get("sample"))
        with _naming(size="beam", alpha="length_penalty", temperature="sample"):
            changes["search"] = _search(*search, base.search)
    base_lengths: LengthSearch = base.lengths
    with _naming("top_k", "draws", "num_steps", "batch_size", "seed"):
        return dataclasses.replace(base, lengths=dataclasses.replace(base_lengths, **lengths), **changes)


def decodings_of(args: argparse.Namespace, **chosen: Any) -> list[Any]:
    """Every combination of what options with several values say."""
    import itertools

    several = ("strategy", "top_k", "rerank", "num_steps", "beam", "shortlist")
    axes = {name: getattr(args, name) or [None] for name in several}
    combinations = itertools.product(*axes.values())
    return [decoding_of(args, **dict(zip(axes, values, strict=True)), **chosen) for values in combinations]


@contextlib.contextmanager
def _naming(*alike: str, **options: str) -> Iterator[None]:
    """Lets what is refused of a field be told of the option that set it, which may have another name."""
    try:
        yield
    except PadirError as error:
        message = str(error)
        for field, option in (dict(zip(alike, alike, strict=True)) | options).items():
            message = re.sub(rf"(?<![\w.-])(?:a beam's )?{field}\b", f"--{option}", message, count=1)
        raise PadirError(message) from None


def _search(beam: int | None, length_penalty: float | None, temperature: float | None, base: Any) -> Any:
    """The search that the arguments ask for, with gin's word on what they leave open."""
    import dataclasses

    from padir.decoding.search import Beam, Sampling

    if temperature is not None:
        if beam is not None or length_penalty is not None:
            raise PadirError("give either --sample or --beam with its --length_penalty, not both")
        base = base if isinstance(base, Sampling) else Sampling()
        return dataclasses.replace(base, temperature=temperature)
    changes = {"size": beam, "alpha": length_penalty}
    base = base if isinstance(base, Beam) else Beam()
    return dataclasses.replace(base, **{name: value for name, value in changes.items() if value is not None})


def _rerank(how: str | None, brevity: float | None, length_weight: float | None, base: Any) -> Any:
    """The rule that the arguments ask for, with gin's word on what they leave open."""
    import dataclasses

    from padir.decoding.rerank import MinimumBayesRisk, OwnScore
    from padir.decoding.translator import rescorer

    settings = {} if brevity is None else {"brevity": brevity}
    if how == "own" or (how is None and isinstance(base, OwnScore)):
        settings |= {} if length_weight is None else {"length_weight": length_weight}
        return dataclasses.replace(base if isinstance(base, OwnScore) else OwnScore(), **settings)
    if length_weight is not None:
        raise PadirError(f"--length_weight belongs to --rerank own, got {how or base}")
    if how is None:
        raise PadirError(f"--brevity belongs to --rerank own or MODEL_DIR, got {base}: name one of them")
    if how in ("mbr", "mbr_bleu"):
        if settings:
            raise PadirError("--brevity belongs to --rerank own or MODEL_DIR: minimum Bayes risk knows no length")
        return MinimumBayesRisk("bleu" if how == "mbr_bleu" else "chrf")
    return rescorer(how, **settings)


def named_model(model: str) -> tuple[str, str]:
    """NAME=DIR, or DIR, which then is the name."""
    name, separator, folder = model.partition("=")
    return (model, model) if not separator or Path(model).exists() else (name, folder)


def translators_of(
    named: Any, precisions: Sequence[str | None] | None, load: Any = None, sharding: Any = None
) -> list[Any]:
    """(name, translator) of every model in every precision."""
    from padir.decoding.translator import Translator

    translators = []
    for name, where in named:
        translator = (load or functools.partial(Translator.load, sharding=sharding))(where)
        for precision in precisions or [None]:
            if precision == "int8":
                translators.append((f"{name}, int8", translator.quantised()))
            elif precision == "bfloat16":
                translators.append((f"{name}, bfloat16", translator.in_bfloat16()))
            else:
                translators.append((name, translator))
    return translators


def check_kind(args: argparse.Namespace, *models: Any, decodings: Sequence[Any] = ()) -> None:
    """Refuses options that mean nothing to any model, whatever their values, or to the decodings.

    Options of drafts do so where all models are autoregressive, and the other way round; --rerank where no decoding has
    hypotheses to choose from.
    """
    from padir.decoding.options import foreign_option

    of_refining = ("num_steps", "strategy", "top_k", "offsets", "draws", "keep", "rerank", "brevity", "length_weight")
    of_causal = ("beam", "length_penalty", "sample")
    if len({model.causal for model in models}) == 1:
        for name in of_refining if models[0].causal else of_causal:
            if getattr(args, name, None) is not None:
                raise foreign_option(f"--{name}", models[0].causal)
    search = [decoding.lengths for decoding in decodings]
    alone = all(each.top_k * len(set(each.offsets)) * each.draws == 1 for each in search)
    if search and alone and any(how != "own" for how in _listed(getattr(args, "rerank", None))):
        raise PadirError(
            "--rerank chooses among several hypotheses of a sentence, got one: give it more (--top_k, --offsets or"
            " --draws)"
        )


def _listed(value: Any) -> list[Any]:
    """An option's values, of which some commands take several."""
    return [] if value is None else value if isinstance(value, list) else [value]


def sharding_of(args: argparse.Namespace) -> Any:
    """gin's `Sharding`; to be asked for before `decoding_of`, which checks that every binding is of use."""
    from padir.distributed.sharding import Sharding

    if not args.gin:
        return Sharding()
    from padir import config

    return config.configured(Sharding)()
