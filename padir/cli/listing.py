"""`padir list`, and the configurations that come with padir: their names, headers and files."""

from __future__ import annotations

import argparse
import inspect
import textwrap
from pathlib import Path

from padir.data.sources import SOURCES
from padir.errors import PadirError, nearest
from padir.interop.seqio_tasks import TFDS_SETS
from padir.pretrained import PRETRAINED
from padir.refinement.strategies import STRATEGIES


def run_list(args: argparse.Namespace) -> dict[str, dict[str, str]]:
    found = {kind: listed() for kind, listed in _LISTS.items() if args.kind in (None, kind)}
    for kind, lines in found.items():
        width = max(map(len, lines), default=0)
        wrapper = textwrap.TextWrapper(120, initial_indent="  ", subsequent_indent=" " * (width + 4))
        print(f"{kind}:", *(wrapper.fill(f"{name:<{width}}  {line}") for name, line in lines.items()), "", sep="\n")
    return found


def _configs() -> dict[str, str]:
    """Each configuration, as `padir train` and --gin_file take it, with the first paragraph of its header."""
    return {name: header(file) for name, file in configurations().items()}


def _strategies() -> dict[str, str]:
    """Each strategy with the first line of its docstring, and with its hyperparameters as --strategy takes them."""
    found = {}
    for name, strategy in STRATEGIES.items():
        about = (inspect.getdoc(strategy) or "").partition("\n")[0]
        fields = ",".join(f"{field.name}={field.default}" for field in inspect.signature(strategy).parameters.values())
        found[name] = f"{about} [{name}:{fields}]" if fields else about
    return found


def _tasks() -> dict[str, str]:
    """Each corpus that --task names, with the place of its text."""
    own = {name: "built in" if name.startswith("toy") else "text files in --data_dir" for name in SOURCES}
    return own | dict.fromkeys(TFDS_SETS, "from TensorFlow Datasets (needs the extra data)")


_LISTS = {"configs": _configs, "models": lambda: PRETRAINED, "strategies": _strategies, "tasks": _tasks}


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
        remedy = f"{nearest(name, known)}" if len(name) > 1 else "`padir list configs` shows all"
        raise PadirError(f"there is no configuration {name!r}", remedy=remedy)
    return str(known[name])


def header(file: Path) -> str:
    """The first paragraph of the comment with which a file begins."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#") or line.strip() == "#":
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)
