"""Options of the commands that measure, exchange and study models."""

from __future__ import annotations

from padir.cli.options import (
    CTRANSLATE2,
    MODEL,
    SENTINELS,
    common_options,
    decoding_options,
    model_option,
    processes_option,
    settings_option,
    step_option,
    stored_precision_option,
    test_set_options,
)
from padir.cli.parser import Parser, setting

ISING = ("fig1", "fig2", "fig3", "schedules", "canvas", "theorems")
ANALYSES = ("attention", "dependency", "refinement", "schedule", "oracle")
PROGRAMS = ("train", "decode")


def tokenize_option(parser: Parser) -> None:
    """Add --tokenize, which chooses BLEU's tokenizer."""
    about = (
        "BLEU's tokenizer by SacreBLEU's name, such as 13a, zh, ja-mecab or char; flores200 needs its model on disk"
        " (default: by the script of the target language)"
    )
    parser.add_argument("--tokenize", default="", metavar="NAME", help=about)


def evaluate_options(parser: Parser) -> None:
    """Translate and score a test set with one model or several.

    Each combination of model, strategy, number of steps, number of lengths, reranking and shortlist makes a row. The
    column `seconds` is the time to translate the whole test set, from text to text; a first call, which compiles, is
    not counted.

    padir evaluate --model runs/toy --data data/toy --num_steps 1 4 --output results/toy
    """
    about = "models, with their names in the table"
    parser.add_argument("--model", required=True, nargs="+", metavar="[NAME=]DIR", help=about)
    step_option(parser)
    oracle = {"oracle_lengths": "add rows with the lengths of the references"}
    settings_option(parser, {"evaluation:evaluate_all": oracle})
    metric = (
        "further metrics: bleurt=DIR (a checkpoint; needs TensorFlow) | known_words=FILE, the percentage of outputs"
        " with a word that these texts of the target language do not have | MODULE:NAME, a metric of your own"
    )
    tokenize_option(parser)
    parser.add_argument("--metric", nargs="+", action="extend", default=[], metavar="NAME", help=metric)
    about = "write NAME.md, .csv, .json, .png (curves by source length) and NAME.rows/"
    parser.add_argument("--output", metavar="NAME", help=about)
    test_set_options(parser, "train", "validation", "test")
    processes_option(parser)
    decoding_options(parser, several=True, without=("n_best",))


def tables_options(parser: Parser) -> None:
    """Make tables in the paper's layout from JSON files of `padir evaluate`.

    padir tables results/toy.json
    """
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON files of `padir evaluate`")
    metric = "metrics, one table for each (bleu, bleurt and stutter if present)"
    parser.add_argument("--metric", nargs="+", metavar="NAME", help=metric)
    across = {"across": "what the columns of a table are, test_set or steps"}
    settings_option(parser, {"evaluation:paper_tables": across})
    parser.add_argument("--output", metavar="FILE", help="the Markdown file to write (default: standard output)")


def compare_options(parser: Parser) -> None:
    """Compare translations by a paired bootstrap test.

    padir compare --languages de-en --target en.txt baseline.txt mine.txt
    """
    parser.add_argument("--target", required=True, metavar="FILE", help="reference translations, one a line")
    about = "translations, two files or more; the first is the baseline"
    parser.add_argument("files", nargs="+", metavar="FILE", help=about)
    languages = "languages of the files, such as de-en; the second one chooses BLEU's tokenizer"
    parser.add_argument("--languages", required=True, metavar="SRC-TGT", help=languages)
    tokenize_option(parser)
    settings_option(parser, {"metrics.significance:compare": {"samples": "resamples of the test set"}})


