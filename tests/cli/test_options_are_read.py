"""The code of a command reads each of its options: an option without effect is a lie."""

import argparse
import ast
from pathlib import Path

import pytest

import padir
from padir.cli.entry import GROUPS, build_parser
from padir.options import OPTIONS

# Options that `padir.cli.running` reads for all commands.
OF_ALL = {"help", "gin_file", "allow_imports", "_", "json", "coordinator", "configs"}
COMMANDS = [command.name for group in GROUPS.values() for command in group]


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
    """Names that a command's function, and the functions of `padir.cli` that it names, read from `args`."""
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
    read |= {*OPTIONS} if {"decoding_of", "decodings_of"} & seen else set()
    return read | ({"train", "validation", "test"} if "files_of" in seen else set())


def parsers_of(command):
    """The parser of a command, or of each of its actions."""
    (commands,) = (action for action in build_parser([command])._actions if action.dest == "command")
    parser = commands.choices[command]
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [*actions[0].choices.values()] if actions else [parser]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_read(command):
    read = read_by(command)
    for parser in parsers_of(command):
        of_training = parser.get_default("binds") or {}
        unread = {action.dest for action in parser._actions} - OF_ALL - read - {*of_training}
        unread |= {*(parser.get_default("settings") or {}).values()} - read
        assert unread == set()


def test_what_no_code_of_a_command_reads_is_found():
    assert "beam" not in read_by("vocab") and "beam" in read_by("translate")
    assert "padir.data.prepare:prepare" not in read_by("vocab")
