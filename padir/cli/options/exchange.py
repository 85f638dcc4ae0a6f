"""Options of the commands that exchange models with other programs: `padir export` and `t5x`."""

from __future__ import annotations

from padir.cli.options.shared import (
    SENTINELS,
    common_options,
    decoding_options,
    model_option,
    settings_option,
    step_option,
    stored_precision_option,
)
from padir.cli.parser import Parser, setting


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
