"""Lines about work that takes long, and none about work that does not."""

import signal
import threading
import time
import types

import jax
import jax.numpy as jnp
import pytest

from padir.reporting import patience


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(patience, "SECONDS", 0.05)


def wait_for(capsys, text):
    """Waits until stderr has a text."""
    until, seen = time.monotonic() + 60, ""
    while text not in (seen := seen + capsys.readouterr().err) and time.monotonic() < until:
        time.sleep(0.01)
    assert text in seen


def test_work_that_takes_long_is_told_of(capsys, impatient):
    with patience.told("loading it"):
        wait_for(capsys, "padir: loading it ...\n")
        wait_for(capsys, "padir: loading it, for 1 s ...\n")
    with patience.told("nothing"):
        pass
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_compiling_is_told_of(capsys, impatient, monkeypatch):
    compiled = jax.stages.Lowered.compile

    def slowly(lowered):
        wait_for(capsys, "padir: compiling ...\n")
        return compiled(lowered)

    patience.tell_of_compiling()
    lowered = jax.jit(lambda x: x * 3 + 1).lower(jnp.arange(7))
    monkeypatch.setattr(jax.stages.Lowered, "compile", slowly)
    lowered.compile()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""  # the timer ended with the compiler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopping_is_told_of_while_the_main_thread_is_busy(capsys, impatient, number):
    previous = signal.signal(number, lambda *_: None)  # as in XLA, nothing stops the block
    try:
        with patience.told_of_stopping():
            signal.raise_signal(number)
            wait_for(capsys, "padir: stopping, once the step or program that runs has ended ...\n")
    finally:
        signal.signal(number, previous)


def test_nohup_keeps_its_word():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert patience.stop_signals() == [signal.SIGINT, signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_a_quick_stop_is_not_told_of(capsys, monkeypatch):
    previous = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with patience.told_of_stopping():
            signal.raise_signal(signal.SIGTERM)
        assert capsys.readouterr().err == "" and not [t for t in threading.enumerate() if "tell_of" in t.name]
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_the_rate_after_a_resume_counts_new_work_alone(capsys, monkeypatch):
    now = iter([0.0, 10.0, 14.0])  # the bar begins, 80 earlier results are read, 20 new ones are made
    monkeypatch.setattr(patience, "time", types.SimpleNamespace(monotonic=lambda: next(now)))
    with patience.progress_bar("distill", 100, "sentences") as advance:
        advance(80, fresh=False)
        advance(20)
    assert capsys.readouterr().err == "distill: 100 of 100 sentences, 5.0 a second\n"
