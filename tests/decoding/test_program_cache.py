"""Compiled programs are dropped when memory mappings run short, and only then."""

import os
import signal
import time

import jax
import jax.numpy as jnp
import pytest
from support.refusals import refuses
from support.tiny_model import random_translator

import padir
from padir import Decoding
from padir.decoding.program_cache import ProgramCache, mappings
from padir.measuring import benchmark


@pytest.fixture
def counted():
    """A jitted function, and a number of mappings that a test sets."""
    return jax.jit(lambda x: x + 1), {"now": 10}


def test_programs_stay_while_there_is_room(counted):
    function, number = counted
    programs = ProgramCache(lambda: (number["now"], 100), [function])
    function(jnp.zeros(2))
    programs.make_room()
    assert function._cache_size() == 1 and programs.times_dropped == 0


def test_they_go_when_there_is_none_and_come_back(counted):
    function, number = counted
    programs = ProgramCache(lambda: (number["now"], 100), [function])
    function(jnp.zeros(2))
    number["now"] = 61
    programs.make_room()
    assert function._cache_size() == 0 and programs.times_dropped == 1
    assert function(jnp.zeros(2)).tolist() == [1, 1]


def test_nothing_is_counted_unless_something_was_compiled(counted):
    function, _ = counted
    asked = []
    programs = ProgramCache(lambda: asked.append(1), [function])
    for _ in range(3):
        function(jnp.zeros(2))
        programs.make_room()
    assert len(asked) == 1
    function(jnp.zeros(3))
    programs.make_room()
    assert len(asked) == 2


def test_dropping_frees_mappings():
    before = mappings()
    if before is None:
        pytest.skip("only Linux says how many mappings a process has")
    function = jax.jit(lambda x: jnp.sort(jnp.tanh(x) @ x.T, axis=0).sum())
    programs = ProgramCache(lambda: (1, 1), [function])
    for n in range(2, 6):
        function(jnp.ones((n, n)))
    more = mappings()[0] - before[0]
    assert more > 4
    programs.make_room()
    assert mappings()[0] - before[0] < more / 2
    assert before[1] > 1_000


@pytest.mark.slow
def test_a_benchmark_never_times_compiling(tokenizer, monkeypatch):
    translator = random_translator(tokenizer)
    monkeypatch.setattr("padir.decoding.program_cache.PROGRAMS.mappings", lambda: (1, 1))
    systems = benchmark.systems([("tiny", translator)], [Decoding(num_steps=1)])
    batches = [
        benchmark.TimedBatch(("one",)),
        benchmark.TimedBatch(("one two three four five six seven eight nine ten",)),
    ]
    refuses(benchmark.measure, "1 systems and 2 batches need more compiled", systems, batches, repeats=1)
    monkeypatch.setattr("padir.decoding.program_cache.PROGRAMS.mappings", lambda: (1, 10))
    for batch in batches:  # one after the other they fit: those of the first do not count for the second
        assert benchmark.measure(systems, [batch], repeats=1)


class TestCompileCache:
    @pytest.fixture(autouse=True)
    def settings(self, monkeypatch):
        names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
        before = {name: getattr(jax.config, name) for name in names}
        monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", raising=False)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)  # the default of JAX
        yield
        for name, value in before.items():
            jax.config.update(name, value)

    def test_a_named_folder_keeps_quick_programs_too(self, monkeypatch, tmp_path):
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
        assert padir.compile_cache() == tmp_path
        assert jax.config.jax_persistent_cache_min_compile_time_secs == 0.0
        assert padir.compile_cache(tmp_path / "other") == tmp_path / "other"
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "other")

    def test_a_time_that_the_user_sets_stays(self, monkeypatch, tmp_path):
        monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "1")
        padir.compile_cache(tmp_path)
        assert jax.config.jax_persistent_cache_min_compile_time_secs == 1.0

    def test_the_folder_without_a_name(self, monkeypatch, tmp_path):
        monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert padir.compile_cache() == tmp_path / "padir" / "jax"
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
        assert padir.compile_cache() is None

    @pytest.mark.parametrize("chosen", [None, "", "mine"])
    def test_loading_a_model_sets_the_folder_that_nobody_chose(self, monkeypatch, tmp_path, chosen):
        monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        jax.config.update("jax_compilation_cache_dir", chosen)
        refuses(padir.Translator.load, "no_such_model", tmp_path / "no_such_model")
        expected = str(tmp_path / "padir" / "jax") if chosen is None else chosen
        assert jax.config.jax_compilation_cache_dir == expected


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning", "ignore:This process:DeprecationWarning")
def test_a_forked_process_is_refused_and_does_not_wait_for_ever(tokenizer):
    translator = random_translator(tokenizer)
    assert translator.predict_lengths(["eins"])
    child = os.fork()
    if child == 0:
        status = 1
        for call in (translator.translate, translator.predict_lengths, lambda texts: padir.Translator.load()):
            try:
                call(["eins"])
            except padir.PadirError as error:
                status = 0 if 'get_context("spawn")' in str(error) else 1
            if status:
                break
        os._exit(status)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.1)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the forked process waits")
    assert status == 0 and translator.translate(["eins"])[0].passes
