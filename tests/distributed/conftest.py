"""Processes with many devices that all tests of this folder share."""

import pytest
from support.workers import Pair, Worker, of_devices


@pytest.fixture(scope="session")
def worker():
    """Gives the process with so many devices, which starts when it is first asked for."""
    yield from of_devices(Worker)


@pytest.fixture(scope="session")
def pair():
    """Gives the two processes with so many devices each, which start when they are first asked for."""
    yield from of_devices(Pair)
