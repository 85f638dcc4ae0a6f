"""Programs whose compiler ends its process, as a fault of libtpu does."""

import os
import signal

import jax
import jax.numpy as jnp

from padir.errors import PadirError
from padir.measuring.compilation.program_list import Program


def _doubled():
    return jax.jit(lambda x: x + x).trace(jnp.ones(4))


def _killed():
    os.kill(os.getpid(), signal.SIGSEGV)


def one_deadly(*_):
    """The second of three programs kills its process; the third needs the figures of the first."""
    yield Program("first", _doubled)
    yield Program("deadly", _killed)
    yield Program("third", _doubled, before=("first",))


def none_made(*_):
    """A process that ends before it has a program."""
    os.kill(os.getpid(), signal.SIGSEGV)
    yield


def refused(*_):
    raise PadirError("heads", "a multiple of 8", 6)
    yield
