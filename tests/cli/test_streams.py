"""Standard input and output that are closed, full, or read by somebody who goes away."""

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.commands import refused

from padir.cli import main
from padir.reporting.tables import show

ROOT = Path(__file__).parents[2]


def translate(model, options=""):
    """The words of a command."""
    return f"translate --model {model} --num_steps 1 {options}".split()


def test_a_reader_that_goes_away_ends_the_process_quietly(short, tmp_path):
    (tmp_path / "in.txt").write_bytes(b"eins zwei\n" * 1_500)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": ""}
    command = f"{sys.executable} -m padir translate --model {short} --num_steps 1 < {tmp_path}/in.txt"
    command += " | head -1; echo ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True)
    assert done.stdout.splitlines()[1] == b"141" and set(done.stderr.splitlines()) <= {b"padir: compiling ..."}


@pytest.mark.parametrize("standing", ["full", "gone"])
def test_output_that_fails_at_the_end_is_told_once(causal, tmp_path, monkeypatch, capsys, standing):
    """A few bytes stay in the buffer until the end of the process, where Python would print a traceback."""
    for name in ("x.de", "x.en"):
        (tmp_path / name).write_text("eins\n")
    if standing == "full":
        out = open("/dev/full", "w")
    else:
        reader, writer = os.pipe()
        os.close(reader)
        out = os.fdopen(writer, "w")
    monkeypatch.setattr("sys.stdout", out)
    status = main(f"score --model {causal} --input {tmp_path}/x.de --target {tmp_path}/x.en".split())
    out.close()  # as at exit: nothing is left that fails
    expected = (2, "padir: error: No space left on device\n") if standing == "full" else (141, "")
    assert (status, capsys.readouterr().err) == expected


def test_a_slow_pipe_gets_each_translation_at_once(short, monkeypatch):
    (source, typed), (shown, out) = os.pipe(), os.pipe()
    with open(source) as stdin, open(out, "w") as stdout, open(shown) as answers:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stdout", stdout)
        command = threading.Thread(target=main, args=[translate(short)])
        command.start()
        for line in (b"eins\n", b"zwei drei\n", b"\n"):
            os.write(typed, line)  # nothing further comes before there is an answer
            assert select.select([answers], [], [], 60)[0]
            assert answers.readline().endswith("\n")
        os.close(typed)
        command.join(60)
        assert not command.is_alive()


def test_a_terminal_is_told_what_to_type_and_answers(short, capfd, monkeypatch):
    user, terminal = os.openpty()
    os.write(user, b"eins\n\x04")
    with open(terminal) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(translate(short)) == 0
    os.close(user)
    out, errors = capfd.readouterr()
    assert out.count("\n") == 1 and "Ctrl-D ends" in errors


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_is_prompted_for_each_sentence(terminal, short, capsys, monkeypatch):
    """On the terminal; where the translations go elsewhere, the prompt does not go with them."""
    prompts, typed = [], iter(["eins", "zwei drei"])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)

    def answer(prompt):
        written = capsys.readouterr()
        assert written.err.endswith("de> ") != terminal and "de>" not in written.out
        prompts.append((prompt, written.out.count("\n")))
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", answer)
    user, keyboard = os.openpty()
    monkeypatch.setattr("sys.stdin", open(keyboard))
    assert main(translate(short)) == 0
    os.close(user), sys.stdin.close()
    prompt = "de> " if terminal else ""
    assert prompts == [(prompt, 0), (prompt, 1), (prompt, 1)]  # each translation comes before the next prompt
    assert capsys.readouterr().err.endswith("\n")  # what follows the last prompt begins a line


@pytest.mark.parametrize(("terminals", "shown"), [(("stderr",), True), (("stdout", "stderr"), False), ((), False)])
def test_progress_is_shown_where_the_text_does_not_go(short, tmp_path, monkeypatch, terminals, shown):
    """The output may go to a file that --output names, or to standard output."""
    (tmp_path / "in.txt").write_text("eins\n")
    user, terminal = os.openpty()
    with open(os.devnull, "w") as nowhere, open(terminal, "w") as tty:
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(f"sys.{name}", tty if name in terminals else nowhere)
        monkeypatch.setenv("TERM", "xterm")
        command = translate(short, f"--input {tmp_path}/in.txt")
        assert main(command) == 0
        assert (b"lines/s" in drained(user)) == shown
        assert main([*command, f"--output={tmp_path}/out.txt"]) == 0
        assert (b"lines/s" in drained(user)) == ("stderr" in terminals)
    os.close(user)


def drained(descriptor):
    """Bytes that are there to read."""
    content = b""
    while select.select([descriptor], [], [], 0)[0]:
        content += os.read(descriptor, 1 << 16)
    return content


@pytest.mark.parametrize("closed", ["stdin", "stdout"])
def test_a_closed_standard_stream_is_told(short, monkeypatch, capsys, closed):
    monkeypatch.setattr(f"sys.{closed}", None)  # as Python starts with a descriptor that is closed
    assert main(translate(short)) == 2
    assert "standard input or output is closed" in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_gets_no_control_characters(short, tmp_path, monkeypatch, capfd, terminal):
    """A model's pieces may hold anything, and a tab is the only control character that a file gets."""
    (tmp_path / "x").write_text("eins\n")
    monkeypatch.setattr(
        "padir.text.tokenizer.Tokenizer.decode", lambda self, ids, source=None: "\x1b]0;title\x07a\x9b2J\tb"
    )
    monkeypatch.setattr("sys.stdout", open(os.dup(1), "w"))
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    assert main(translate(short, f"--input {tmp_path}/x")) == 0
    sys.stdout.close()
    expected = " ]0;title a 2J b\n" if terminal else " ]0;title a 2J\tb\n"
    assert capfd.readouterr().out == expected


def test_messages_and_tables_hold_no_control_characters(tmp_path, capsys):
    error = refused(capsys, f"translate --model {tmp_path}/\x1b[2J")
    assert "\x1b" not in error and error.count("\n") == 1
    show("a title", ["column"], [["\x1b[31mred"]])
    assert "\x1b" not in (out := capsys.readouterr().out) and "\ufffd[31mred" in out


def test_a_command_gives_the_callers_handlers_of_signals_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]
    assert main(["list", "strategies"]) == 0
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)] == before
