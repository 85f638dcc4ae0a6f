"""Pages of the site that are made when it is built: commands, configurations, API, tables of results. A hook of mkdocs.

Nothing here is committed: each page is made of the parsers, the gin files, the docstrings or results/*.json.
"""

import argparse
import re
import runpy
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
GITHUB = "https://github.com/padir/padir/blob/main/"
MARK = re.compile(r"<!-- made: (\w+)(?: (\w+))? -->")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made to those that are written."""
    made = {
        "index.md": from_root("README.md"),
        "changelog.md": from_root("CHANGELOG.md"),
        "contributing.md": from_root("CONTRIBUTING.md"),
        "toy_objectives.md": toy_objectives(),
        "speed_tables.md": speed_tables(),
    }
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    for picture in sorted((ROOT / "results").glob("*.png")):
        files.append(File.generated(config, f"results/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts what is made where a page has a mark such as <!-- made: evaluation toy_cpu -->."""
    return MARK.sub(lambda mark: MADE[mark[1]](*filter(None, [mark[2]])), markdown)


def from_root(name: str) -> str:
    """A page of the repository's root, with its links as the site needs them."""

    def moved(link: re.Match[str]) -> str:
        target = link[1]
        if re.match(r"\w+:|#", target):
            return link[0]
        return f"]({target.removeprefix('docs/')})" if target.startswith("docs/") else f"]({GITHUB}{target})"

    text = re.sub(r"\]\(([^)\s]+)\)", moved, (ROOT / name).read_text())
    return re.sub(r'(<img [^>]*src=")docs/', r"\1", text)


# Commands


def commands() -> str:
    """Every command with its options, from the parsers."""
    from padir.__main__ import _parser

    parser = _parser()
    lines = [f"- [`{name}`](#{_anchor(name)}): {about}" for name, about, _ in _subcommands(parser)]
    for name, about, command in _subcommands(parser):
        lines += [
            "",
            f"## `{name}` {{ #{_anchor(name)} }}",
            "",
            command.description or f"{about[0].upper()}{about[1:]}.",
        ]
        lines += ["", "```text", command.format_usage().removeprefix("usage: ").rstrip(), "```"]
        for group in command._action_groups:
            lines += _options(group)
    return "\n".join(lines) + "\n"


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """(name, help, parser) of each command; those of `padir t5x` by both words."""
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, command in action.choices.items():
            inner = list(_subcommands(command))
            yield from inner or [(command.prog, helps.get(name, ""), command)]


def _options(group: Any) -> list[str]:
    """A table of a group's options; nothing if it has none but --help."""
    rows = []
    for action in group._group_actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        names = ", ".join(action.option_strings) or (action.metavar or action.dest)
        value = "" if action.nargs == 0 else action.metavar or "|".join(map(str, action.choices or [])) or ""
        several = " ..." if action.nargs in ("+", "*") else ""
        shown = f"{names} {value}{several}" if action.option_strings and value else f"{names}{several}"
        about = (action.help or "").replace("%(default)s", str(action.default)) + (
            " (required)" if action.required else ""
        )
        rows.append(f"| `{_cell(shown)}` | {_cell(about)} |")
    if not rows:
        return []
    title = group.title if group.title not in ("options", "positional arguments") else ""
    head = ["", f"**{title[0].upper()}{title[1:]}**"] if title else []
    return [*head, "", "| option | |", "|---|---|", *rows]


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _cell(text: str) -> str:
    """Text that may stand in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


# Configurations

FOLDERS = {
    "run": "One experiment each: data, size, objective, schedule, with what it cost and scored.",
    "model": "Sizes, which the runs include.",
    "recipe": "What several runs share, which they include.",
    "objective": "Training objectives; after a run's file.",
    "ablation": "One change each; after a run's file.",
    "decode": "Strategies and searches; for `translate`, `evaluate` and other commands that decode.",
    "t5x": "For T5X's own programs ([Work with T5X](t5x.md)).",
}


def configs() -> str:
    """Every gin file with its header."""
    text = ""
    folders = {path.name for path in (ROOT / "configs").iterdir()}
    if folders != set(FOLDERS):
        raise ValueError(f"configs/ has {sorted(folders)}, and the site describes {sorted(FOLDERS)}")
    for folder, about in FOLDERS.items():
        text += f"\n## {folder}\n\n{about}\n"
        for path in sorted((ROOT / "configs" / folder).glob("*.gin")):
            lines = path.read_text().splitlines()
            head = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
            header = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:head])
            text += f"\n### configs/{folder}/{path.name}\n\n```text\n{header}\n```\n"
            body = textwrap.indent("\n".join(lines[head:]).strip(), "    ")
            text += f'\n??? note "bindings"\n    ```python\n{body}\n    ```\n'
    return text


# Python API


def api() -> str:
    """The public names of every package, from their docstrings."""
    text = ""
    packages = sorted(path.parent for path in (ROOT / "padir").rglob("__init__.py"))
    for package in packages:
        name = ".".join(package.relative_to(ROOT).parts)
        if "__all__" in (package / "__init__.py").read_text():
            text += f"\n::: {name}\n"
    return text


# Measurements

TABLES = runpy.run_path(str(ROOT / "scripts" / "result_tables.py"))
SPEED = runpy.run_path(str(ROOT / "scripts" / "speed_table.py"))
MADE = {
    "commands": commands,
    "configs": configs,
    "api": api,
    "evaluation": TABLES["evaluation"],
    "by_steps": TABLES["by_steps"],
    "toy_objectives": TABLES["toy_objectives"],
    "speed": SPEED["table"],
}


def toy_objectives() -> str:
    """The page of every objective and strategy, as `padir tables` wrote it."""
    return (
        "# Every objective and strategy\n\nWritten by [`scripts/toy_objectives.sh`]"
        f"({GITHUB}scripts/toy_objectives.sh), which trains each objective on the built-in corpus (3,000 updates, 2 CPU"
        " cores) and decodes each model with every strategy that has a meaning for it.\n\n"
        + (ROOT / "results" / "toy_objectives.md").read_text()
    )


def speed_tables() -> str:
    """What `padir benchmark` wrote, all of it."""
    text = "# Tables of speed\n\nEach is the output of one call of `padir benchmark` in [`scripts/speed.sh`]"
    text += f"({GITHUB}scripts/speed.sh), on 2 cores of an AMD EPYC.\n"
    for path in sorted((ROOT / "results").glob("speed_*.md")):
        text += f"\n## {path.stem.removeprefix('speed_').replace('_', ' ')}\n\n{path.read_text()}"
        if path.with_suffix(".png").exists():
            text += f"\n![Quality over speed: {path.stem}](results/{path.stem}.png)\n"
    return text
