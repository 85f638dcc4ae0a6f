"""Pages of the site that are made when it is built: commands, API, the model in the browser. A hook of mkdocs.

Nothing here is committed: each page is made of the parsers, the gin files or the docstrings, below an introduction that
stands here. The tables within pages are committed (`fill_tables.py`).
"""

import argparse
import ast
import os
import re
import runpy
import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import latex2mathml.converter
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
GITHUB = "https://github.com/padir/padir/blob/main/"
MARK = re.compile(r"<!-- made: (\w+) -->")
FORMULA = re.compile(r"^```math\n(.+)\n```$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Puts a page for each package into the navigation, below that of the API."""
    (reference,) = (part["Reference"] for part in config.nav if "Reference" in part)
    reference[-1] = {"Python API": ["api.md", *({name: f"api/{name}.md"} for name, _ in packages())]}
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made to those that are written."""
    made = {
        "commands.md": COMMANDS + commands(),
        "api.md": API + api(),
        "index.md": from_root("README.md"),
        "changelog.md": from_root("CHANGELOG.md"),
        "contributing.md": from_root("CONTRIBUTING.md"),
    }
    made |= {f"api/{name}.md": f"# {name}\n\n::: {name}\n" for name, _ in packages()}
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    for picture in sorted((ROOT / "results").glob("*.png")):
        files.append(File.generated(config, f"results/{picture.name}", abs_src_path=str(picture)))
    folder = Path(tempfile.mkdtemp(), "try")
    runpy.run_path(str(ROOT / "scripts" / "try_page.py"))["build"](folder)
    for path in folder.iterdir():
        files.append(File.generated(config, f"try/{path.name}", content=path.read_bytes()))
    shutil.rmtree(folder.parent)
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts what is made where a page has a mark such as <!-- made: configs -->, and MathML for formulas.

    Links of a page to the repository's root, which work on GitHub, lead to the site's copies.
    """
    markdown = markdown.replace("](../CONTRIBUTING.md", "](contributing.md").replace("](../results/", "](results/")
    made = MARK.sub(lambda mark: MADE[mark[1]](), markdown)
    return FORMULA.sub(lambda formula: latex2mathml.converter.convert(formula[1], display="block"), made)


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

COMMANDS = """# Commands

This page lists padir's commands and their options; `padir COMMAND --help` prints the same text. Every command takes
gin configuration (`--gin_file FILE`, repeatable; `--gin.NAME=VALUE`) and `--json FILE`, which writes its results.

On bad input a command prints one line on standard error and exits with status 2. It exits with 1 if an address cannot
be reached, and with 130 on Ctrl-C. A table of `evaluate` notes the combinations of options that the model refuses; with
at least one other row, the status is 0.

Compiled programs are kept in `~/.cache/padir/jax`, so that the second call of a command starts faster.
`JAX_COMPILATION_CACHE_DIR` names another folder; if it is empty, programs are not kept. In Python, `Translator.load`
also keeps programs there, unless JAX's cache is already set. `padir.compile_cache(FOLDER)` names another folder.

`--data`, `--model`, `--model_dir` and `--rerank` also take addresses such as `gs://bucket/run`. So does `--output` of
`prepare`, `bigrams`, `average` and `distill`. [Buckets](running.md#buckets) says where padir keeps copies of these
folders.

"""


def commands() -> str:
    """Every command with its options, from the parsers."""
    from padir.cli.entry import GROUPS, build_parser

    os.environ["COLUMNS"] = "110"  # argparse wraps usage to it
    lines = []
    for title, group in GROUPS.items():
        links = (f"[`padir {command.name}`](#padir-{command.name}): {command.sentence}" for command in group)
        lines += [f"**{title}**", "", *(f"- {link}" for link in links), ""]
    for command in _inner(build_parser()):
        lines += _section(command, "##")
    return "\n".join(lines) + "\n"


def _inner(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parsers of a parser's commands."""
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [command for action in found for command in action.choices.values()]


def _section(command: argparse.ArgumentParser, heading: str) -> list[str]:
    """A command's heading, description, usage and options; then those of the commands within."""
    usage = command.format_usage().removeprefix("usage: ").replace("\n" + " " * 7, "\n").rstrip()
    anchor = command.prog.replace(" ", "-")
    lines = ["", f"{heading} `{command.prog}` {{ #{anchor} }}", "", command.description or ""]
    lines += ["", "```text", usage, "", command.epilog or "", "```"]
    if inner := _inner(command):
        return lines + [line for each in inner for line in _section(each, heading + "#")]
    return lines + [line for group in command._action_groups for line in _options(group)]


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
        about = (action.help or "").replace("%(default)s", str(action.default)) + " (required)" * action.required
        rows.append(f"| `{_cell(shown)}` | {_cell(about)} |")
    if not rows:
        return []
    title = group.title if group.title not in ("options", "positional arguments") else ""
    head = ["", f"**{title[0].upper()}{title[1:]}**"] if title else []
    return [*head, "", "| option | |", "|---|---|", *rows]


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
    folders = {path.parent.name for path in (ROOT / "configs").glob("*/*.gin")}
    if folders != set(FOLDERS):
        raise ValueError(f"configs/ has {sorted(folders)}, and the site describes {sorted(FOLDERS)}")
    for folder, about in FOLDERS.items():
        text += f"\n### {folder}\n\n{about}\n"
        for path in sorted((ROOT / "configs" / folder).glob("*.gin")):
            lines = path.read_text().splitlines()
            head = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
            header = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:head])
            text += f"\n#### configs/{folder}/{path.name}\n\n```text\n{header}\n```\n"
            body = textwrap.indent("\n".join(lines[head:]).strip(), "    ")
            text += f'\n??? note "bindings"\n    ```python\n{body}\n    ```\n'
    return text


# Python API

API = """# Python API

`import padir` gives the translator and its options. The other packages are imported by name, such as
`from padir.refinement import refine`. Names of arrays end in [axis letters](architecture.md#axis-letters).

"""


def packages() -> Iterator[tuple[str, str]]:
    """(name, first paragraph of its docstring) of each package that says what is public in it."""
    for path in sorted((ROOT / "padir").rglob("__init__.py")):
        module = ast.parse(path.read_text())
        if "__all__" in path.read_text():
            paragraph = (ast.get_docstring(module) or "").split("\n\n")[0]
            yield ".".join(path.parent.relative_to(ROOT).parts), " ".join(paragraph.split())


def api() -> str:
    """The list of packages."""
    return "\n".join(f"- [`{name}`](api/{name}.md): {about}" for name, about in packages())


MADE = {"configs": configs}
