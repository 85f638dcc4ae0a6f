"""Commands beside the library: `padir benchmark`, `padir compile`, `padir ising`, `padir analyse` and `padir audit`."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from padir import checks, config
from padir.cli.arguments import (
    check_options,
    chosen,
    decoding_of,
    decodings_of,
    import_own,
    load_models,
    named_model,
    options_given,
    refuse,
    typed,
)
from padir.cli.console import tell, warn
from padir.cli.corpora import files_of, folders_of, named_folders, test_set_of
from padir.cli.entry import INTERRUPTED
from padir.cli.options.shared import MODEL
from padir.data.loader import default_source_length
from padir.data.prepared import load_manifest, load_tokenizer
from padir.decoding.options import Decoding
from padir.errors import PadirError
from padir.evaluation import TestSet, describe_row
from padir.evaluation.rows import Rows, label
from padir.measuring import benchmark
from padir.measuring.benchmark import speed_report, training_speed
from padir.measuring.benchmark.peers import peers
from padir.measuring.compilation import cost_report
from padir.measuring.compilation.compiler_process import analyse_apart
from padir.measuring.compilation.costs import Compiled, analyse
from padir.measuring.compilation.devices import Topology
from padir.measuring.compilation.program_list import DecodeShape, Program, decode_programs, train_program
from padir.models.config import ModelConfig
from padir.options import OPTIONS
from padir.pretrained import PRETRAINED
from padir.reporting import tables
from padir.reporting.page import cell
from padir.storage.files import is_address, write_json, write_text
from padir.studies.analysis import analyses as analysis
from padir.studies.analysis import audit
from padir.studies.ising import subjects as ising
from padir.text.ids import Ids, round_up
from padir.training.config import TrainConfig
from padir.translator import Translator

_VOCABULARY = 32_100  # ids of models that have no vocabulary


@dataclasses.dataclass(frozen=True)
class Extent:
    """Settings of `padir benchmark` that --set changes."""

    sentences: int = 64
    repeats: int = 5
    tokens: int = 30
    vocab_size: int | None = None


def run_benchmark(args: argparse.Namespace) -> dict[str, Any]:
    extent = Extent(**chosen(args, "padir.cli.measuring:Extent"))
    batch_sizes = args.batch_size or [1, 8, 32]
    checks.counts(1, sentences=extent.sentences, repeats=extent.repeats, **{"--batch_size": min(batch_sizes)})
    if args.steps is not None:
        return _benchmark_training(args, extent)
    files = [name.endswith(".gin") for name in args.model or ()]
    random = any(files)
    if random and (args.task or args.languages or args.data_dir or files_of(args) or not all(files)):
        raise PadirError(
            "give either gin files, or models and a test set: gin files make models of random weights, for which no"
            " test set is read"
        )
    if random:
        refuse(args, "a model of random weights", "step", "gin_file")
        if args.gin:
            raise PadirError("--gin. does not reach the files of --model", remedy="write it into them, or give options")
        translators, test_set = _random_models(args, extent)
    else:
        refuse(args, "a trained model", "tokens", "vocab_size")
        of_language = [name for name in PRETRAINED if name != "toy_masks"]
        translators, test_set = load_models(args, args.model or of_language), test_set_of(args)
    decodings = functools.partial(decodings_of, args, batch_size=None)  # every system takes a whole batch
    check_options(args, *((name, each.card.config, decodings(each.decoding)) for name, each in translators))
    systems = benchmark.systems(translators, decodings, given_lengths=random, warn=warn)
    systems += peers(systems, args.ctranslate2)
    rows: Rows = []
    for size in batch_sizes:
        count = max(size, extent.sentences)  # at least one batch
        timed = test_set
        if random:
            drawn = benchmark.drawn_lengths(args.data, args.split, count) if args.data else None
            length_N2 = benchmark.equal_lengths(extent.tokens, count) if drawn is None else drawn
            batches = benchmark.batches_of_numbers(length_N2, size, translators[0][1].card.ids)
        else:
            batches = benchmark.batches_of(test_set, size, count)
            sources = [text for each in batches for text in each.texts]
            references = [text for each in batches for text in each.references or ()]
            timed = dataclasses.replace(test_set, sources=sources, references=references)
        for row, details in benchmark.measure(systems, batches, repeats=extent.repeats):
            rows.append(describe_row(row, timed) | {"details": details})
            tell(f"{len(rows)}. {label(rows[-1], rows)}: {speed_report.summary(rows[-1])}")
    where = speed_report.environment()
    speed_report.show(rows, where)
    results = {"environment": where, "rows": rows}
    if args.output:
        write_text(f"{args.output}.md", speed_report.to_markdown(rows, where))
        write_json(f"{args.output}.json", results)
        try:
            speed_report.plot(rows, f"{args.output}.png", speed_report.machine_line(where))
        except PadirError as error:
            warn(f"{args.output}.png was not written: {error}")
    return results


def _random_models(args: argparse.Namespace, extent: Extent) -> tuple[list[tuple[str, Translator]], TestSet]:
    """Models of random weights, and a test set that only names their input."""
    vocab_size = _VOCABULARY if extent.vocab_size is None else extent.vocab_size
    models = []
    for name, path in map(named_model, args.model):
        config.parse([path], allow_imports=args.allow_imports)
        if names := config.bound(Decoding):
            raise PadirError(f"{path} binds Decoding.{min(names)}", remedy="give decoding options on the command line")
        models.append((name, benchmark.random_translator(config.configured(ModelConfig)(), vocab_size)))
    config.clear()
    shape = f"lengths of {args.data}" if args.data else f"{extent.tokens} tokens"
    return models, benchmark.numbers(shape)


def _settings() -> TrainConfig:
    """The parts of gin's training configuration that programs depend on."""
    names = ("model", "objective", "optimizer", "batching", "sharding")
    named = {name: config.argument(TrainConfig, name) for name in names}
    config.check_overrides()
    return TrainConfig(**named)


