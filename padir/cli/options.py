"""Options that several commands have."""

from __future__ import annotations

import argparse
from typing import Any

from padir.pretrained import DEFAULT


def common_options() -> argparse.ArgumentParser:
    """The options of every command."""
    common = argparse.ArgumentParser(add_help=False)
    group = common.add_argument_group("configuration")
    group.add_argument("--gin_file", action="append", default=[], metavar="FILE", help="a gin file; repeatable")
    group.add_argument("--gin_search_paths", action="append", default=[], metavar="DIR", help="where gin files are")
    group.add_argument("--gin.NAME", dest="_", metavar="VALUE", help="--gin.train.num_steps=1000 binds one parameter")
    group.add_argument("--json", metavar="FILE", help="write the command's figures as JSON")
    return common


def corpus_options() -> argparse.ArgumentParser:
    """The options that name parallel text."""
    corpus = argparse.ArgumentParser(add_help=False)
    group = corpus.add_argument_group("parallel text: a known task, or files (plain or .gz; one .tsv, or two files)")
    group.add_argument("--task", help="a known corpus, such as toy_de_en or wmt14_de_en")
    group.add_argument("--data_dir", help="where the task's files are")
    group.add_argument("--languages", metavar="SRC-TGT", help="of the files, such as de-en")
    for split in ("train", "validation", "test"):
        group.add_argument(f"--{split}", nargs="+", metavar="FILE", help=f"{split} files")
    return corpus


def model_option(command: argparse.ArgumentParser) -> None:
    """The model to use, by default the one that comes with padir."""
    command.add_argument(
        "--model", default=DEFAULT, metavar="DIR", help="from `padir train`, or one that comes with padir (de_en)"
    )


def steps_options(command: argparse.ArgumentParser) -> None:
    """How many steps, and how many lengths; commands that take several of them say so in their own words."""
    command.add_argument("--num_steps", type=int, help="decoder passes (4)")
    command.add_argument("--top_k", type=int, help="how many of the most likely lengths are tried (1)")


def precision_option(command: argparse.ArgumentParser, **several: Any) -> None:
    command.add_argument(
        "--precision",
        **several,
        choices=["float32", "bfloat16", "int8"],
        help="of weights and products: int8 is faster on a CPU, bfloat16 on a GPU or TPU; both write not quite the same"
        " words (float32)",
    )


def decoding_options(**several: Any) -> argparse.ArgumentParser:
    """The options that say how translations are made; `several` lets some of them take more than one value."""
    decoding = argparse.ArgumentParser(add_help=False)
    group = decoding.add_argument_group("decoding (defaults from gin's Decoding and LengthSearch, else as shown)")
    group.add_argument(
        "--strategy",
        **several,
        metavar="NAME[:FIELD=VALUE,...]",
        help="how drafts are refined, such as threshold:tau=0.9; default: the model's own",
    )
    group.add_argument("--offsets", type=int, nargs="+", help="added to each predicted length (0)")
    group.add_argument("--draws", type=int, help="random drafts of each length (1)")
    group.add_argument("--keep", type=int, help="how many of a sentence's hypotheses go on after the first step (all)")
    group.add_argument(
        "--rerank", **several, metavar="HOW", help="own | mbr | mbr_bleu | an autoregressive MODEL_DIR (own)"
    )
    group.add_argument("--brevity", type=float, help="own and MODEL_DIR: log-probability / tokens^BREVITY (1)")
    group.add_argument("--length_weight", type=float, help="own: weight of the length's log-probability (0)")
    group.add_argument(
        "--beam", type=int, **several, metavar="N", help="rows of an autoregressive model's beam search (5)"
    )
    group.add_argument("--length_penalty", type=float, metavar="A", help="its exponent; 0: none (0.6)")
    group.add_argument("--sample", type=float, metavar="TEMPERATURE", help="sample an autoregressive model's tokens")
    group.add_argument(
        "--shortlist",
        **several,
        metavar="FILE",
        help="write only what this file of `padir shortlist` has for a batch's sources; none: anything (none)",
    )
    group.add_argument("--batch_size", type=int, help="sentences decoded at once (32)")
    group.add_argument("--seed", type=int, help="of the random drafts, or of sampling (0)")
    return decoding
