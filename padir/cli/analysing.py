"""`padir ising | analyse`: theory, and a look into models."""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any

from padir.cli.arguments import (
    decoding_of,
    test_set_of,
)
from padir.cli.options import common_options, corpus_options, decoding_options
from padir.pretrained import DEFAULT


def add(commands: Any) -> None:
    """Adds these commands to the parser's."""
    _add_ising(commands)
    _add_analyse(commands)


def _add_ising(commands: Any) -> None:
    ising = commands.add_parser(
        "ising",
        parents=[common_options()],
        help="the paper's Ising experiments and its theorems, checked exactly",
        description="Figures 1 and 2: error of k-pseudolikelihood against samples, from a flat and a two-mode truth."
        " Figure 3: steps of k-Gibbs and independent parallel between two modes. theorems: every statement of sections"
        " 2.2 to 2.4 on random small models, with the smallest margin. Sizes: the defaults take minutes on 2 cores.",
    )
    ising.add_argument("subject", choices=["fig1", "fig2", "fig3", "theorems"])
    ising.add_argument("--output", metavar="NAME", help="write NAME.csv, .json and, of figures, .png and .svg")
    ising.add_argument("--seed", type=int, default=0, help="of all that is drawn (0)")
    ising.add_argument("--num_spins", type=int, help="fig1, fig2: of the model (6); fig3 (10); theorems: at most (7)")
    ising.add_argument("--samples", type=int, nargs="+", help="fig1, fig2: data set sizes")
    ising.add_argument("--seeds", type=int, help="fig1, fig2: data sets of each size (100)")
    ising.add_argument("--clique", type=int, help="fig3: coupled spins (6)")
    ising.add_argument("--couplings", type=float, nargs="+", help="fig3: values of J")
    ising.add_argument("--fields", type=float, nargs="+", help="fig3: values of h")
    ising.add_argument("--chains", type=int, help="fig3: that are simulated (400)")
    ising.add_argument("--budget", type=int, help="fig3: most steps of a chain (10,000)")
    ising.add_argument("--models", type=int, help="theorems: random models of each statement (40)")
    ising.add_argument("--only", nargs="+", metavar="STATEMENT", help="theorems: check these")
    ising.set_defaults(run=_ising)


def _ising(args: argparse.Namespace) -> dict[str, Any]:
    from padir.ising import run as commands

    names = ("num_spins", "samples", "seeds", "clique", "couplings", "fields", "chains", "budget", "models", "only")
    sizes = {name: getattr(args, name) for name in names}
    sizes |= {name: tuple(value) for name, value in sizes.items() if isinstance(value, list)}
    figures = commands.run(
        args.subject, seed=args.seed, output=args.output, tell=functools.partial(print, file=sys.stderr), **sizes
    )
    _show(args.subject, commands, figures)
    commands.verify(figures)
    return figures


def _add_analyse(commands: Any) -> None:
    analyse = commands.add_parser(
        "analyse",
        parents=[decoding_options(), corpus_options(), common_options()],
        help="look into a model: attention, dependency between positions, refinement",
        description="attention: the paper's Tables 4 and 5 and attention maps. dependency: which measure finds the"
        " positions that depend on each other (known on toy_de_en), and whether the model's conditionals fit together."
        " refinement: what changes from step to step, calibration, and every strategy. docs/analysis.md reads them.",
    )
    analyse.add_argument("subject", choices=["attention", "dependency", "refinement"])
    analyse.add_argument("--model", default=DEFAULT, metavar="DIR", help=f"of a model that refines drafts ({DEFAULT})")
    analyse.add_argument("--data", metavar="DIR", help="a prepared folder to take the split from")
    analyse.add_argument("--split", default="test", help="of --data or --task (test)")
    analyse.add_argument("--output", metavar="DIR", help="write figures, pictures and a page there")
    analyse.add_argument("--sentences", type=int, help="how many, from the first on (200)")
    analyse.add_argument("--examples", type=int, help="sentences that are shown (3)")
    analyse.add_argument(
        "--num_steps", type=int, help="attention, dependency: the pass that is looked at (1); refinement: steps (4)"
    )
    analyse.add_argument("--values", type=int, help="dependency: tokens tried at a position (4)")
    analyse.add_argument("--canvases", type=int, help="dependency: starts that the model's is the mean of (1)")
    analyse.add_argument("--given", choices=["source", "draft"], help="dependency: what is held (source)")
    analyse.add_argument("--strategies", nargs="+", metavar="NAME[:FIELD=VALUE,...]", help="refinement: these (all)")
    analyse.add_argument("--passes", type=int, nargs="+", help="refinement: steps that each gets (1 2 4 10)")
    analyse.set_defaults(run=_analyse)


def _analyse(args: argparse.Namespace) -> dict[str, Any]:
    import dataclasses

    from padir.analysis import run as commands
    from padir.decoding.translator import Translator

    names = [field.name for field in dataclasses.fields(commands.Options)]
    given: dict[str, Any] = {name: getattr(args, name) for name in names}
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if v is not None}
    if args.num_steps is None and args.subject != "refinement":
        args.num_steps = 1
    decoding = decoding_of(args)
    figures = commands.run(
        args.subject,
        Translator.load(args.model),
        test_set_of(args),
        decoding,
        commands.Options(**given),
        name=str(args.model),
        output=args.output,
        tell=functools.partial(print, file=sys.stderr),
    )
    _show(args.subject, commands, figures)
    return figures


def _show(subject: str, commands: Any, figures: dict[str, Any]) -> None:
    """The rows as a table, with the columns and the cells that the subject's package gives them."""
    from padir.reporting import tables

    columns = [name.replace("_", " ") for name in commands.COLUMNS[subject]]
    tables.show(subject, columns, [commands.cells(subject, row) for row in figures["rows"]])
