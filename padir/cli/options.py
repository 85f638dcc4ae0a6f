"""Options that several commands share; defaults and types come from the dataclasses and functions that take the values.

An option that is not given is None, and is then left out of the call (`given`), so that gin's value or the default of
the library holds.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import Any

from padir.decoding.lengths import LengthSearch
from padir.decoding.modes import MODES
from padir.decoding.options import Decoding
from padir.decoding.rerank import OwnScore
from padir.decoding.search import Beam
from padir.pretrained import DEFAULT
from padir.text.tokenizer import Tokenizer

Options = argparse._ActionsContainer  # a parser or a group of options


def setting(options: Options, owner: Callable[..., Any], name: str, about: str, **settings: Any) -> None:
    """Add an option for a field of a dataclass, or for a parameter of a function.

    The option has the type of the default, and its help ends with the default. A truth value has the options --NAME and
    --no-NAME.

    Args:
      owner: the dataclass or function.
      name: the field or parameter; the option is called --NAME unless `settings` have another `option`.
      about: help text without the default.
      settings: further arguments of `add_argument`.

    >>> parser = argparse.ArgumentParser()
    >>> setting(parser, Decoding, "num_steps", "decoder passes")
    >>> parser.parse_args(["--num_steps", "2"]).num_steps
    2
    """
    default = default_of(owner, name)
    kinds: dict[str, Any] = {"type": type(default)} if isinstance(default, int | float | str) else {}
    if isinstance(default, bool):  # which is an int, too
        kinds = {"action": argparse.BooleanOptionalAction}
    option = settings.pop("option", name)
    options.add_argument(f"--{option}", **(kinds | settings), help=f"{about}{_shown(default)}".replace("%", "%%"))


def default_of(owner: Callable[..., Any], name: str) -> Any:
    """Default of a dataclass's field or of a function's parameter."""
    return inspect.signature(owner).parameters[name].default


def _shown(default: Any) -> str:
    """A default in parentheses, or "" for None."""
    if default is None:
        return ""
    if isinstance(default, bool):
        return f" ({'yes' if default else 'no'})"
    if isinstance(default, tuple):
        return f" ({' '.join(map(str, default))})"
    return (
        f" ({default:,})"
        if isinstance(default, int)
        else f" ({default:g})"
        if isinstance(default, float)
        else f" ({default})"
    )


def given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Values of the options that are on the command line, lists as tuples; options that are not given are left out."""
    values = {name: getattr(args, name) for name in names}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if v is not None}


