"""`padir list`, and the configurations that come with padir: their names, headers and files."""

from __future__ import annotations

import argparse
import inspect
import itertools
import textwrap
from pathlib import Path
from typing import Any

from padir.data.sources import SOURCES
from padir.errors import PadirError, nearest
from padir.interop.seqio_tasks import TFDS_SETS
from padir.pretrained import PRETRAINED
from padir.refinement.strategies import STRATEGIES


def run_list(args: argparse.Namespace) -> dict[str, dict[str, str]]:
    corpora = {name: "built in" if name.startswith("toy") else "text files in --data_dir" for name in SOURCES}
    lists = {
        "configs": {name: header(file) for name, file in configurations().items()},
        "models": PRETRAINED,
        "strategies": {name: _about(name, strategy) for name, strategy in STRATEGIES.items()},
        "tasks": corpora | dict.fromkeys(TFDS_SETS, "from TensorFlow Datasets (needs the extra data), or by --recipe"),
    }
    found = {kind: lines for kind, lines in lists.items() if args.kind in (None, kind)}
    for kind, lines in found.items():
        width = max(map(len, lines), default=0)
        wrapper = textwrap.TextWrapper(120, initial_indent="  ", subsequent_indent=" " * (width + 4))
        print(f"{kind}:", *(wrapper.fill(f"{name:<{width}}  {line}") for name, line in lines.items()), "", sep="\n")
    return found


def _about(name: str, strategy: Any) -> str:
    """The first line of a strategy's docstring, and its hyperparameters as --strategy takes them."""
    about = (inspect.getdoc(strategy) or "").partition("\n")[0]
    fields = ",".join(f"{field.name}={field.default}" for field in inspect.signature(strategy).parameters.values())
    return f"{about} [{name}:{fields}]" if fields else about


def configurations() -> dict[str, Path]:
    """Gin files by name: "toy_cpu" of configs/run/, and "ablation/stages_1" of the other folders."""
    package = Path(__file__).parents[1]
    folder = next(place / "configs" for place in (package.parent, package) if (place / "configs" / "run").is_dir())
    files = {file.relative_to(folder).with_suffix("").as_posix(): file for file in sorted(folder.rglob("*.gin"))}
    return {name.removeprefix("run/"): file for name, file in files.items()}


def config_file(name: str) -> str:
    """The gin file of a configuration's name; a path to a gin file stays as it is."""
    if name.endswith(".gin") or Path(name).is_file():
        return name
    known = configurations()
    if name not in known:
        remedy = nearest(name, known) if len(name) > 1 else "`padir list configs` shows all"
        raise PadirError(f"there is no configuration {name!r}", remedy=remedy)
    return str(known[name])


def header(file: Path) -> str:
    """The first paragraph of the comment with which a file begins."""
    lines = file.read_text(encoding="utf-8").splitlines()
    begin = itertools.takewhile(lambda line: line.startswith("#") and line.strip() != "#", lines)
    return " ".join(line.removeprefix("#").strip() for line in begin)
