"""Tests run on the CPU, and every jaxtyping annotation of padir is checked while they do."""

import os

# Before JAX is imported. Set JAX_PLATFORMS to run the tests on another device.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the time would go into optimising programs that run for a millisecond.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Commands that run in a test must not fill the user's cache.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", "")

import jaxtyping

jaxtyping.install_import_hook("padir", "beartype.beartype")
