"""Tests run on the CPU, and every jaxtyping annotation of padir is checked while they do."""

import os
import shutil
import tempfile

# Before JAX is imported. Set JAX_PLATFORMS to run the tests on another device.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the time would go into optimising programs that run for a millisecond.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# What one test compiles, others need, and so do the commands that tests start. Every worker has its own folder: JAX
# writes an entry in place, and a reader of half an entry warns.
os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE = f"{tempfile.gettempdir()}/padir-tests-{os.getpid()}"
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import jax
import jaxtyping
import pytest

jaxtyping.install_import_hook("padir", "beartype.beartype")


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Each compiled program holds memory maps, of which a process has 65,530; thousands of tests would use them up."""
    yield
    jax.clear_caches()


def pytest_unconfigure():
    shutil.rmtree(_CACHE, ignore_errors=True)
