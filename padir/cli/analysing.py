"""`padir ising` and `padir analyse`: experiments on the paper's theory, and analyses of models."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from padir.analysis import run as analysis
from padir.cli.arguments import decoding_of
from padir.cli.console import tell
from padir.cli.corpora import test_set_of
from padir.cli.options import common_options, decoding_options, given, setting, test_set_options
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.ising import run as ising
from padir.pretrained import DEFAULT
from padir.reporting import tables

_SIZES = {
    "num_spins": "spins of the model: fig1, fig2 (6), fig3 (10), schedules (64), canvas (6); theorems: most spins (7)",
    "samples": "fig1, fig2: sizes of the data sets",
    "seeds": "fig1, fig2: data sets of each size (100)",
    "clique": "fig3: coupled spins (6); schedules: spins of a phrase (4)",
    "couplings": "fig3: values of J",
    "fields": "fig3: values of h",
    "chains": "fig3: simulated chains (400)",
    "budget": "fig3: maximum number of steps of a chain (10,000)",
    "models": "theorems: random models of each statement (40)",
}
_READ_BY = {  # the subjects of `padir analyse` that read an option; the others refuse it
    "num_steps": ("attention", "dependency", "refinement"),
    "strategy": ("attention", "dependency", "refinement"),
    "examples": ("attention", "dependency", "refinement"),
    "values": ("dependency",),
    "canvases": ("dependency",),
    "given": ("dependency",),
    "strategies": ("refinement", "oracle"),
    "passes": ("refinement", "schedule"),
    "outputs": ("oracle",),
    "model_outputs": ("oracle",),
    "ising": ("oracle",),
    **dict.fromkeys(("adjacent", "offsets", "draws", "keep", "rerank", "brevity", "length_weight"), ("refinement",)),
}


def add_ising(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Figures 1 and 2: error of k-pseudolikelihood against samples, from a flat and a two-mode truth. Figure 3:"
        " steps of k-Gibbs and independent parallel sampling between two modes. schedules: the cost of parallel passes,"
        " by their sizes. canvas: decoders that start from masks and from random tokens. theorems: every statement of"
        " the theory on random small models, with the smallest margin."
        " The default sizes take minutes on 2 cores."
    )
    parser.add_argument("subject", choices=[*ising.SUBJECTS])
    parser.add_argument("--output", metavar="NAME", help="write NAME.csv, .json and, of figures, .png and .svg")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random draws (0)")
    for name, about in _SIZES.items():
        many: dict[str, Any] = {"nargs": "+"} if name in ("samples", "couplings", "fields") else {}
        kind = float if name in ("couplings", "fields") else int
        parser.add_argument(f"--{name}", type=kind, help=about, **many)
    parser.add_argument("--only", nargs="+", metavar="STATEMENT", help="theorems: check only these")
    common_options(parser)
    parser.set_defaults(run=_ising)


def _ising(args: argparse.Namespace) -> dict[str, Any]:
    sizes = given(args, *_SIZES, "only")
    found = ising.run(args.subject, seed=args.seed, output=args.output, tell=tell, **sizes)
    _show(args.subject, ising, found)
    ising.verify(found)
    return found


def add_analyse(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "attention: the paper's Tables 4 and 5 and attention maps. dependency: measures that find positions which"
        " depend on each other (known on toy_de_en), and a test whether the model's conditionals are consistent."
        " refinement: changes from step to step, calibration, and every strategy. oracle: every strategy with the"
        " true conditionals of toy_de_en and of Ising models in place of a model's. schedule: how many tokens each pass"
        " should write. docs/analysis.md explains them."
    )
    parser.add_argument("subject", choices=[*analysis.SUBJECTS])
    parser.add_argument("--model", default=DEFAULT, metavar="DIR", help=f"a model that refines drafts ({DEFAULT})")
    parser.add_argument("--output", metavar="DIR", help="folder for results, pictures and a page")
    setting(parser, analysis.AnalysisOptions, "sentences", "number of sentences, from the first on")
    about = "attention, dependency: the pass to look at (1); refinement: steps (4)"
    parser.add_argument("--num_steps", type=int, help=about)
    strategies = {"nargs": "+", "metavar": "NAME[:FIELD=VALUE,...]", "type": str}
    for name, about, settings in (
        ("examples", "number of sentences that are shown", {}),
        ("values", "tokens tried at a position", {}),
        ("canvases", "number of first canvases to average over", {}),
        ("given", "what is held fixed", {"choices": ["source", "draft"]}),
        ("strategies", "strategies; all if none is given", strategies),
        ("passes", "numbers of passes", {"type": int, "nargs": "+"}),
        ("outputs", "outputs of each sentence", {}),
        ("model_outputs", "the same for the model itself; 0: leave it out", {}),
        ("ising", "measure on Ising models, too", {}),
    ):
        setting(parser, analysis.AnalysisOptions, name, f"{', '.join(_READ_BY[name])}: {about}", **settings)
    test_set_options(parser, "train", "validation", "test")
    decoding_options(parser)
    common_options(parser)
    parser.set_defaults(run=_analyse)


def _analyse(args: argparse.Namespace) -> dict[str, Any]:
    for name, subjects in _READ_BY.items():
        if getattr(args, name) is not None and args.subject not in subjects:
            raise PadirError(f"--{name} is an option of {', '.join(subjects)} alone: leave it out of {args.subject}")
    names = (field.name for field in dataclasses.fields(analysis.AnalysisOptions))
    options = analysis.AnalysisOptions(**given(args, *names))
    if args.num_steps is None and args.subject != "refinement":
        args.num_steps = 1
    decoding = decoding_of(args)
    translator, test_set = Translator.load(args.model), test_set_of(args)
    found = analysis.run(
        args.subject, translator, test_set, decoding, options, name=str(args.model), output=args.output, tell=tell
    )
    _show(args.subject, analysis, found)
    return found


def _show(subject: str, study: Any, found: dict[str, Any]) -> None:
    """Print the rows as a table, with the columns and cells of the study's module."""
    columns = [name.replace("_", " ") for name in study.COLUMNS[subject]]
    tables.show(subject, columns, [study.cells(subject, row) for row in found["rows"]])
