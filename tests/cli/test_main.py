"""`main`: exit statuses, messages that name options, places to write to, and the help."""

import argparse
import inspect
import logging
import os
import pkgutil
import shlex

import jax
import pytest
from support.commands import refused, results, run
from support.refusals import refuses

import padir
from padir.cli import build_parser, console, entry
from padir.cli.entry import GROUPS
from padir.cli.options import shared, study
from padir.cli.parser import default_of
from padir.interop.ctranslate2 import COMPUTE_TYPES
from padir.pretrained import DEFAULT, PRETRAINED
from padir.refinement.strategies import STRATEGIES
from padir.storage.files import check_writable, write_text
from padir.studies.analysis import analyses as analysis
from padir.studies.ising import subjects as ising

COMMANDS = [command for commands in GROUPS.values() for command in commands]


class TestPlaces:
    """Where nothing can be written is told before the work, here before a model is looked for."""

    @pytest.mark.parametrize(
        "command",
        [
            "evaluate --task toy_de_en --output",
            "translate --html",
            "score --input x --target x --json",
            "analyse attention --output",
        ],
    )
    def test_are_tried_before_the_work(self, command, tmp_path, capsys):
        (tmp_path / "file").touch()
        place = tmp_path / "file" / "new" / "x"
        errors = refused(capsys, f"{command} {place} --model no_such_model")
        assert f"cannot write {place} (Not a directory): give another" in errors
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    @pytest.mark.parametrize(
        "command",
        ["translate --model no_such_model --json", "score --input x --target x --model x --output"]
        + ["vocab --task toy_de_en --size 600 --output"],
    )
    def test_a_folder_is_no_file(self, command, tmp_path, capsys):
        errors = refused(capsys, f"{command} {tmp_path}")
        assert f"cannot write {tmp_path} (Is a directory)" in errors

    def test_a_pipe_is_written_to(self):
        """A shell's /dev/stdout leads to a pipe, whose own name is no path."""
        reader, writer = os.pipe()
        check_writable(f"/dev/fd/{writer}", file=True)
        write_text(f"/dev/fd/{writer}", "x")
        assert os.read(reader, 10) == b"x"
        os.close(reader), os.close(writer)

    def test_folders_may_be_made_and_are_named(self, tmp_path, capsys):
        command = "translate eins --model no_such_model"
        errors = refused(capsys, f"{command} --output {tmp_path}/new/b")
        assert f"padir: {tmp_path}/new does not exist, and will be made" in errors and "no_such_model" in errors
        assert "will be made" not in refused(capsys, f"{command} --output {tmp_path}/x")
        assert not list(tmp_path.iterdir())


def test_no_option_loses_its_name():
    """Words that no option names are few: an option whose name another parser takes away would be read as one."""
    known = {"train": "configs", "translate": "texts", "tables": "files", "compare": "files", "ising": "subject"}
    known |= {"analyse": "subject", "audit": "own", "t5x": "action", "list": "kind"}
    (commands,) = (action for action in build_parser()._actions if action.dest == "command")
    for name, command in commands.choices.items():
        nameless = [action.dest for action in command._actions if not action.option_strings]
        assert nameless == known.get(name, "").split()