def _benchmark_training(args: argparse.Namespace, extent: Extent) -> dict[str, Any]:
    if not args.gin:
        raise PadirError("--steps needs --gin_file")
    refuse(args, "--steps times training, which", "model", "step", "ctranslate2", "task", *files_of(args), "data_dir")
    refuse(args, "--steps reads Batching.rows, and", "batch_size")
    refuse(args, "--steps times training, which", "languages", *options_given(args), "sentences", "repeats", "tokens")
    names = named_folders(args)
    random = not args.data and not any(is_address(name) or Path(name).exists() for name in names)
    folders = () if random else folders_of(args)
    if random:
        warn(f"{' and '.join(names)} of the configuration is not here: random batches of its shape are timed")
    size = extent.vocab_size or (_VOCABULARY if random else 0)
    measured = training_speed.measure(folders, _settings(), steps=args.steps, num_embeddings=size)
    where = speed_report.environment()
    lines = [[name, _rounded(value)] for name, value in measured.metrics.items()]
    tables.show(f"training, measured on {speed_report.machine_line(where)}", ["metric", "value"], lines)
    results = {
        "environment": where,
        "data": folders or "random",
        "figures": measured.metrics,
        "step_seconds": measured.step_seconds,
    }
    if args.output:
        write_json(f"{args.output}.json", results)
    return results


