"""Options of the commands that study: `padir ising`, `analyse` and `audit`."""

from __future__ import annotations

from padir.cli.options.shared import MODEL, decoding_options, settings_option, test_set_options
from padir.cli.parser import Parser

ISING = ("fig1", "fig2", "fig3", "schedules", "theorems")
ANALYSES = ("attention", "refinement")


def ising_options(parser: Parser) -> None:
    """Run the paper's Ising experiments and check its theorems exactly.

    Figures 1 and 2: error of k-pseudolikelihood against samples, from a flat and a two-mode truth. Figure 3: steps of
    k-Gibbs and independent parallel sampling between two modes. schedules: the cost of parallel passes, by their sizes.
    theorems: every statement of the theory on random small models, with the smallest margin. The default sizes take
    minutes on 2 cores.

    padir ising fig1 --set samples=1000 --output results/fig1
    """
    parser.add_argument("subject", choices=ISING)
    parser.add_argument("--output", metavar="NAME", help="write NAME.json and, for figures, NAME.png")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random draws (0)")
    sizes = {
        "num_spins": "spins of the model: fig1, fig2 (6), fig3 (10), schedules (64); theorems: at most (7)",
        "samples": "fig1, fig2: sizes of the data sets",
        "seeds": "fig1, fig2: data sets of each size (100)",
        "clique": "fig3: coupled spins (6); schedules: spins of a phrase (4)",
        "couplings": "fig3: values of J",
        "fields": "fig3: values of h",
        "chains": "fig3: simulated chains (400)",
        "budget": "fig3: maximum number of steps of a chain (10,000)",
        "models": "theorems: random models of each statement (40)",
        "only": "theorems: check only these statements",
    }
    settings_option(parser, {"studies.ising.subjects:run": sizes})


def audit_options(parser: Parser) -> None:
    """Check samplers, of your own and of padir, with exact probabilities in place of a model.

    A function step(tokens, logits, uniforms) in NumPy is tried with every value that its uniform numbers can have. The
    command says whether it leaves masks, forgets fixed positions, depends on its batch, or ignores its temperature. It
    compares the law of the outputs with known distributions, beside strategies, which are asked no questions.
    docs/samplers.md explains the function and the table.

    padir audit my_module:step --set strategies=remdm:sigma=0.0
    """
    about = "your own functions and strategies, in modules on PYTHONPATH"
    parser.add_argument("own", nargs="*", metavar="MODULE:NAME", help=about)
    parser.add_argument("--output", metavar="DIR", help="folder for results, a picture and a page")
    parser.add_argument("--seed", type=int, default=0, help="seed of the targets (0)")
    extent = {
        "targets": "number of targets of each family",
        "strategies": "strategies of padir beside your own; all if none is given",
        "samples": "samples of each target, for functions that draw by a seed",
    }
    settings_option(parser, {"studies.analysis.audit:AuditOptions": extent})


def analyse_options(parser: Parser) -> None:
    """Analyse a model: attention, refinement.

    attention: the paper's Tables 4 and 5 and attention maps. refinement: changes from step to step, calibration, and
    every strategy. docs/theory.md explains them.

    padir analyse attention --task toy_de_en --output results/attention
    """
    parser.add_argument("subject", choices=ANALYSES)
    parser.add_argument("--model", metavar="DIR", help=f"a model that refines drafts ({MODEL})")
    parser.add_argument("--output", metavar="DIR", help="folder for results, pictures and a page")
    extent = {
        "sentences": "number of sentences, from the first on",
        "examples": "number of sentences that are shown",
        "strategies": "refinement: strategies; all if none is given",
        "passes": "refinement: numbers of passes",
    }
    settings_option(parser, {"studies.analysis.analyses:AnalysisOptions": extent})
    test_set_options(parser, "train", "validation", "test")
    # No subject reads the other options: each looks at one draft of a sentence, or chooses its own.
    without = ("mode", "num_lengths", "beam", "length_penalty", "temperature", "n_best", "shortlist", "precision")
    of_ctc = ("prefix_beam", "blank_penalty")  # whose models cannot be analysed
    defaults = "gin's Decoding, else as shown; --num_steps 1, but for refinement"
    decoding_options(parser, without=without + of_ctc, defaults=defaults)
