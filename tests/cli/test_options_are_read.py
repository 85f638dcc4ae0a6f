"""The code of a command reads each of its options: an option without effect is a lie."""

import argparse
import ast
from pathlib import Path

import pytest

import padir
from padir.cli import arguments
from padir.cli.entry import GROUPS, build_parser
from padir.decoding.options import Decoding
from padir.errors import PadirError
from padir.options import OPTIONS
from padir.studies.analysis import analyses

# Options that `padir.cli.running` reads for all commands.
OF_ALL = {"help", "gin_file", "allow_imports", "_", "json", "coordinator", "configs"}
COMMANDS = [command.name for group in GROUPS.values() for command in group]
# Words that are no default of a decoding option; numbers get another than theirs.
WORDS = {"mode": "causal", "strategy": "mask_predict", "canvas": "mask", "rerank": "mbr", "precision": "int8"}
WORDS |= {"shortlist": "missing.npz", "placeholders": "urls"}


def functions():
    """The functions of `padir.cli`, by name."""
    found = {}
    for path in (Path(padir.__file__).parent / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, []).append(node)
    return found


def is_args(node):
    return isinstance(node, ast.Name) and node.id == "args"


def read_by(command):
    """What a command's function, and the functions of `padir.cli` that it names, read from `args`; and the latter."""
    known, todo, seen, read = functions(), [f"run_{command}"], set(), set()
    while todo:
        if (name := todo.pop()) in seen:
            continue
        seen.add(name)
        for node in (node for function in known[name] for node in ast.walk(function)):
            if isinstance(node, ast.Name) and node.id in known:
                todo.append(node.id)
            if isinstance(node, ast.Attribute) and is_args(node.value):
                read.add(node.attr)
            if isinstance(node, ast.Call) and any(map(is_args, node.args)):
                read |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    return read | ({"train", "validation", "test"} if "files_of" in seen else set()), seen


def is_decoded(parser, option, make):
    """True if what a command makes of its words has the value of a decoding option; a file that it lacks is read."""
    is_flag = next(action for action in parser._actions if action.dest == option).nargs == 0
    args = parser.parse_args(
        [f"--{option}", *([] if is_flag else [WORDS.get(option, "3" if OPTIONS[option].default == 2 else "2")])]
    )
    for other in {*OPTIONS, "gin"} - {option}:  # some have other defaults in a command
        setattr(args, other, None)
    try:
        made = make(args)
    except PadirError as error:
        return WORDS.get(option, "") in str(error)
    (decoding,) = made if isinstance(made, list) else [made]
    return getattr(decoding, option) != OPTIONS[option].default


def parsers_of(command):
    """The parser of a command, or of each of its actions."""
    (commands,) = (action for action in build_parser([command])._actions if action.dest == "command")
    parser = commands.choices[command]
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [*actions[0].choices.values()] if actions else [parser]


def unread(command):
    """The options of a command that nothing reads."""
    (read, called), found = read_by(command), set()
    for parser in parsers_of(command):
        for each in (*parser._actions, *parser._mutually_exclusive_groups):
            each.required = False
        options = {action.dest for action in parser._actions} - OF_ALL - {*(parser.get_default("binds") or {})}
        if makers := called & {"decoding_of", "decodings_of"}:
            make = getattr(arguments, max(makers))  # `decodings_of` calls the other
            options -= {option for option in (options & OPTIONS.keys()) - read if is_decoded(parser, option, make)}
        found |= (options | {*(parser.get_default("settings") or {}).values()}) - read
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_read(command):
    assert unread(command) == set()


def test_what_no_code_of_a_command_reads_is_found(monkeypatch):
    read = {command: read_by(command)[0] for command in ("vocab", "translate")}
    assert "size" in read["vocab"] - read["translate"] and "padir.data.prepare:prepare" not in read["vocab"]
    monkeypatch.setattr(arguments, "decoding_of", lambda args, default=None, **values: Decoding())
    assert {"beam", "seed", "shortlist"} <= unread("translate") & unread("evaluate")


def test_each_option_of_an_analysis_is_read_by_all_or_listed():
    """A new option is offered by itself; then somebody has to say which subjects read it."""
    (parser,) = parsers_of("analyse")
    of_all = {"num_steps", "strategy", "canvas", "drop_repeats", "fusion", "batch_size", "seed", "placeholders"}
    assert {*parser.get_default("decoding_names")} - of_all == analyses.READ_BY.keys() - {"strategies", "passes"}