def _rounded(value: float | None) -> str:
    """A number with four significant digits, or with all digits before the decimal point if there are more."""
    if value is None:
        return "not known"
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Settings of `padir compile` that --set changes; each number of tokens is compiled."""

    tokens: tuple[int, ...] = (30,)
    vocab_size: int | None = None


def run_compile(args: argparse.Namespace) -> dict[str, Any]:
    if not args.gin:
        raise PadirError("padir compile needs a configuration: give --gin_file")
    sizes = Sizes(**chosen(args, "padir.cli.measuring:Sizes"))
    shapes = {f"--{name}": getattr(args, name) or () for name in ("batch_size", "num_steps", "num_lengths", "beam")}
    shapes |= {"tokens": sizes.tokens, "vocab_size": filter(None, [sizes.vocab_size])}
    for name, values in shapes.items():
        for value in values:
            checks.counts(1, **{name: value})
    settings = _settings()
    first_mode = dataclasses.replace(settings.model, dual=False)  # no programs of a dual model's causal side
    check_options(args, ("", first_mode, [Decoding()]), counted=False)
    longest = settings.model.geometry.longest_source(settings.model.max_length)
    for tokens in sizes.tokens if "decode" in args.what else ():
        checks.below(1, longest + 1, tokens=tokens)
    topology = Topology.of(args.topology)
    ids, source_row_length = _sizes(args, sizes, settings)
    programs = functools.partial(_programs, args, sizes, settings, ids, source_row_length)
    # Devices of this machine may belong to one process only, and their compiler runs in every command.
    here = args.topology == "here"
    compiled = analyse(map(_told, programs())) if here else analyse_apart(programs, _tell_of)
    found, stopped = list[Compiled](), False
    try:
        for each in compiled:
            found.append(each)
            tell(f"{len(found)}. {cost_report.summary(each, topology.chip)}")
    except KeyboardInterrupt:  # what is compiled is not lost
        stopped = True
    cost_report.show(found, topology)
    for line in (line for each in found for line in cost_report.notes(each)):
        tell(line)
    rows = [cost_report.to_row(each, topology.chip) for each in found]
    if stopped or any(row["failure"] or row["fits"] is False for row in rows):
        args.status = INTERRUPTED if stopped else 1
    return {"topology": topology.name, "devices": len(topology.devices), "programs": rows}


def _tell_of(name: str) -> None:
    tell(f"compiling {name} ...")


def _told(program: Program) -> Program:
    _tell_of(program.name)
    return program


def _programs(
    args: argparse.Namespace, sizes: Sizes, settings: TrainConfig, ids: Ids, source_row_length: int
) -> Iterator[Program]:
    topology = Topology.of(args.topology)
    if "train" in args.what:
        yield train_program(settings, ids, topology.devices, source_row_length)
    if "decode" in args.what:
        steps = [1] if settings.model.causal else args.num_steps or [OPTIONS["num_steps"].default]
        width = args.beam or args.num_lengths or [1]
        shapes = [DecodeShape(*each) for each in itertools.product(sizes.tokens, args.batch_size, width, steps)]
        yield from decode_programs(settings, ids, topology.devices[0], shapes)


def _sizes(args: argparse.Namespace, sizes: Sizes, settings: TrainConfig) -> tuple[Ids, int]:
    """The vocabulary, and the source positions of a packed row."""
    batching = settings.batching
    if args.data:
        manifest = load_manifest(args.data)
        if sizes.vocab_size is not None:
            raise PadirError("give --data or vocab_size, not both: a prepared folder has a vocabulary")
        length = default_source_length(manifest, batching.row_length, length_token=settings.model.length_token)
        return load_tokenizer(args.data).ids, length
    length = round_up(batching.row_length * 9 // 8, 8)
    if batching.source_row_length is None and "train" in args.what:
        tell(f"source rows have {length} positions, an eighth more than target rows: give --data for a corpus's own")
    return Ids(_VOCABULARY if sizes.vocab_size is None else sizes.vocab_size), length


def run_ising(args: argparse.Namespace) -> dict[str, Any]:
    hints = typing.get_type_hints(ising.sizes_of(args.subject))
    sizes = chosen(args, "padir.studies.ising.subjects:run")
    sizes = {name: typed(name, value, hints[name]) if name in hints else value for name, value in sizes.items()}
    found = ising.run(args.subject, seed=args.seed, output=args.output, tell=tell, **sizes)
    _show_study(args.subject, ising.COLUMNS[args.subject], [ising.cells(args.subject, row) for row in found["rows"]])
    ising.verify(found)
    return found


def run_analyse(args: argparse.Namespace) -> dict[str, Any]:
    extent = chosen(args, "padir.studies.analysis.analyses:AnalysisOptions")
    for name, subjects in analysis.READ_BY.items():
        if (name in extent or getattr(args, name, None) not in (None, [])) and args.subject not in subjects:
            raise PadirError(f"{name} applies only to {', '.join(subjects)}: leave it out of {args.subject}")
    options = analysis.AnalysisOptions(**extent)
    own = Decoding() if args.subject == "refinement" else dataclasses.replace(Decoding(), num_steps=1)
    decoding = decoding_of(args, own)
    model = args.model or MODEL
    translator, test_set = Translator.load(model), test_set_of(args)
    check_options(args, (str(model), translator.card.config, [decoding]))
    found = analysis.run(
        args.subject, translator, test_set, decoding, options, name=str(model), output=args.output, tell=tell
    )
    lines = [analysis.cells(args.subject, row) for row in found["rows"]]
    _show_study(args.subject, analysis.COLUMNS[args.subject], lines)
    return found


def run_audit(args: argparse.Namespace) -> dict[str, Any]:
    for name in args.own:
        import_own(name)
    options = audit.AuditOptions(**chosen(args, "padir.studies.analysis.audit:AuditOptions"))
    found = audit.run(args.own, options, seed=args.seed, output=args.output, tell=tell)
    rows = [row for row in found["rows"] if not args.own or row["strategy"] in args.own]
    lines = [["infinite" if row[name] is None else cell(row[name]) for name in audit.COLUMNS] for row in rows]
    _show_study("audit", audit.COLUMNS, lines)
    return found


def _show_study(subject: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a study's rows as a table, with the names of their columns in words."""
    tables.show(subject, [name.replace("_", " ") for name in columns], lines)