def common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every command has: gin files, bindings and --json."""
    group = parser.add_argument_group("configuration")
    group.add_argument("--gin_file", action="append", default=[], metavar="FILE", help="read a gin file; repeatable")
    group.add_argument(
        "--gin_search_paths",
        action="append",
        default=[],
        metavar="DIR",
        help="folder to look for gin files in; repeatable",
    )
    group.add_argument(
        "--allow_imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="let gin files import this module of yours, which runs it and them as programs; repeatable",
    )
    about = "bind one parameter, as in --gin.train.num_steps=1000; repeatable"  # `main` takes these words out
    group.add_argument("--gin.NAME=VALUE", dest="_", action="store_true", help=about)
    group.add_argument("--json", metavar="FILE", help="write the command's results as JSON")


def processes_options(parser: argparse.ArgumentParser) -> None:
    """Add the options by which several processes of the command find each other."""
    hosts = parser.add_argument_group("several processes, each running this command (docs/devices.md)")
    hosts.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="address of the first process; auto: taken from TPU, SLURM or MPI (default: a single process)",
    )
    hosts.add_argument("--num_processes", type=int, metavar="N", help="number of processes")
    hosts.add_argument("--process_id", type=int, metavar="I", help="number of this process, from 0")


def corpus_options(parser: argparse.ArgumentParser, *splits: str) -> None:
    """Add the options that name parallel text, with files for these splits."""
    group = parser.add_argument_group("parallel text: a known task, or files (plain or .gz; one .tsv, or two files)")
    group.add_argument("--task", help="a known corpus, such as toy_de_en or wmt14_de_en")
    group.add_argument("--data_dir", metavar="DIR", help="folder of the task's files")
    group.add_argument("--languages", metavar="SRC-TGT", help="languages of the files, such as de-en")
    for split in splits:
        group.add_argument(f"--{split}", nargs="+", metavar="FILE", help=f"{split} files")


def test_set_options(parser: argparse.ArgumentParser, *splits: str) -> None:
    """Add the options that name a test set: a prepared folder, or parallel text with files for these splits."""
    parser.add_argument("--data", metavar="DIR", help="a prepared folder to take the split from")
    parser.add_argument("--split", default="test", help="split of --data or --task (test)")
    corpus_options(parser, *splits)


def model_option(parser: argparse.ArgumentParser) -> None:
    """Add --model with the default model that comes with padir."""
    about = f"a model directory from `padir train`, or the name of a model that comes with padir ({DEFAULT})"
    parser.add_argument("--model", default=DEFAULT, metavar="DIR", help=about)


def step_option(parser: argparse.ArgumentParser) -> None:
    """Add --step, which chooses a checkpoint of a training run."""
    about = "take a training run's checkpoint of this step (while the run has not finished: the newest)"
    parser.add_argument("--step", type=int, metavar="N", help=about)


def sentinels_option(parser: argparse.ArgumentParser) -> None:
    """Add --num_sentinels, the number of special ids after the pieces of the vocabulary."""
    setting(parser, Tokenizer.load, "num_sentinels", "number of sentinel ids on top of the pieces")


def dtype_option(parser: argparse.ArgumentParser) -> None:
    """Add --dtype, the precision in which weights are stored."""
    about = "precision of the stored weights (float32)"
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help=about)


def mode_option(parser: argparse.ArgumentParser, **several: Any) -> None:
    """Add --mode, the way in which a dual model writes."""
    about = (
        "how a dual model writes: refine drafts | causal, from left to right | verify, from left to right with its own"
        " draft (refine); other models have one way"
    )
    parser.add_argument("--mode", choices=MODES, help=about, **several)


def precision_option(parser: argparse.ArgumentParser, **several: Any) -> None:
    """Add --precision, the precision in which models compute."""
    parser.add_argument(
        "--precision",
        **several,
        choices=["float32", "bfloat16", "int8"],
        help="precision of weights and matrix products: int8 is faster on a CPU, bfloat16 on a GPU or TPU; translations"
        " may differ slightly (float32)",
    )


def steps_options(options: Options) -> None:
    """Add --num_steps and --top_k with one value each."""
    setting(options, Decoding, "num_steps", "decoder passes; default: the model's card, else")
    setting(options, LengthSearch, "top_k", "number of most likely lengths to try; default: the model's card, else")


def several_steps_options(options: Options) -> None:
    """Add --num_steps and --top_k with several values, each of which makes a row."""
    setting(options, Decoding, "num_steps", "decoder passes; several values make several rows", nargs="+")
    setting(
        options,
        LengthSearch,
        "top_k",
        "number of most likely lengths to try; several values make several rows",
        nargs="+",
    )


def decoding_options(parser: argparse.ArgumentParser, several: bool = False, batch_size: bool = True) -> None:
    """Add the options that set fields of `Decoding`.

    Args:
      several: let some of the options take several values.
      batch_size: add --batch_size, too.
    """
    many: dict[str, Any] = {"nargs": "+"} if several else {}
    group = parser.add_argument_group(
        "decoding (by default as gin's Decoding and LengthSearch say, else the model's card, else as shown)"
    )
    group.add_argument(
        "--strategy",
        **many,
        metavar="NAME[:FIELD=VALUE,...]",
        help="refinement strategy, such as threshold:tau=0.9; default: the model's own",
    )
    setting(group, LengthSearch, "adjacent", "the lengths of --top_k are neighbours of the most likely one")
    offsets = "numbers added to each predicted length"
    setting(group, LengthSearch, "offsets", offsets, type=int, nargs="+", metavar="OFFSET")
    setting(group, LengthSearch, "draws", "random drafts of each length, of which the best is kept")
    group.add_argument(
        "--keep", type=int, help="number of hypotheses of a sentence that go on after the first step (all)"
    )
    group.add_argument(
        "--rerank",
        **many,
        metavar="HOW",
        help="choose among hypotheses by: own (the model's score) | causal (a dual model's score from left to right)"
        " | pseudo (each token given all others) | mbr | mbr_bleu | an autoregressive MODEL_DIR (own)",
    )
    setting(group, OwnScore, "brevity", "not for mbr and mbr_bleu: divide the log-probability by tokens^BREVITY")
    setting(group, OwnScore, "length_weight", "own: weight of the length's log-probability")
    beam = "size of an autoregressive model's beam"
    setting(group, Beam, "size", beam, option="beam", metavar="N", **many)
    penalty = "exponent of the beam's length penalty; 0: none"
    setting(group, Beam, "alpha", penalty, option="length_penalty", metavar="A")
    group.add_argument(
        "--sample",
        type=float,
        metavar="TEMPERATURE",
        help="sample an autoregressive model's tokens at this temperature, without a beam; equal lines get equal"
        " samples, another --seed gives others",
    )
    group.add_argument(
        "--shortlist",
        **many,
        metavar="FILE",
        help="write only pieces that a file of `padir shortlist` lists for a batch's sources (none: all pieces)",
    )
    group.add_argument(
        "--draft",
        **many,
        metavar="DRAFT",
        help="speculative decoding: propose tokens that an autoregressive model verifies, several in one pass, for the"
        " words of its greedy search in fewer passes: a padir MODEL_DIR | jacobi (the model's own guesses) | copy (the"
        " source), with fields as in jacobi:block=4 (none)",
    )
    if batch_size:
        setting(group, Decoding, "batch_size", "sentences decoded at once")
    setting(
        group,
        Decoding,
        "seed",
        "seed of random drafts, or of sampling; with one seed, equal lines get equal translations",
    )
