"""Options of the commands that make models: `padir train`, `average` and `distill`."""

from __future__ import annotations

from padir.cli.options.shared import CTRANSLATE2, decoding_options, processes_option, stored_precision_option
from padir.cli.parser import Parser, setting

# Options of `padir train`, each the short name of a gin binding: the binding, its owner, its type and its help.
_TRAINING = {
    "steps": ("train.num_steps", "training.config:TrainConfig", int, "optimizer steps in all"),
    "seed": ("train.seed", "training.config:TrainConfig", int, "seed of parameters, order of the data and noise"),
    "rows": ("Batching.rows", "data.plan:Batching", int, "packed rows of a batch"),
    "learning_rate": ("Cosine.peak", "training.optimizer:Cosine", float, "highest learning rate"),
    "warmup": ("Cosine.warmup_steps", "training.optimizer:Cosine", int, "steps until the highest learning rate"),
    "dropout": ("ModelConfig.dropout_rate", "models.config:ModelConfig", float, "share of activations dropped"),
    "start_from": ("train.start_from", "training.config:TrainConfig", str, "model to take fitting parameters from"),
    "evaluate_every": ("Intervals.evaluate", "training.config:Intervals", int, "steps between validations; 0: none"),
}


def train_options(parser: Parser) -> None:
    """Train a model, or resume a training run.

    An option wins over --gin.NAME=VALUE, which wins over the files; of several files the last one wins. `padir list
    configs` shows the configurations that come with padir.

    padir train toy_cpu --data data/toy --model_dir runs/toy --steps 5000
    """
    about = "configurations, such as toy_cpu or ablation/stages_1, or gin files, read in this order"
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help=about)
    data = "prepared folders, also at addresses such as gs://BUCKET/DATA; gin's DATASET"
    parser.add_argument("--data", nargs="+", metavar="DIR", help=data)
    model_dir = "directory of the training run, or its address; gin's MODEL_DIR"
    parser.add_argument("--model_dir", metavar="DIR", help=model_dir)
    group = parser.add_argument_group("training; each option binds a parameter of the configuration")
    for option, (binding, owner, kind, about) in _TRAINING.items():
        name = binding.partition(".")[2]
        shape = "DIR" if kind is str else None
        setting(group, f"padir.{owner}", name, f"{about}; gin's {binding}", option=option, type=kind, metavar=shape)
    parser.set_defaults(binds={option: binding for option, (binding, *_) in _TRAINING.items()})
    about = "decoding options of validation, such as num_steps=4 num_lengths=3 batch_size=64; gin's Decoding"
    parser.add_argument("--validate", nargs="+", default=[], metavar="NAME=VALUE", help=about)
    parser.add_argument("--print_config", action="store_true", help="print every setting as gin; needs no data")
    processes_option(parser)
    parser.meanings = {
        **parser.meanings,
        "--num_steps": "--steps trains, --validate num_steps=N sets the decoder passes of validation",
        "--batch_size": "--rows trains, --validate batch_size=N sets validation",
        **dict.fromkeys(
            ("--strategy", "--num_lengths", "--beam", "--rerank", "--num_drafts"), "it decodes: give it to --validate"
        ),
        **dict.fromkeys(("--model", "--output"), "--model_dir names the run's directory"),
        **dict.fromkeys(("--config", "--name"), "name the configuration without an option: padir train toy_cpu"),
        "--epochs": "--steps counts batches",
    }


def average_options(parser: Parser) -> None:
    """Average checkpoints of a training run into one model.

    padir average --model_dir runs/toy --last 3 --output runs/toy_average
    """
    parser.add_argument("--model_dir", required=True, metavar="DIR", help="directory of a training run")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, metavar="K", help="average the last K checkpoints")
    which.add_argument("--best", type=int, metavar="K", help="average the K kept checkpoints of highest BLEU")
    parser.add_argument("--step", type=int, metavar="N", help="average checkpoints up to this step (the newest)")
    stored_precision_option(parser)
    about = "the model's default decoding options, such as num_lengths=5 length_normalization=1.5"
    parser.add_argument("--decoding", nargs="+", default=[], metavar="NAME=VALUE", help=about)
    parser.add_argument("--output", required=True, metavar="DIR", help="the model directory to write")


def distill_options(parser: Parser) -> None:
    """Write a teacher's translations as a training set.

    padir distill --model runs/teacher --data data/toy --output data/toy_distilled
    """
    parser.add_argument("--model", required=True, metavar="DIR", help="the teacher, a model from `padir train`")
    parser.add_argument("--data", required=True, metavar="DIR", help="a prepared folder")
    parser.add_argument("--output", required=True, metavar="DIR", help="the prepared folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the pairs that the folder holds")
    about = "search in CTranslate2, several times faster on a CPU (autoregressive teachers; needs the extra peers)"
    parser.add_argument("--ctranslate2", choices=CTRANSLATE2, help=about)
    processes_option(parser)
    decoding_options(parser, without=("n_best",))