def parsers(parser):
    """A parser and the parsers of its commands, at every depth."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from parsers(child)


def test_options_are_few():
    """Whoever adds an option raises the number, and says which one leaves for it."""
    names = {
        action.option_strings[0]
        for parser in parsers(build_parser())
        for action in parser._actions
        if action.option_strings and not isinstance(action, argparse._HelpAction)
    }
    assert len(names) == 77, " ".join(sorted(names))


def test_options_say_what_the_library_says():
    """Parsing imports no module of the library, so that types and choices stand in two places."""
    actions = [action for parser in parsers(build_parser()) for action in parser._actions]
    for action in actions:
        if vars(action).get("owner") and (default := default_of(action.owner, action.parameter)) not in (None, ()):
            kind = bool if isinstance(action, argparse.BooleanOptionalAction) else action.type
            assert {type(each) for each in (default if isinstance(default, tuple) else [default])} == {kind}
        for name, (owner, _) in vars(action).get("settings", {}).items():
            assert (
                owner.endswith("ising.subjects:run")
                or name in inspect.signature(pkgutil.resolve_name(owner)).parameters
            )
    assert shared.MODEL == DEFAULT
    assert shared.CTRANSLATE2 == COMPUTE_TYPES
    assert study.ISING == ising.SUBJECTS and study.ANALYSES == (*analysis.SUBJECTS,)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("fly", "padir: error: argument COMMAND: there is no value 'fly': known are vocab, prepare,"),
        ("tranlsate", "did you mean 'translate'? (`padir --help` explains)"),
        ("--verson", "no option --verson: did you mean '--version'? (`padir --help` explains)"),
        ("translate --num_steps x", "padir translate: error: argument --num_steps: invalid int value: 'x' (`p"),
        ("translate --num_stepz=3", "did you mean '--num_steps'? (`padir translate --help` explains)"),
        ("translate --modl m", "there is no option --modl: did you mean '--model'?"),
        ("translate --xyzzyxyzzy", "there is no option --xyzzyxyzzy (`padir translate --help` explains)"),
        ("translate --precision int4", "argument --precision: there is no value 'int4': did you mean"),
        ("t5x export --modle m", "(`padir t5x export --help` explains)"),
        ("translate --target_language xx", "no option --target_language: a model knows its languages, "),
        ("score file", "padir score: error: "),
        ("train toy_cpu --num_steps 9", "--steps trains"),
        ("train toy_cpu --batch_size 9", "--rows trains"),
        ("train toy_cpu --num_lengths 9", "give it to --validate"),
        ("train toy_cpu -m runs/x", "options have two hyphens, as --model_dir"),
    ],
)
def test_wrong_words_end_with_a_line_that_helps(capsys, command, words):
    errors = refused(capsys, command)
    assert words in errors and errors.count("\n") == 1


def test_no_command_prints_the_commands(capsys):
    status, _, errors = run(capsys, "")
    assert status == 2 and GROUPS["data"][0].sentence in errors


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each.name)
def test_the_example_of_a_command_can_be_parsed(command):
    assert build_parser([command.name]).parse_args([command.name, *shlex.split(command.paragraphs[-1])[2:]]).module


@pytest.mark.parametrize(("status", "at_once"), [(130, True), (0, False), (2, False)])
def test_an_interrupted_process_exits_at_once(monkeypatch, status, at_once):
    """The exit would wait for a program that XLA compiles, and crash after it."""

    def exit_at_once(status):
        raise RuntimeError(f"at once: {status}")

    monkeypatch.setattr("padir.cli.entry.main", lambda: status)
    monkeypatch.setattr("os._exit", exit_at_once)
    refuses(entry.command, str(status), error=RuntimeError if at_once else SystemExit)


def test_a_process_tells_a_warning_once(monkeypatch, capfd):
    loggers = [logging.getLogger(name) for name in ("padir", "sacrebleu")]
    for logger in loggers:
        monkeypatch.setattr(logger, "propagate", True)  # afterwards as before

    def warn():
        console.log_to_stderr()
        for logger in loggers:
            logger.warning("mind")
        return 0

    monkeypatch.setattr("padir.cli.entry.main", warn)
    root = logging.StreamHandler()  # Orbax's import makes one
    monkeypatch.setattr(logging.getLogger(), "handlers", [root])
    with pytest.raises(SystemExit):
        entry.command()
    assert capfd.readouterr().err == "padir: warning: mind\npadir: warning: sacrebleu: mind\n"


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"padir {padir.__version__}\n", "")


def test_help_lists_commands_in_groups_with_a_sentence_each(capsys):
    out = run(capsys, "--help")[1]
    for title, commands in GROUPS.items():
        assert f"\n{title}:\n" in out
        assert all(f"{command.name} " in out and command.sentence in out for command in commands)
        assert all(command.sentence[0].isupper() and command.sentence[-1] == "." for command in commands)


def test_what_comes_with_padir_is_listed(tmp_path, capsys):
    found, out = results(capsys, tmp_path / "list.json", "list")
    assert set(found) == {"configs", "models", "strategies", "tasks"}
    assert found["strategies"]["threshold"].endswith(" [threshold:tau=0.9,final_tau=None,schedule=None]")
    assert set(found["strategies"]) == set(STRATEGIES) and set(found["models"]) == set(PRETRAINED)
    assert {"toy_cpu", "ablation/stages_1"} <= {*found["configs"]} and found["tasks"]["toy_de_en"] == "built in"
    for kind, lines in found.items():
        assert f"{kind}:\n" in out and all(name in out and line.split()[0] in out for name, line in lines.items())
    assert run(capsys, "list models")[1].startswith("models:\n  de_en ")


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("train toy_cpu --data data/toy --model_dir runs/toy", "take fewer rows at a time, with"),
        ("benchmark --steps 2 --gin_file=toy_cpu", "--gin.Batching.accumulation_steps=2"),
        ("benchmark --model runs/toy", "use smaller batches"),
    ],
)
def test_too_little_memory_of_a_device_has_a_remedy(command, remedy, tmp_path, monkeypatch, capsys):
    def exhausted(_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")

    monkeypatch.chdir(tmp_path)
    for name in ("padir.cli.making.run_train", "padir.cli.measuring.run_benchmark", "padir.cli.running._fetch"):
        monkeypatch.setattr(name, exhausted if ".run_" in name else lambda _: None)
    assert remedy in refused(capsys, command)
