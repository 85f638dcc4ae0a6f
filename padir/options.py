"""The table of decoding options: each has one row, from which the command line, gin, cards and exports take it.

`padir.decoding.options.Decoding` has a field for each row, with its type and its description. Results of evaluation
(`padir.evaluation.rows`) and the `limits` of a readout name those that concern them. Nothing here imports JAX.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

Mode: TypeAlias = Literal["refine", "causal"]
Precision: TypeAlias = Literal["float32", "bfloat16", "int8"]
MODES: tuple[Mode, ...] = typing.get_args(Mode)
PRECISIONS: tuple[Precision, ...] = typing.get_args(Precision)
_CALL = "NAME[:FIELD=VALUE,...]"
FILE_SHAPES = ("FILE", "DIR", "HOW")  # of options whose values may name files or folders


class Option(NamedTuple):
    """A decoding option.

    Attributes:
      kind: type of a value on the command line, where an object is text.
      default: the value that holds if neither a card nor a call gives one.
      help: one line for help pages.
      modes: the modes that read it. An option that only one mode reads chooses that mode.
      shape: a value's form in help pages; None for the option's name. The command line checks values of `FILE_SHAPES`
        as its inputs.
      choices: the allowed values; () for all.
      several: True if tables of systems take several values, each of which makes a row.
      of_call: True if each translation sets it, so that a card cannot.
    """

    name: str
    kind: type
    default: Any
    help: str
    modes: tuple[Mode, ...] = MODES
    shape: str | None = None
    choices: tuple[str, ...] = ()
    several: bool = False
    of_call: bool = False

    @property
    def names_file(self) -> bool:
        """True if a value may be the name of a file or folder, which a stranger's card must not choose."""
        return self.shape in FILE_SHAPES


_REFINE: tuple[Mode, ...] = ("refine",)
_CAUSAL: tuple[Mode, ...] = ("causal",)
_ROWS = (
    Option("mode", str, None, "refine drafts | causal: left to right", choices=MODES, several=True, of_call=True),
    Option("num_steps", int, 4, "maximum number of decoder passes", _REFINE, several=True),
    Option(
        "strategy",
        str,
        None,
        "refinement strategy, such as threshold:tau=0.9, or MODULE:NAME",
        _REFINE,
        _CALL,
        several=True,
    ),
    Option("canvas", str, None, "corruption that makes drafts, such as mask, or MODULE:NAME", _REFINE, _CALL),
    Option("num_lengths", int, 1, "most likely lengths to try", _REFINE, several=True),
    Option("length_window", bool, False, "try the most likely length and its neighbours", _REFINE),
    Option("length_min_p", float, 0.0, "skip lengths below this share of the likeliest one's", _REFINE, several=True),
    Option("prefix_beam", int, 1, "CTC: most likely sentences to read out of a canvas", _REFINE, several=True),
    Option("num_drafts", int, 1, "random drafts of each length, or samples; the best is kept"),
    Option(
        "rerank",
        str,
        "own",
        "choose among hypotheses by own | causal | mbr | mbr_bleu | an autoregressive model | MODULE:NAME",
        shape="HOW",
        several=True,
    ),
    Option("length_normalization", float, 1.0, "rerank: divide the log-probability by tokens to this power", _REFINE),
    Option("drop_repeats", bool, None, "remove tokens that equal their left neighbour", _REFINE),
    Option("blank_penalty", float, 0.0, "lowers the blank's logit: longer translations", _REFINE, several=True),
    Option("beam", int, 5, "rows of beam search; 1: greedy search", _CAUSAL, several=True),
    Option("length_penalty", float, 0.6, "exponent of the beam's length penalty; 0: none", _CAUSAL),
    Option("temperature", float, 0.0, "temperature of sampling; 0: search", _CAUSAL),
    Option("n_best", int, 0, "number of candidates to list, best first", of_call=True),
    Option("shortlist", str, None, "file of `padir shortlist`: ids to write | none", shape="FILE", several=True),
    Option(
        "fusion",
        str,
        None,
        "weigh in the model's table of bigrams, in each pass and in greedy search: bigrams | none",
        shape=_CALL,
        several=True,
    ),
    Option("batch_size", int, 32, "sentences decoded at once", of_call=True),
    Option("seed", int, 0, "seed of random drafts, or of sampling", of_call=True),
    Option(
        "precision",
        str,
        None,
        "float32 | bfloat16 (faster on a GPU or TPU) | int8 (faster on a CPU)",
        choices=PRECISIONS,
        several=True,
    ),
    Option(
        "placeholders",
        str,
        (),
        "spans to keep as they are: tags | urls | numbers | a pattern; repeatable",
        shape="KIND",
    ),
)
OPTIONS = {option.name: option for option in _ROWS}
OF_OBJECTS = ("strategy", "canvas", "rerank")
"""The options whose values may be objects of one's own, which text names as "module:Name"."""
LENGTHS = ("num_lengths", "length_window", "length_min_p")
"""The options that say which lengths are tried; with their defaults, it is one."""
SEVERAL = (*LENGTHS, "prefix_beam", "num_drafts")
"""The options that give a refined sentence several hypotheses; with their defaults, it has one."""
COUNTS = ("num_lengths", "prefix_beam", "num_drafts")
"""Those of `SEVERAL` whose product is the number of hypotheses."""


def choosing(names: Iterable[str]) -> dict[Mode, str]:
    """The modes that options choose, because only this mode reads them, with the first option that chooses each.

    >>> choosing(["seed", "beam", "temperature"])
    {'causal': 'beam'}
    """
    found: dict[Mode, str] = {}
    for name in names:
        if len(modes := OPTIONS[name].modes) == 1:
            found.setdefault(modes[0], name)
    return found


def foreign(mode: str) -> list[str]:
    """The options that a mode does not read.

    >>> foreign("refine")
    ['beam', 'length_penalty', 'temperature']
    """
    return [name for name, option in OPTIONS.items() if mode not in option.modes]
