"""Options of the commands that measure models: `padir evaluate`, `tables`, `compare`, `benchmark` and `compile`."""

from __future__ import annotations

from padir.cli.options.shared import (
    CTRANSLATE2,
    decoding_options,
    processes_option,
    settings_option,
    step_option,
    test_set_options,
    writer_option,
)
from padir.cli.parser import Parser
from padir.options import OPTIONS

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
    writer_option(parser)
    metric = (
        "further metrics: bleurt=DIR (a checkpoint; needs TensorFlow) | known_words=FILE, the percentage of outputs"
        " with a word that these texts of the target language do not have | MODULE:NAME, a metric of your own"
    )
    tokenize_option(parser)
    parser.add_argument("--metric", nargs="+", default=[], metavar="HOW", help=metric)
    about = "write NAME.md, .json and NAME.rows/"
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
    about = "also show the paper's results on these test sets, and how far the rows are from them"
    parser.add_argument("--paper", action="store_true", help=about)
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
    about = "models to time, or gin files NAME=FILE.gin for random weights (default: padir's, without toy_masks)"
    parser.add_argument("--model", nargs="+", metavar="[NAME=]DIR", help=about)
    step_option(parser)
    about = "convert the autoregressive models and add rows for them in CTranslate2 (needs the extra peers)"
    parser.add_argument("--ctranslate2", nargs="+", choices=CTRANSLATE2, default=[], help=about)
    about = "batch sizes; each makes rows of the table (1 8 32)"
    parser.add_argument("--batch_size", type=int, nargs="+", help=about)
    about = "time this number of training steps of --gin_file on --data (random batches if gin's DATASET is not here)"
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
    fit or the compiler crashes. Ctrl-C keeps what is compiled.

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
    about = f"passes that refine a draft ({OPTIONS['num_steps'].default})"
    group.add_argument("--num_steps", type=int, nargs="+", help=about)
    group.add_argument("--num_lengths", type=int, nargs="+", help="drafts of a sentence (1)")
    group.add_argument("--beam", type=int, nargs="+", help="sizes of an autoregressive model's beam (1)")
    parser.set_defaults(decoding_names=["num_steps", "num_lengths", "beam"])
    sizes = {
        "tokens": "tokens of each sentence, with EOS",
        "vocab_size": "rows of the embedding table, without --data (32,100 with sentinels)",
    }
    settings_option(parser, {"cli.measuring:Sizes": sizes})
