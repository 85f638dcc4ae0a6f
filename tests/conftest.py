"""Tests run on the CPU. With PADIR_CHECK_TYPES=1, as `.ci/run` has it, they check every jaxtyping annotation of padir.

The checks take a sixth of the time.
"""

import contextlib
import functools
import gc
import os
import shutil
import signal
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

# Before JAX is imported. Set JAX_PLATFORMS to run the tests on another device.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the time would go into optimising programs that run for a millisecond.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Without the emitters of fused kernels compiling takes 0.6 of the time (42 of 74 CPU s in decoding/test_search.py).
# XLA ends the process at a flag that it does not know, as it does not know this one in JAX 0.12.
os.environ.setdefault("XLA_FLAGS", "")
if version("jaxlib").startswith("0.10."):
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
# What one test compiles, others need, and so do other workers, the commands that tests start, and the next run. JAX
# writes an entry in place; a reader of half an entry compiles, and warns, which pyproject.toml ignores.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{tempfile.gettempdir()}/padir-tests-{os.getuid()}")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")

import jax
import jaxtyping
import pytest
from _pytest.doctest import DoctestModule
from jax._src.interpreters import mlir

# JAX lowers each program in an MLIR context of its own, which lives as long as the program. One context for all saves a
# sixth of the time (refinement/: 150 of 183 CPU s) and two thirds of the memory (1.2 of 3.6 GB).
if version("jaxlib").startswith("0.10."):
    mlir.make_ir_context = functools.cache(mlir.make_ir_context)

# Tracing makes millions of objects that live on: looking for garbage so often takes a twentieth of the time.
gc.set_threshold(100_000, 20, 20)

if os.environ.get("PADIR_CHECK_TYPES"):
    root = Path(__file__).parents[1] / "padir"
    # All but the toy corpus, whose grammar has no arrays and calls its functions a hundred thousand times.
    checked = [f"padir.{path.stem}" for path in root.iterdir() if path.stem != "data"]
    checked += [f"padir.data.{path.stem}" for path in (root / "data").iterdir() if path.stem != "toy"]
    jaxtyping.install_import_hook(checked, "beartype.beartype")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Looks for no examples in test files: a file that cannot be imported would be skipped there, and not fail."""
    return [each for each in (yield) if not isinstance(each, DoctestModule)]


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Each compiled program holds memory maps, of which a process has 65,530; thousands of tests would use them up.

    A translator drops its programs at 39,000 (`padir.decoding.program_cache`); a file's tests need up to 13,000.
    """
    yield
    if len(Path("/proc/self/maps").read_bytes().splitlines()) > 24_000:
        jax.clear_caches()


@pytest.fixture(scope="session", autouse=True)
def listening_to_ctrl_c():
    """A shell starts jobs in the background with SIGINT ignored, and so would the commands that tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def endless_patience():
    """Keeps lines about slow work out of what the tests read from stderr: they depend on the machine."""
    from padir.reporting import patience

    patience.SECONDS = 3_600.0


@pytest.fixture(scope="session")
def vocab_path(tmp_path_factory):
    """The vocabulary of counted words (`support.small_corpus`) as a file."""
    from support.small_corpus import small_tokenizer

    path = tmp_path_factory.mktemp("vocabulary") / "vocab.model"
    small_tokenizer(path)
    return path


@pytest.fixture(scope="session")
def tokenizer(vocab_path):
    from padir.text.tokenizer import Tokenizer

    return Tokenizer.load(vocab_path)


@pytest.fixture(scope="session")
def translator(tokenizer):
    """A model that refines, of random weights."""
    from support.tiny_model import random_translator

    return random_translator(tokenizer)


@pytest.fixture
def open_folder():
    """A folder that another user can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="padir-tests-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def blank_config():
    """gin without bindings, before a test and after it."""
    from padir import config

    config.clear()
    yield
    config.clear()


def pytest_configure():
    """Removes what was compiled more than a week ago."""
    compiled, week = Path(tempfile.gettempdir()) / f"padir-tests-{os.getuid()}", 7 * 24 * 3_600.0
    compiled.mkdir(mode=0o700, exist_ok=True)
    for entry in compiled.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another worker removes it, too
            if time.time() - entry.stat().st_mtime > week:
                entry.unlink()


@pytest.fixture
def unchecked():
    """Switches jaxtyping's checks off, as they are for a user."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """The fake store behind gs:// (`support.bucket`), empty, and an empty folder of copies of its folders."""
    from support.bucket import Bucket, install, nothing

    from padir.storage import remote

    install()
    monkeypatch.setattr(Bucket, "root", tmp_path / "buckets")
    monkeypatch.setattr(Bucket, "calls", [])
    monkeypatch.setattr(Bucket, "before", staticmethod(nothing))
    monkeypatch.setattr(remote, "_WAITS", [0.0, 0.0])
    monkeypatch.setenv("PADIR_COPIES", str(tmp_path / "copies"))
    remote._fetched.cache_clear()
    yield Bucket
    remote._fetched.cache_clear()
