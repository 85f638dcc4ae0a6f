"""`padir list`: configurations, models, strategies and corpora that come with padir, with a line about each."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path

import padir
from padir.cli.options import common_options
from padir.data.sources import SOURCES
from padir.interop.tfds_sets import TFDS_SETS
from padir.pretrained import PRETRAINED
from padir.refinement.strategies import STRATEGIES


def add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", choices=[*_LISTS], help="what to list (all)")
    common_options(parser)
    parser.set_defaults(run=_list)


def _list(args: argparse.Namespace) -> dict[str, dict[str, str]]:
    found = {kind: listed() for kind, listed in _LISTS.items() if args.kind in (None, kind)}
    for kind, lines in found.items():
        width = max(map(len, lines), default=0)
        print(f"{kind}:", *(f"  {name:<{width}}  {line}" for name, line in lines.items()), "", sep="\n")
    return found


def _configs() -> dict[str, str]:
    """Each gin file, as --gin_file takes it, with the first line of its header."""
    package = Path(padir.__file__).parent
    folder = next(place / "configs" for place in (package.parent, package) if (place / "configs" / "run").is_dir())
    files = sorted(folder.rglob("*.gin"))
    return {f"configs/{file.relative_to(folder).as_posix()}": _header(file) for file in files}


def _header(file: Path) -> str:
    first = file.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


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
