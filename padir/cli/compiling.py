"""`padir compile`: memory and estimated times of programs for TPUs and GPUs that are not here."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from padir import config
from padir.cli.console import tell
from padir.cli.options import common_options
from padir.compilation import Compiled, DecodeShape, Program, Topology, analyse, decode_programs, train_program
from padir.compilation.decoding import KINDS
from padir.compilation.topology import EXAMPLES
from padir.data.loader import default_source_length
from padir.data.prepared import load_manifest, load_tokenizer
from padir.errors import PadirError
from padir.reporting import tables
from padir.text.ids import Ids, round_up
from padir.training.config import TrainConfig

_VOCABULARY = 32_100
_COLUMNS = ("program", "fits", "compiling", "memory", "arguments", "temporaries", "TFLOP", "GB moved")
_ESTIMATES = ("collectives", "by cycles", "XLA's estimate", "roofline")


def add_compile(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Nothing runs and no TPU is needed, only the extra tpu. Memory is what XLA plans for a device; times are"
        " estimates. The exit status is 1 if a program does not fit."
    )
    parser.add_argument(
        "--topology", required=True, help=f"the devices, such as {', '.join(EXAMPLES)}; here: those of this machine"
    )
    parser.add_argument(
        "--what",
        nargs="+",
        choices=("train", *KINDS),
        default=["train", "decode"],
        help="the training step, translation, verified decoding, the programs of an export (train decode)",
    )
    parser.add_argument(
        "--data", metavar="DIR", help="prepared folder, for its vocabulary and its shape of source rows"
    )
    parser.add_argument(
        "--vocab_size", type=int, help=f"rows of the embedding table, without --data ({_VOCABULARY:,} with sentinels)"
    )
    group = parser.add_argument_group("shapes in decoding; each combination is compiled")
    group.add_argument("--tokens", type=int, nargs="+", default=[30], help="tokens of each sentence, with EOS (30)")
    group.add_argument("--batch_size", type=int, nargs="+", default=[1, 32], help="sentences (1 32)")
    group.add_argument("--num_steps", type=int, nargs="+", default=[4], help="passes that refine a draft (4)")
    group.add_argument("--rounds", type=int, nargs="+", default=[10], help="rounds of verified decoding (10)")
    group.add_argument("--top_k", type=int, nargs="+", default=[1], help="drafts of a sentence (1)")
    group.add_argument("--beam", type=int, nargs="+", default=[1], help="sizes of an autoregressive model's beam (1)")
    common_options(parser)
    parser.set_defaults(run=_compile)


def _compile(args: argparse.Namespace) -> dict[str, Any]:
    if not args.gin:
        raise PadirError("the programs are those of a configuration: give its --gin_file")
    names = ("model", "objective", "optimizer", "batching", "sharding")
    settings = TrainConfig(**{name: config.argument(TrainConfig, name) for name in names})
    config.check_overrides()
    topology = Topology.here() if args.topology == "here" else Topology.of(args.topology)
    found: list[Compiled] = []
    for each in analyse(_programs(args, settings, topology)):
        found.append(each)
        tell(f"{len(found)}. {each.name}: {each.failure or 'compiled'}, {each.compile_seconds:.0f} s")
    _show(found, topology)
    rows = [{**dataclasses.asdict(each), **_judged(each, topology)} for each in found]
    if any(row["fits"] is False for row in rows):
        args.status = 1
    return {"topology": topology.name, "devices": len(topology.devices), "programs": rows}


def _programs(args: argparse.Namespace, settings: TrainConfig, topology: Topology) -> Iterator[Program]:
    ids, source_row_length = _sizes(args, settings)
    if "train" in args.what:
        yield train_program(settings, ids, topology.devices, source_row_length)
    for kind in KINDS:
        if kind in args.what:
            steps = args.rounds if kind == "verify" else [1] if settings.model.causal else args.num_steps
            width = [1] if kind == "verify" else args.beam if settings.model.causal else args.top_k
            shapes = [DecodeShape(*each) for each in itertools.product(args.tokens, args.batch_size, width, steps)]
            yield from decode_programs(settings, ids, topology.devices[0], shapes, kind)


def _sizes(args: argparse.Namespace, settings: TrainConfig) -> tuple[Ids, int]:
    """The vocabulary, and the source positions of a packed row."""
    batching = settings.batching
    if args.data:
        manifest = load_manifest(args.data)
        if args.vocab_size is not None:
            raise PadirError("give either --data or --vocab_size: a prepared folder has its vocabulary")
        length = default_source_length(manifest, batching.row_length, length_token=settings.model.length_token)
        return load_tokenizer(args.data).ids, length
    length = round_up(batching.row_length * 9 // 8, 8)
    if batching.source_row_length is None and "train" in args.what:
        tell(f"source rows have {length} positions, an eighth more than target rows: give --data for a corpus's own")
    return Ids(_VOCABULARY if args.vocab_size is None else args.vocab_size), length


def _judged(each: Compiled, topology: Topology) -> dict[str, Any]:
    """Figures of a program that depend on the chip."""
    chip = topology.chip
    seconds = {"roofline_seconds": each.roofline_seconds(chip), "cycle_seconds": each.cycle_seconds(chip)}
    utilisation = each.utilisation(chip, len(topology.devices))
    return {"memory": each.memory, "fits": each.fits(chip), **seconds, "model_flop_utilisation": utilisation}


def _show(found: list[Compiled], topology: Topology) -> None:
    chip = topology.chip
    lines = []
    for each in found:
        fits = {True: "yes", False: "no", None: "not known"}[each.fits(chip)]
        moved = [_number(value, 1e9) for value in (each.memory, each.arguments, each.temporaries)]
        collectives = ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in each.collectives.items())
        cells = [each.name, fits, f"{each.compile_seconds:.0f} s", *moved, _number(each.flops, 1e12)]
        cells += [_number(each.bytes_accessed, 1e9), collectives or "none"]
        seconds = (each.cycle_seconds(chip), each.xla_seconds, each.roofline_seconds(chip))
        cells += [_number(value, 1e-3, " ms") for value in seconds]
        lines.append(cells)
    of = "memory of a device not known" if chip is None else f"{chip.memory / 1e9:.0f} GB a device"
    kind = topology.devices[0].device_kind
    title = f"{topology.name}: {len(topology.devices)} devices ({kind}), {of}; memory in GB, numbers for each device"
    tables.show(title, [*_COLUMNS, *_ESTIMATES], lines)
    for each in found:
        if each.cycles is not None:
            shares = [f"{100 * value / each.cycles.total:.0f} % {name}" for name, value in each.cycles.shares.items()]
            without = [f"{count:.0f} {kind}" for kind, count in each.cycles.unestimated.items()]
            tell(f"cycles of {each.name}: {', '.join(shares)}; without an estimate: {', '.join(without) or 'none'}")
        if each.largest:
            values = "; ".join(f"{size / 1e6:,.1f} MB {name}" for size, name in each.largest[:3])
            tell(f"largest values of {each.name}: {values}")


def _number(value: float | None, unit: float, name: str = "") -> str:
    return "not known" if value is None else f"{value / unit:.3g}{name}"