def benchmark_options(parser: Parser) -> None:
    """Time several ways of translating, side by side.

    Each combination of model, strategy, number of steps and number of hypotheses makes a row. One run times all rows
    side by side, from text to text; ratios compare with the first row. Sentences are drawn from a test set and batched
    in their order. A gin file of ModelConfig makes a model of random weights, which reads numbers as words and writes
    as many tokens as it reads.

    padir benchmark --task toy_de_en --num_steps 1 4 --set sentences=16
    """
    about = "models to time, or gin files NAME=FILE.gin for random weights (default: the models that come with padir)"
    parser.add_argument("--model", nargs="+", metavar="[NAME=]DIR", help=about)
    step_option(parser)
    about = "convert the autoregressive models and add rows for them in CTranslate2 (needs the extra peers)"
    parser.add_argument("--ctranslate2", nargs="+", choices=CTRANSLATE2, default=[], help=about)
    about = "batch sizes; each makes rows of the table (1 8 32)"
    parser.add_argument("--batch_size", type=int, nargs="+", default=[1, 8, 32], help=about)
    about = "time this number of training steps of --gin_file on --data, and no decoding"
    parser.add_argument("--steps", type=int, metavar="N", help=about)
    sizes = {
        "sentences": "number of sentences that are drawn",
        "repeats": "repeats of all sentences",
        "tokens": "tokens of each sentence for random weights, with EOS",
        "vocab_size": "rows of the embedding table, for random weights (32,100 with sentinels) and --steps (ids of the"
        " data)",
    }
    settings_option(parser, {"cli.measuring:Extent": sizes})
    parser.add_argument("--output", metavar="NAME", help="write NAME.md, .json and .png (quality over speed)")
    test_set_options(parser, "validation", "test")
    decoding_options(parser, several=True, without=("batch_size", "n_best"))


def compile_options(parser: Parser) -> None:
    """Compile a configuration's programs for TPUs that this machine lacks.

    Nothing runs and no TPU is needed, only the extra tpu. Memory is what XLA plans for a device. For TPUs, XLA's cycles
    give an estimate of the time, which leaves out operations without cycles. Its shares are of a device's peak, and of
    the least time for its FLOPs and for reading its weights in each pass. The exit status is 1 if a program does not
    fit. Ctrl-C keeps what is compiled.

    padir compile --topology v3:2x2 --gin_file=configs/run/wmt14_de_en.gin --what train
    """
    devices = "the devices, such as v3:2x2, v5e:2x4 or h100:8; here: the devices of this machine"
    parser.add_argument("--topology", required=True, help=devices)
    about = "the training step, translation (both)"
    parser.add_argument("--what", nargs="+", choices=PROGRAMS, default=["train", "decode"], help=about)
    about = "prepared folder whose vocabulary and length of source rows are used"
    parser.add_argument("--data", metavar="DIR", help=about)
    group = parser.add_argument_group("shapes in decoding; each combination is compiled")
    group.add_argument("--batch_size", type=int, nargs="+", default=[1, 32], help="sentences (1 32)")
    group.add_argument("--num_steps", type=int, nargs="+", help="passes that refine a draft (4)")
    group.add_argument("--num_lengths", type=int, nargs="+", help="drafts of a sentence (1)")
    group.add_argument("--beam", type=int, nargs="+", help="sizes of an autoregressive model's beam (1)")
    sizes = {
        "tokens": "tokens of each sentence, with EOS",
        "vocab_size": "rows of the embedding table, without --data (32,100 with sentinels)",
    }
    settings_option(parser, {"cli.measuring:Sizes": sizes})


def export_options(parser: Parser) -> None:
    """Write a model as ONNX programs, or its weights for other frameworks.

    ONNX Runtime runs the programs in browsers and other languages; weights have 8 bits (extra `onnx`). The folder also
    has the vocabulary and a loop in JavaScript, padir.mjs, whose default options are the decoding options. Only models
    that refine drafts have programs. docs/export.md explains them.

    padir export --output exported/de_en
    """
    model_option(parser)
    step_option(parser)
    parser.add_argument("--output", required=True, metavar="DIR", help="the folder to write")
    about = "ONNX programs, or only the weights under the names of Hugging Face's T5 (onnx)"
    parser.add_argument("--what", choices=("onnx", "weights"), default="onnx", help=about)
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export in the folder")
    decoding_options(parser, without=("n_best", "shortlist"))


def t5x_options(parser: Parser) -> None:
    """Read and write T5X checkpoints; T5X itself is not needed.

    padir t5x export --model runs/toy --output t5x/toy
    """
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    sentence = "Make a model directory of a T5X checkpoint."
    reader: Parser = actions.add_parser(
        "import",
        help=sentence,
        description=f"{sentence} The file padir.json beside a run's checkpoints describes the model; for other"
        " checkpoints, --vocab, --languages and gin's ModelConfig and Objective describe it.",
        epilog="example:\n  padir t5x import t5x/toy --output runs/from_t5x",
    )
    reader.add_argument("checkpoint", metavar="DIR", help="checkpoint_<step>, or a model_dir with several checkpoints")
    reader.add_argument("--output", required=True, metavar="DIR", help="the model directory to write")
    reader.add_argument("--step", type=int, help="step of the checkpoint in a model_dir (the last)")
    reader.add_argument("--vocab", metavar="FILE", help="the SentencePiece file, or a model that has it")
    reader.add_argument("--languages", metavar="SRC-TGT", help="languages of the model, such as de-en")
    setting(reader, "padir.interop.t5x.exchange:import_model", "seed", "seed of initialised arrays")
    stored_precision_option(reader)
    partial = {"partial": "take the arrays that match, initialise the others, and report on both"}
    owners = {"interop.t5x.exchange:import_model": partial, "text.tokenizer:Tokenizer.load": SENTINELS}
    settings_option(reader, owners)
    common_options(reader)

    sentence = "Write a model directory as a T5X checkpoint."
    writer: Parser = actions.add_parser(
        "export",
        help=sentence,
        description=sentence,
        epilog="example:\n  padir t5x export --model runs/toy --output t5x/toy",
    )
    model = "a model from `padir train`, or one that comes with padir"
    writer.add_argument("--model", required=True, metavar="DIR", help=model)
    writer.add_argument("--output", required=True, metavar="DIR", help="the model_dir to write checkpoint_<step> in")
    common_options(writer)


def ising_options(parser: Parser) -> None:
    """Run the paper's Ising experiments and check its theorems exactly.

    Figures 1 and 2: error of k-pseudolikelihood against samples, from a flat and a two-mode truth. Figure 3: steps of
    k-Gibbs and independent parallel sampling between two modes. schedules: the cost of parallel passes, by their sizes.
    canvas: decoders that start from masks and from random tokens. theorems: every statement of the theory on random
    small models, with the smallest margin. The default sizes take minutes on 2 cores.

    padir ising fig1 --set samples=1000 --output results/fig1
    """
    parser.add_argument("subject", choices=ISING)
    parser.add_argument("--output", metavar="NAME", help="write NAME.json and, for figures, NAME.png")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random draws (0)")
    sizes = {
        "num_spins": "spins of the model: fig1, fig2 (6), fig3 (10), schedules (64), canvas (6); theorems: at most (7)",
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


def analyse_options(parser: Parser) -> None:
    """Analyse a model: attention, dependency between positions, refinement.

    attention: the paper's Tables 4 and 5 and attention maps. dependency: measures that find positions which depend on
    each other (known on toy_de_en), and a test whether the model's conditionals are consistent. refinement: changes
    from step to step, calibration, and every strategy. oracle: your own strategies and all others with the true
    conditionals of known distributions, without a model. schedule: how many tokens each pass should write.
    docs/analysis.md explains them.

    padir analyse attention --task toy_de_en --output results/attention
    """
    parser.add_argument("subject", choices=ANALYSES)
    about = "oracle: your own strategies, each a class or an instance in a module on PYTHONPATH"
    parser.add_argument("own", nargs="*", metavar="MODULE:NAME", help=about)
    parser.add_argument("--model", metavar="DIR", help=f"a model that refines drafts ({MODEL})")
    parser.add_argument("--output", metavar="DIR", help="folder for results, pictures and a page")
    extent = {
        "sentences": "number of sentences, from the first on",
        "examples": "attention, dependency, refinement: number of sentences that are shown",
        "values": "dependency: number of tokens tried at a position",
        "canvases": "dependency: number of first canvases to average over",
        "given": "dependency: what is held fixed, source or draft",
        "strategies": "refinement, oracle: strategies; all if none is given",
        "passes": "refinement, schedule: numbers of passes",
        "targets": "oracle: number of targets of each family",
        "outputs": "oracle: outputs of each target",
    }
    settings_option(parser, {"studies.analysis.analyses:AnalysisOptions": extent})
    test_set_options(parser, "train", "validation", "test")
    # No subject reads the other options: each looks at one draft of a sentence, or chooses its own.
    without = ("mode", "num_lengths", "beam", "length_penalty", "temperature", "n_best", "shortlist", "precision")
    of_ctc = ("prefix_beam", "blank_penalty")  # whose models cannot be analysed
    decoding_options(parser, without=without + of_ctc)
